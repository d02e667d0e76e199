#include "launch/process/event_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {
namespace {

using ::testing::ElementsAre;

using Clock = EventSource::Clock;

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  void write() const { EXPECT_EQ(::write(write_end.get(), "x", 1), 1); }

  UniqueFd read_end;
  UniqueFd write_end;
};

// A source that waits for pipes, and keeps what it was told of each of them.
class Listener final : public EventSource {
 public:
  Listener(std::string name, size_t count, std::vector<std::string>& calls)
      : pipes(count), name_(std::move(name)), calls_(calls) {}

  void add_entries(std::vector<pollfd>& entries) override {
    for (const Pipe& pipe : pipes) entries.push_back({pipe.read_end.get(), POLLIN, 0});
  }
  void react(absl::Span<const pollfd> entries) override {
    calls_.push_back(name_);
    readable.clear();
    ASSERT_EQ(entries.size(), pipes.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(entries[i].fd, pipes[i].read_end.get());
      readable.push_back((entries[i].revents & POLLIN) != 0 ? 1 : 0);
    }
  }
  std::optional<Clock::time_point> deadline() const override { return time; }

  std::vector<Pipe> pipes;
  std::vector<int> readable;  // 1 or 0
  std::optional<Clock::time_point> time;

 private:
  const std::string name_;
  std::vector<std::string>& calls_;
};

TEST(WaitForEvents, TellsEachSourceOfItsOwnEntries) {
  std::vector<std::string> calls;
  Listener two("two", 2, calls), none("none", 0, calls), three("three", 3, calls);
  EventSource* sources[] = {&two, &none, &three};
  two.pipes[1].write();
  three.pipes[0].write();
  wait_for_events(sources);
  EXPECT_THAT(calls, ElementsAre("two", "none", "three"));
  EXPECT_THAT(two.readable, ElementsAre(0, 1));
  EXPECT_THAT(three.readable, ElementsAre(1, 0, 0));
}

// The earlier one of two deadlines counts, whichever source has it.
TEST(WaitForEvents, EndsAtTheFirstDeadline) {
  for (const bool first_is_earlier : {true, false}) {
    std::vector<std::string> calls;
    Listener first("first", 1, calls), second("second", 1, calls);
    EventSource* sources[] = {&first, &second};
    (first_is_earlier ? first : second).time = Clock::now();
    const Clock::time_point later = Clock::now() + std::chrono::seconds(20);
    (first_is_earlier ? second : first).time = later;
    wait_for_events(sources);
    EXPECT_LT(Clock::now(), later);
    EXPECT_THAT(calls, ElementsAre("first", "second"));
    EXPECT_THAT(first.readable, ElementsAre(0));
    EXPECT_THAT(second.readable, ElementsAre(0));
  }
}

TEST(Deadlines, NothingMeansNever) {
  const Clock::time_point now = Clock::now();
  const std::optional<Clock::time_point> never, soon(now), later(now + std::chrono::seconds(1));
  EXPECT_EQ(earlier(never, never), std::nullopt);
  EXPECT_EQ(earlier(soon, never), soon);
  EXPECT_EQ(earlier(never, soon), soon);
  EXPECT_EQ(earlier(soon, later), soon);
  EXPECT_EQ(earlier(later, soon), soon);
}

TEST(Deadlines, AreMillisecondsFromNow) {
  EXPECT_EQ(milliseconds_until(std::nullopt), -1);
  EXPECT_EQ(milliseconds_until(Clock::now() - std::chrono::hours(1)), 0);
  // Poll would take a longer time for an earlier one.
  EXPECT_EQ(milliseconds_until(Clock::now() + std::chrono::hours(1'000'000)), 1'000'000'000);
  const int hour = milliseconds_until(Clock::now() + std::chrono::hours(1));
  EXPECT_GT(hour, 0);
  EXPECT_LE(hour, 3'600'000);
}

}  // namespace
}  // namespace accelerate::launcher::process
