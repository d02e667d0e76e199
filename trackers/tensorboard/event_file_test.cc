#include "trackers/tensorboard/event_file.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trackers/testing/event_file_reader.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using simulator::Unsynced;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kFolder[] = "/sim/logs/run";

EventFileOptions options(TrackerWorld& world) {
  return {
      .folder = kFolder, .owner = "host.7", .now = world.services.now, .warn = world.services.warn};
}

// Field 2, the step, of up to 127; then field 3 of that many letters.
std::string event(int step, int padding = 0) {
  std::string bytes = {'\x10', static_cast<char>(step)};
  if (padding > 0) {
    bytes += {'\x1A', static_cast<char>(0x80 | (padding & 0x7F)), static_cast<char>(padding >> 7)};
    bytes.append(padding, 'p');
  }
  return bytes;
}

std::string only_file(TrackerWorld& world) {
  const auto names = event_file_names(world.disk, kFolder);
  EXPECT_THAT(names, SizeIs(1));
  return join_path(kFolder, names.at(0));
}

// The steps of all whole records but the files' versions.
std::vector<int64_t> steps(TrackerWorld& world) {
  std::vector<int64_t> result;
  for (const EventRecord& record : read_events(world.disk, kFolder)) {
    if (record.file_version != "brain.Event:2") result.push_back(record.step);
  }
  return result;
}

TEST(EventFile, WritesRecordsBehindAVersion) {
  TrackerWorld world;
  EventFile file(world.disk, options(world));
  file.add(event(1));
  file.add(event(2));
  file.close();
  EXPECT_EQ(only_file(world), "/sim/logs/run/events.out.tfevents.0000000005.host.7.0");
  const EventFileContents contents = parse_event_file(world.file(only_file(world)));
  EXPECT_EQ(contents.damage, "");
  ASSERT_THAT(contents.events, SizeIs(3));
  EXPECT_EQ(contents.events[0].file_version, "brain.Event:2");
  EXPECT_EQ(contents.events[0].wall_time, 5.0);
  EXPECT_EQ(contents.events[2].step, 2);
}

// The frame of an event of two bytes, computed by hand and by TensorFlow's description: the masked
// CRC-32C of the length (2) and of the event.
TEST(EventFile, FramesAsTheFormatSays) {
  TrackerWorld world;
  EventFile file(world.disk, options(world));
  file.add("123456789");
  file.close();
  const std::string bytes = world.file(only_file(world));
  const std::string record = bytes.substr(bytes.size() - 25);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  // CRC-32C("123456789") is E3069283; turned by 15 bits, 2507C60D; plus A282EAD8, C78AB0E5.
  EXPECT_EQ(record.substr(21), "\xE5\xB0\x8A\xC7");
}

TEST(EventFile, ReadersSeeWhatWasFlushedAndManyWithoutAFlush) {
  TrackerWorld world;
  EventFile file(world.disk, options(world));
  file.add(event(1));
  EXPECT_FALSE(exists(world.disk, kFolder).value());
  file.flush();
  EXPECT_THAT(steps(world), ElementsAre(1));
  for (int i = 2; i <= 12; ++i) file.add(event(i));
  EXPECT_THAT(steps(world), SizeIs(11));  // ten are many
  file.flush();
  EXPECT_THAT(steps(world), SizeIs(12));
}

TEST(EventFile, RotatesAtWholeRecordsInTheOrderOfNames) {
  TrackerWorld world;
  EventFileOptions small = options(world);
  small.max_file_bytes = 400;
  EventFile file(world.disk, small);
  std::vector<int64_t> written;
  for (int i = 0; i < 40; ++i) {
    file.add(event(i, 20));
    if (i % 3 == 0) file.flush();
    written.push_back(i);
  }
  file.close();
  EXPECT_EQ(steps(world), written);
  const auto names = event_file_names(world.disk, kFolder);
  EXPECT_GT(names.size(), 4);
  for (const std::string& name : names) {
    const std::string bytes = world.file(join_path(kFolder, name));
    const EventFileContents contents = parse_event_file(bytes);
    EXPECT_EQ(contents.damage, "");
    EXPECT_LE(bytes.size(), 400);
    EXPECT_GT(contents.events.size(), 1);
    EXPECT_EQ(contents.events[0].file_version, "brain.Event:2");
  }
}

