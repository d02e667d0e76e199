#include "accelerate/tracking/tracker_queue.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The calls of a tracker, and the reports about it.
struct Record {
  void add(const std::string& text) {
    const std::lock_guard lock(mutex);
    calls.push_back(text);
  }
  std::mutex mutex;
  std::vector<std::string> calls;
  std::vector<std::string> reports;
  std::function<void()> on_end = [] {};
};

class Spy : public GeneralTracker {
 public:
  explicit Spy(Record& record) : record_(record) {}
  void store_init_configuration(const TrackerDict& /*values*/) override { record_.add("config"); }
  void log(const TrackerDict& values, const TrackerStep& /*step*/) override {
    record_.add(value_text(values));
  }
  void flush() override { record_.add("flush"); }
  void finish() override {
    record_.add("finish");
    record_.on_end();
  }
  void abandon() override {
    record_.add("abandon");
    record_.on_end();
  }

 private:
  Record& record_;
};

std::unique_ptr<TrackerQueue> make_queue(Record& record, TrackerQueueOptions options = {}) {
  if (options.threaded) options.flush_interval = absl::Hours(1);
  return std::make_unique<TrackerQueue>(
      "spy", std::make_unique<Spy>(record),
      [&](std::string_view text) {
        const std::lock_guard lock(record.mutex);
        record.reports.emplace_back(text);
      },
      options);
}

void log(TrackerQueue& queue, int number) {
  queue.push([number](GeneralTracker& tracker) { tracker.log({{"n", number}}, {}); }, 1);
}

class TrackerQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  Record record_;
  std::unique_ptr<TrackerQueue> queue_ = make_queue(record_, {.threaded = GetParam()});
};

INSTANTIATE_TEST_SUITE_P(WithAndWithoutThread, TrackerQueueTest, ::testing::Bool());

TEST_P(TrackerQueueTest, CallsComeInOrderAndThenTheFlush) {
  log(*queue_, 1);
  log(*queue_, 2);
  EXPECT_TRUE(queue_->drain(absl::InfiniteDuration()));
  EXPECT_THAT(record_.calls, ElementsAre("{'n': 1}", "{'n': 2}", "flush"));
}

TEST_P(TrackerQueueTest, FinishIsLastAndOnce) {
  log(*queue_, 1);
  queue_->finish(absl::InfiniteDuration());
  log(*queue_, 2);
  queue_->finish(absl::InfiniteDuration());
  EXPECT_TRUE(queue_->drain(absl::InfiniteDuration()));
  queue_.reset();
  EXPECT_THAT(record_.calls, ElementsAre("{'n': 1}", "finish"));
  EXPECT_THAT(record_.reports, IsEmpty());
}

TEST_P(TrackerQueueTest, TheEndOfTheQueueFinishes) {
  log(*queue_, 1);
  queue_.reset();
  EXPECT_THAT(record_.calls, ElementsAre("{'n': 1}", "finish"));
}

TEST_P(TrackerQueueTest, AFailedRunIsAbandoned) {
  log(*queue_, 1);
  queue_->finish(absl::InfiniteDuration(), RunEnd::kFailed);
  EXPECT_THAT(record_.calls, ElementsAre("{'n': 1}", "abandon"));
}

TEST_P(TrackerQueueTest, EachReasonIsReportedOnce) {
  const auto fail = [](const char* why) {
    return [why](GeneralTracker&) { throw std::runtime_error(why); };
  };
  queue_->push([](GeneralTracker&) { throw NotKept("it does not keep images"); }, 1);
  for (int i = 0; i < 3; ++i) queue_->push(fail("disk full"), 1);
  queue_->push(fail("server down"), 1);
  queue_->finish(absl::InfiniteDuration());
  EXPECT_THAT(record_.reports,
              ElementsAre("tracker spy: it does not keep images", HasSubstr("disk full"),
                          HasSubstr("server down"), HasSubstr("4 calls failed")));
}

