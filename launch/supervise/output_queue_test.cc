#include "launch/supervise/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::supervise {

namespace {

class OutputQueueTest : public ::testing::Test {
 protected:
  OutputQueueTest() {
    signal(SIGPIPE, SIG_IGN);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
  }

  std::string read_available() {
    std::string all(1 << 20, '\0');
    const ssize_t size = read(reader_.get(), all.data(), all.size());
    all.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return all;
  }

  UniqueFd reader_;
  UniqueFd writer_;
};

// The pipe is a blocking one: a write too many would hang the test.
TEST_F(OutputQueueTest, WritesWhatFitsAndKeepsTheRest) {
  OutputQueue queue(writer_.get());
  std::string sent;
  for (int i = 0; i < 100'000; ++i) sent += std::to_string(i) + "\n";
  queue.pending() = sent;
  EXPECT_TRUE(queue.is_full());
  std::string received;
  while (!queue.empty()) {
    ASSERT_TRUE(queue.write_some().ok());
    received += read_available();
  }
  EXPECT_EQ(received, sent);
  EXPECT_FALSE(queue.is_full());
}

TEST_F(OutputQueueTest, ReportsAClosedReaderOnceAndDropsTheRest) {
  OutputQueue queue(writer_.get());
  reader_.reset();
  queue.pending() = "lost";
  EXPECT_TRUE(absl::IsUnavailable(queue.write_some()));
  EXPECT_TRUE(queue.empty());
  queue.pending() += "lost as well";
  EXPECT_TRUE(queue.write_some().ok());
  EXPECT_TRUE(queue.empty());
}

TEST(OutputQueue, TellsAFullDeviceFromAClosedReader) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.is_open());
  OutputQueue queue(full.get());
  queue.pending() = "lost";
  EXPECT_TRUE(absl::IsDataLoss(queue.write_some()));
}

}  // namespace
}  // namespace accelerate::launcher::supervise
