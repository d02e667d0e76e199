#include "trackers/wandb/record_log.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/disk/sim_disk.h"
#include "trackers/testing/wandb_log_reader.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr char kPath[] = "/sim/run.wandb";

class RecordLogTest : public ::testing::Test {
 protected:
  RecordLogTest() : log_(std::make_unique<RecordLog>(disk_.create(kPath).value(), kPath)) {}
  std::string bytes() { return read_file(disk_, kPath).value(); }

  simulator::SimDisk disk_;
  std::unique_ptr<RecordLog> log_;
};

// Bytes as they were worked out by hand from the format.
TEST_F(RecordLogTest, WritesHeaderAndFrame) {
  log_->append("123456789");
  log_->flush();
  // 0x21b52ec0 is the CRC-32 of the byte 1 and the nine digits.
  const std::string written = bytes();
  EXPECT_EQ(written.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  EXPECT_EQ(written.substr(7, 4), "\xc0\x2e\xb5\x21");
  EXPECT_EQ(written.substr(11, 3), std::string("\x09\0\x01", 3));
  EXPECT_EQ(written.substr(14), "123456789");
}

TEST_F(RecordLogTest, CutsRecordsAtBlocks) {
  std::vector<std::string> records;
  // Sizes around what is left of a block, and one of several blocks; an empty one too.
  for (size_t size : {size_t{32768 - 7 - 7}, size_t{0}, size_t{32768 - 14}, size_t{5},
                      size_t{200'000}, size_t{1}}) {
    records.emplace_back(size, static_cast<char>('a' + records.size()));
    log_->append(records.back());
  }
  log_->close();
  EXPECT_THAT(read_log(bytes()), ElementsAreArray(records));
}

// Whatever is left of a block when a record comes, down to nothing.
TEST_F(RecordLogTest, PadsWhatIsTooSmallForAFrame) {
  for (size_t left = 0; left <= 16; ++left) {
    RecordLog log(disk_.create(kPath).value(), kPath);
    const std::string first(RecordLog::kBlockBytes - 14 - left, 'x');
    log.append(first);
    log.append("0123456789");
    log.flush();
    EXPECT_THAT(read_log(bytes()), ElementsAre(first, "0123456789")) << left;
  }
}

TEST_F(RecordLogTest, IsReadableUpToTheLastWholeRecord) {
  const std::string large(100'000, 'l');
  log_->append("one");
  log_->append(large);
  log_->append("three");
  log_->flush();
  const std::string whole = bytes();
  const size_t one = 7 + 7 + 3;
  for (size_t size = 7; size < whole.size(); size += size < 100 ? 1 : 997) {
    const auto records = read_log(std::string_view(whole).substr(0, size));
    const size_t end_of_large = whole.size() - 7 - 5;
    EXPECT_EQ(records.size(), size < one ? 0 : size < end_of_large ? 1 : 2) << size;
  }
}

TEST_F(RecordLogTest, ReplacesTheLastRecord) {
  log_->append("first");
  log_->append("open");
  log_->replace_last("opened");
  log_->flush();
  EXPECT_THAT(read_log(bytes()), ElementsAre("first", "opened"));
  const std::string large(70'000, 'o');
  log_->replace_last(large);
  log_->append("behind");
  log_->flush();
  EXPECT_THAT(read_log(bytes()), ElementsAre("first", large, "behind"));
}

TEST(RecordLog, WritesLaterWhatFoundNoRoom) {
  simulator::SimDisk disk({.capacity = 1000});
  RecordLog log(disk.create(kPath).value(), kPath);
  log.append("first");
  log.flush();
  ASSERT_TRUE(write_file(disk, "/sim/other", std::string(970, 'o')).ok());
  log.append("second");
  EXPECT_THROW(log.flush(), std::runtime_error);
  EXPECT_THAT(read_log(read_file(disk, kPath).value()), ElementsAre("first"));
  ASSERT_TRUE(disk.remove("/sim/other").ok());
  log.append("third");
  log.flush();
  EXPECT_THAT(read_log(read_file(disk, kPath).value()), ElementsAre("first", "second", "third"));
}

TEST_F(RecordLogTest, HoldsBackNoMoreThanItMay) {
  const std::string record(40 << 20, 'r');
  log_->append(record);
  EXPECT_THROW(log_->append(record), std::runtime_error);
  log_->flush();
  log_->append("next");
  log_->close();
  EXPECT_THAT(read_log(bytes()), ElementsAre(record, "next"));
}

TEST(LogReader, FindsDamage) {
  simulator::SimDisk disk;
  RecordLog log(disk.create(kPath).value(), kPath);
  log.append("one");
  log.append("two");
  log.close();
  std::string bytes = read_file(disk, kPath).value();
  bytes.back() ^= 1;
  EXPECT_THAT(read_log(bytes), ElementsAre("one"));
  bytes[0] ^= 1;
  EXPECT_THROW(read_log(bytes), std::runtime_error);
}

}  // namespace
}  // namespace accelerate::trackers