TEST_P(TrackerQueueTest, WhatATrackerDoesNotKeepIsNoFailure) {
  for (int i = 0; i < 3; ++i) {
    queue_->push([](GeneralTracker&) { throw NotKept("it does not keep images"); }, 1);
  }
  queue_->finish(absl::InfiniteDuration());
  EXPECT_THAT(record_.reports, ElementsAre("tracker spy: it does not keep images"));
}

TEST_P(TrackerQueueTest, WhatThrowsIsReportedOnceAndCounted) {
  const auto fail = [](GeneralTracker&) { throw std::runtime_error("no route to wandb"); };
  queue_->push(fail, 1);
  queue_->push(fail, 1);
  queue_->push([](GeneralTracker&) { throw 3; }, 1);
  log(*queue_, 1);
  queue_->finish(absl::InfiniteDuration());
  EXPECT_THAT(record_.calls, ElementsAre("{'n': 1}", "finish"));
  EXPECT_THAT(record_.reports,
              ElementsAre(HasSubstr("tracker spy failed: no route to wandb. Training continues"),
                          HasSubstr("not a std::exception"),
                          HasSubstr("3 calls failed, 0 were never made")));
}

// Holds the queue's thread until told.
class Gate {
 public:
  TrackerQueue::Call call() {
    return [this](GeneralTracker&) {
      entered_.set_value();
      opened_.get_future().wait();
    };
  }
  void wait_until_entered() { entered_.get_future().wait(); }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> entered_;
  std::promise<void> opened_;
};