TEST(EventFile, AFileMayHaveAllTheBytesOfItsLimit) {
  const auto files = [](std::optional<int64_t> limit) {
    TrackerWorld world;
    EventFileOptions limited = options(world);
    limited.max_file_bytes = limit;
    EventFile file(world.disk, limited);
    for (int i = 0; i < 2; ++i) file.add(event(i, 20));
    file.close();
    std::vector<std::string> contents;
    for (const std::string& name : event_file_names(world.disk, kFolder)) {
      contents.push_back(world.file(join_path(kFolder, name)));
    }
    return contents;
  };
  const auto both = static_cast<int64_t>(files(std::nullopt).at(0).size());
  EXPECT_THAT(files(both - 1), SizeIs(2));
  EXPECT_THAT(files(both), SizeIs(1));
  EXPECT_THAT(files(both + 1), SizeIs(1));
}

TEST(EventFile, AnEventLargerThanAFileHasOneOfItsOwn) {
  TrackerWorld world;
  EventFileOptions small = options(world);
  small.max_file_bytes = 10;
  EventFile file(world.disk, small);
  for (int i = 0; i < 3; ++i) file.add(event(i, 100));
  file.close();
  EXPECT_THAT(steps(world), ElementsAre(0, 1, 2));
  EXPECT_THAT(event_file_names(world.disk, kFolder), SizeIs(3));
}

TEST(EventFile, NeverTouchesWhatIsThereAndComesAfterIt) {
  TrackerWorld world;
  const std::string old = "/sim/logs/run/events.out.tfevents.0000000005.host.7.0";
  ASSERT_TRUE(write_file(world.disk, old, "old").ok());
  ASSERT_TRUE(
      write_file(world.disk, "/sim/logs/run/events.out.tfevents.0000000900.other.1.0", "x").ok());
  EventFile file(world.disk, options(world));
  file.add(event(1));
  file.close();
  EXPECT_EQ(world.file(old), "old");
  EXPECT_EQ(event_file_names(world.disk, kFolder).back(),
            "events.out.tfevents.0000000901.host.7.0");
}

TEST(EventFile, AStartHidesLaterStepsOfEarlierRuns) {
  TrackerWorld world;
  const auto scalar = [](int step) {  // of tag "a", 0
    return event(step) + std::string("\x2A\x0A\x0A\x08\x0A\x01\x61\x15\0\0\0\0", 12);
  };
  EventFile first(world.disk, options(world));
  for (int i = 1; i <= 6; ++i) first.add(scalar(i));
  first.close();
  EventFileOptions resumed = options(world);
  resumed.purge_step = 4;
  resumed.max_file_bytes = 120;  // a later file of the run hides nothing
  EventFile second(world.disk, resumed);
  for (int i = 4; i <= 12; ++i) second.add(scalar(i));
  second.close();
  const auto curves = read_scalars(world.disk, kFolder);
  std::vector<int64_t> read;
  for (const auto& [step, value] : curves.at("a")) read.push_back(step);
  EXPECT_THAT(read, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_GT(event_file_names(world.disk, kFolder).size(), 2);
}

// Room for every number of bytes from none to all: what is there can be read, and once there is
// room all is there.
TEST(EventFile, GoesOnAfterAFullDisk) {
  for (int64_t room = 0; room < 420; room += 7) {
    TrackerWorld world({.capacity = 1000});
    ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(1000 - room, 'x')).ok());
    EventFile file(world.disk, options(world));
    const auto try_to = [&](auto&& call) {
      try {
        call();
        return true;
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr("events.out.tfevents"));
        return false;
      }
    };
    bool failed = false;
    std::vector<int64_t> written;
    for (int i = 0; i < 8; ++i) {
      failed |= !try_to([&] { file.add(event(i, 10 * i)); });
      failed |= !try_to([&] { file.flush(); });
      world.now += absl::Seconds(2);
      written.push_back(i);
      std::vector<int64_t> expected = steps(world);
      ASSERT_LE(expected.size(), written.size());
      for (size_t k = 0; k < expected.size(); ++k) ASSERT_EQ(expected[k], written[k]);
    }
    EXPECT_EQ(failed, steps(world).size() < 8) << room;
    ASSERT_TRUE(world.disk.remove("/sim/other").ok());
    file.add(event(8));
    file.flush();
    written.push_back(8);
    EXPECT_EQ(steps(world), written) << room;
    EXPECT_EQ(parse_event_file(world.file(only_file(world))).damage, "");
    EXPECT_THAT(world.warnings, IsEmpty());
  }
}