TEST(TrackerQueueThreadTest, WhatDoesNotFitIsLostAndSaid) {
  Record record;
  const auto queue = make_queue(record, {.capacity = 100'000});
  Gate gate;
  queue->push(gate.call(), 1);
  gate.wait_until_entered();
  queue->push([&](GeneralTracker&) { record.add("first"); }, 80'000);
  queue->push([&](GeneralTracker&) { record.add("too large"); }, 80'000);
  queue->push([&](GeneralTracker&) { record.add("too large"); }, 80'000);
  queue->push([&](GeneralTracker&) { record.add("small"); }, 2);
  gate.open();
  queue->finish(absl::InfiniteDuration());
  EXPECT_THAT(record.calls, ElementsAre("first", "small", "finish"));
  EXPECT_THAT(record.reports, ElementsAre(HasSubstr("tracker spy falls behind"),
                                          HasSubstr("0 calls failed, 2 were never made")));
}

TEST(TrackerQueueThreadTest, WhatWasMadeLeavesItsRoom) {
  Record record;
  const auto queue = make_queue(record, {.capacity = 100'000});
  for (const char* name : {"first", "second", "third"}) {
    queue->push([&record, name](GeneralTracker&) { record.add(name); }, 80'000);
    EXPECT_TRUE(queue->drain(absl::InfiniteDuration()));
  }
  queue->finish(absl::InfiniteDuration());
  std::erase(record.calls, "flush");
  EXPECT_THAT(record.calls, ElementsAre("first", "second", "third", "finish"));
  EXPECT_THAT(record.reports, IsEmpty());
}

TEST(TrackerQueueThreadTest, OneLargerThanTheQueueComesThroughAlone) {
  Record record;
  const auto queue = make_queue(record, {.capacity = 10});
  queue->push([&](GeneralTracker&) { record.add("large"); }, 1000);
  queue->finish(absl::InfiniteDuration());
  EXPECT_THAT(record.calls, ElementsAre("large", "finish"));
}

// A flush that is due comes between calls, and is not the one that was asked for.
TEST(TrackerQueueThreadTest, ARequestedFlushComesAfterAllCallsBeforeIt) {
  Record record;
  TrackerQueue queue("spy", std::make_unique<Spy>(record), [](std::string_view) {},
                     {.flush_interval = absl::ZeroDuration()});
  Gate first, second;
  queue.push(first.call(), 1);
  first.wait_until_entered();
  queue.push(second.call(), 1);
  const uint64_t request = queue.request_flush();
  first.open();
  second.wait_until_entered();
  EXPECT_FALSE(queue.wait_flushed(request, absl::ZeroDuration()));
  second.open();
  EXPECT_TRUE(queue.wait_flushed(request, absl::InfiniteDuration()));
}

TEST(TrackerQueueThreadTest, WhatWaitsForAStuckTrackerIsGivenUp) {
  Record record;
  const auto queue = make_queue(record);
  Gate gate;
  queue->push(gate.call(), 1);
  gate.wait_until_entered();
  log(*queue, 1);
  log(*queue, 2);
  EXPECT_FALSE(queue->drain(absl::ZeroDuration()));
  // `finish` gives up at once, and then waits for the call that is being made: it is let go only
  // when what waits has been given up.
  std::thread opener([&] {
    while (!queue->has_given_up()) std::this_thread::yield();
    gate.open();
  });
  queue->finish(absl::ZeroDuration());
  opener.join();
  EXPECT_THAT(record.calls, ElementsAre("finish"));
  EXPECT_THAT(record.reports, ElementsAre(HasSubstr("0 calls failed, 2 were never made")));
}

TEST(TrackerQueueThreadTest, ACallThatDoesNotReturnIsLeftBehind) {
  Record record;
  Gate gate;
  {
    const auto queue = make_queue(record, {.last_call = absl::ZeroDuration()});
    queue->push(gate.call(), 1);
    gate.wait_until_entered();
    queue->finish(absl::ZeroDuration());
    EXPECT_THAT(record.reports, ElementsAre(HasSubstr("it is abandoned")));
  }
  std::promise<void> ended;
  auto is_over = ended.get_future();
  record.on_end = [&] { ended.set_value(); };
  gate.open();
  is_over.wait();
}

// Others waited as long as the end of a run that failed may take.
TEST(TrackerQueueThreadTest, AFailedRunDoesNotWaitForEachLastCall) {
  Record record;
  Gate gate;
  {
    const auto queue = make_queue(record, {.last_call = absl::InfiniteDuration()});
    queue->push(gate.call(), 1);
    gate.wait_until_entered();
    queue->finish(absl::Seconds(-2), RunEnd::kFailed);
    EXPECT_THAT(record.reports, ElementsAre(HasSubstr("it is abandoned")));
  }
  std::promise<void> ended;
  auto is_over = ended.get_future();
  record.on_end = [&] { ended.set_value(); };
  gate.open();
  is_over.wait();
}

TEST(TrackerQueueThreadTest, AForkedProcessHasTheObjectAlone) {
  Record record;
  auto queue = make_queue(record);
  log(*queue, 1);
  const pid_t child = fork();
  if (child == 0) {
    log(*queue, 2);
    const bool drained = queue->drain(absl::InfiniteDuration());
    queue->finish(absl::InfiniteDuration());
    queue.reset();
    _exit(drained ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  queue->finish(absl::InfiniteDuration());
  EXPECT_THAT(record.calls, ElementsAre("{'n': 1}", "finish"));
}

TEST(TrackerQueueThreadTest, AFlushThatIsDueDoesNotWaitForTheLastCall) {
  Record record;
  std::vector<std::unique_ptr<Gate>> gates;
  TrackerQueue queue("spy", std::make_unique<Spy>(record), [](std::string_view) {},
                     {.flush_interval = absl::ZeroDuration()});
  for (int i = 0; i < 3; ++i) {
    gates.push_back(std::make_unique<Gate>());
    queue.push(gates.back()->call(), 1);
  }
  for (const auto& gate : gates) {
    gate->wait_until_entered();
    gate->open();
  }
  queue.finish(absl::InfiniteDuration());
  EXPECT_GE(std::count(record.calls.begin(), record.calls.end(), "flush"), 2);
}

TEST(TrackerQueueThreadTest, AQueueThatEndsWithAFlushDueMakesItsCallsFirst) {
  Record record;
  TrackerQueue queue("spy", std::make_unique<Spy>(record), [](std::string_view) {},
                     {.flush_interval = absl::ZeroDuration()});
  Gate gate;
  queue.push(gate.call(), 1);
  gate.wait_until_entered();
  log(queue, 1);
  log(queue, 2);
  queue.begin_end(RunEnd::kDone);
  // When this call returns, two wait, the queue ends, and a flush is due.
  gate.open();
  queue.finish(absl::InfiniteDuration());
  ASSERT_FALSE(record.calls.empty());
  EXPECT_EQ(record.calls.front(), "flush");
  std::erase(record.calls, "flush");
  EXPECT_THAT(record.calls, ElementsAre("{'n': 1}", "{'n': 2}", "finish"));
}

TEST(TrackerQueueThreadTest, WhatACallHoldsIsFreedWhileOthersPush) {
  Record record;
  const auto queue = make_queue(record);
  std::promise<void> freed;
  {
    std::shared_ptr<int> held(new int(1), [&](const int* number) {
      delete number;
      log(*queue, 2);
      freed.set_value();
    });
    queue->push([held = std::move(held)](GeneralTracker&) {}, 1);
  }
  freed.get_future().wait();
  queue->finish(absl::InfiniteDuration());
  EXPECT_THAT(record.calls, ElementsAre("{'n': 2}", "finish"));
}

// Its service is away for the first flushes.
TEST(TrackerQueueThreadTest, CallsThatComeBehindOthersNeedNobodyElse) {
  Record record;
  const auto queue = make_queue(record);
  for (int i = 0; i < 3; ++i) {
    std::promise<void> made;
    queue->push([&](GeneralTracker& /*tracker*/) { made.set_value(); }, 1);
    made.get_future().wait();
  }
  queue->finish(absl::InfiniteDuration());
  EXPECT_THAT(record.calls, ElementsAre("finish"));
}

TEST(TrackerQueueThreadTest, WhatAFlushCouldNotHandOnIsTriedAgain) {
  std::promise<void> handed_on;
  class Patient : public GeneralTracker {
   public:
    explicit Patient(std::promise<void>& handed_on) : handed_on_(handed_on) {}
    void store_init_configuration(const TrackerDict& /*values*/) override {}
    void log(const TrackerDict& /*values*/, const TrackerStep& /*step*/) override {}
    void flush() override {
      if (++flushes_ == 3) handed_on_.set_value();
    }

   private:
    std::promise<void>& handed_on_;
    int flushes_ = 0;
  };
  TrackerQueue queue("patient", std::make_unique<Patient>(handed_on), [](std::string_view) {},
                     {.flush_interval = absl::Milliseconds(1)});
  log(queue, 1);
  handed_on.get_future().wait();
}

TEST(TrackerQueueThreadTest, WhatIsHeldBackIsFlushedWithoutBeingAsked) {
  Record record;
  std::promise<void> flushed;
  class Flushing : public GeneralTracker {
   public:
    explicit Flushing(std::promise<void>& flushed) : flushed_(flushed) {}
    void store_init_configuration(const TrackerDict& /*values*/) override {}
    void log(const TrackerDict& /*values*/, const TrackerStep& /*step*/) override {}
    void flush() override {
      if (!std::exchange(was_flushed_, true)) flushed_.set_value();
    }

   private:
    std::promise<void>& flushed_;
    bool was_flushed_ = false;
  };
  TrackerQueue queue("flushing", std::make_unique<Flushing>(flushed), [](std::string_view) {},
                     {.flush_interval = absl::Milliseconds(1)});
  log(queue, 1);
  flushed.get_future().wait();
}

}  // namespace
}  // namespace accelerate