TEST(EventFile, ADiskThatStaysFullIsTriedOnceASecondAndLosesWhatIsTooMuch) {
  TrackerWorld world({.capacity = 100});
  ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(100, 'x')).ok());
  EventFile file(world.disk, options(world));
  file.add(event(0));
  EXPECT_THROW(file.flush(), std::runtime_error);
  EXPECT_NO_THROW(file.flush());  // too soon to be tried
  world.now += absl::Seconds(1);
  EXPECT_THROW(file.flush(), std::runtime_error);
  // A clock that was set back does not keep it from being tried.
  world.now -= absl::Hours(1);
  EXPECT_THROW(file.flush(), std::runtime_error);
  EXPECT_NO_THROW(file.flush());
  const std::string large = "\x1A\x80\x80\xC0\x02" + std::string(5 << 20, 'p');
  int lost = 0;
  for (int i = 0; i < 5; ++i) {
    try {
      file.add(large);
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("/sim/logs/run: an event is lost"));
      ++lost;
    }
  }
  EXPECT_EQ(lost, 2);
  EXPECT_THAT([&] { file.close(); },
              ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("; 6 events are lost")));
}

TEST(EventFile, SaysHowManyEventsAreMissing) {
  TrackerWorld world({.capacity = int64_t{40} << 20});
  ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(size_t{40} << 20, 'x')).ok());
  EventFile file(world.disk, options(world));
  file.add(event(0));
  EXPECT_THROW(file.flush(), std::runtime_error);
  const std::string large = "\x1A\x80\x80\xC0\x05" + std::string(11 << 20, 'p');
  EXPECT_NO_THROW(file.add(large));
  EXPECT_THROW(file.add(large), std::runtime_error);
  ASSERT_TRUE(world.disk.remove("/sim/other").ok());
  world.now += absl::Seconds(1);
  file.flush();
  EXPECT_THAT(world.warnings,
              ElementsAre(absl::StrCat("1 events are missing in ", only_file(world),
                                       ": they found no place while it could not be written")));
  EXPECT_THAT(steps(world), SizeIs(2));
}

// Events that were synced are there, whatever else the crash took; the bytes that are there can be
// read.
TEST(EventFile, ACrashLeavesAPrefix) {
  for (int seed = 0; seed < 40; ++seed) {
    TrackerWorld world;
    EventFileOptions synced = options(world);
    synced.sync_interval = absl::Seconds(10);
    EventFile file(world.disk, synced);
    for (int i = 0; i < 60; ++i) {
      file.add(event(i, 400));
      file.flush();
      world.now += absl::Seconds(1);
    }
    world.disk.crash(seed == 0 ? Unsynced::kLost : Unsynced::kDrawn,
                     simulator::DeterministicRandom(seed));
    const std::vector<int64_t> left = steps(world);
    EXPECT_GE(left.size(), 51) << seed;
    for (size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i], static_cast<int64_t>(i));
    if (seed == 0) {
      EXPECT_EQ(left.size(), 51);
    }
  }
}

}  // namespace
}  // namespace accelerate::trackers
