#include "simulator/core/scheduler.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string waiting() { return "waiting"; }

// The order in which `tasks` tasks pass `rounds` yields.
std::vector<int> order_of(int tasks, int rounds, uint64_t seed) {
  std::vector<int> order;
  Scheduler scheduler(tasks, seed);
  scheduler.run([&](int task) {
    for (int round = 0; round < rounds; ++round) {
      order.push_back(task);
      scheduler.yield();
    }
  });
  return order;
}

TEST(Scheduler, RepeatsTheOrderOfASeedAndVariesItWithTheSeed) {
  EXPECT_EQ(order_of(8, 20, 1), order_of(8, 20, 1));
  EXPECT_NE(order_of(8, 20, 1), order_of(8, 20, 2));
}

TEST(Scheduler, RunsOneTaskAtATime) {
  int inside = 0;
  int most = 0;
  Scheduler scheduler(16, 3);
  scheduler.run([&](int) {
    for (int round = 0; round < 50; ++round) {
      most = std::max(most, ++inside);
      --inside;
      scheduler.yield();
    }
  });
  EXPECT_EQ(most, 1);
}

TEST(Scheduler, WakesABlockedTask) {
  bool ready = false;
  std::vector<std::string> events;
  Scheduler scheduler(2, 0);
  scheduler.run([&](int task) {
    if (task == 0) {
      while (!ready) EXPECT_EQ(scheduler.block(waiting), Wake::kReady);
      events.push_back("woken");
    } else {
      scheduler.yield();
      ready = true;
      events.push_back("waking");
      scheduler.wake(0);
    }
  });
  EXPECT_THAT(events, ElementsAre("waking", "woken"));
}

TEST(Scheduler, JumpsToTheNextTimerWhenNobodyIsReady) {
  std::vector<std::pair<int, absl::Duration>> woke;
  Scheduler scheduler(3, 5);
  scheduler.run([&](int task) {
    scheduler.sleep_for(absl::Seconds(3 - task));
    woke.emplace_back(task, scheduler.now());
  });
  EXPECT_THAT(woke, ElementsAre(std::pair(2, absl::Seconds(1)), std::pair(1, absl::Seconds(2)),
                                std::pair(0, absl::Seconds(3))));
}

// One that was meant for what the task waited for before.
TEST(Scheduler, AWakeDoesNotShortenASleep) {
  absl::Duration woke;
  Scheduler scheduler(2, 0);
  scheduler.run([&](int task) {
    if (task == 0) {
      scheduler.sleep_for(absl::Seconds(2));
      woke = scheduler.now();
      return;
    }
    for (int i = 0; i < 3; ++i) {
      scheduler.sleep_for(absl::Milliseconds(300));
      scheduler.wake(0);
    }
  });
  EXPECT_EQ(woke, absl::Seconds(2));
}

TEST(Scheduler, ReportsAStallOnceToEveryBlockedTask) {
  int reports = 0;
  std::vector<Wake> wakes;
  Scheduler* self = nullptr;
  Scheduler scheduler(3, 0, {.on_stall = [&] {
                        ++reports;
                        return self->describe(0) + "; done: " +
                               (self->state(2) == Scheduler::State::kDone ? "yes" : "no");
                      }});
  self = &scheduler;
  scheduler.run([&](int task) {
    if (task != 2) wakes.push_back(scheduler.block([] { return std::string("for godot"); }));
  });
  EXPECT_EQ(reports, 1);
  EXPECT_THAT(wakes, ElementsAre(Wake::kStalled, Wake::kStalled));
  EXPECT_EQ(scheduler.stall_report(), "for godot; done: yes");
}

TEST(Scheduler, LetsAPatientDeadlinePassOnlyWhileSomebodyElseMakesProgress) {
  std::vector<Wake> wakes;
  Scheduler scheduler(2, 0);
  scheduler.run([&](int task) {
    if (task == 1) return scheduler.sleep_for(absl::Minutes(2));
    const Deadline patience{.at = absl::Minutes(1)};
    wakes.push_back(scheduler.block(waiting, patience));
    EXPECT_EQ(scheduler.now(), absl::Minutes(1));
    wakes.push_back(scheduler.block(waiting, {.at = absl::Minutes(60)}));
    EXPECT_EQ(scheduler.now(), absl::Minutes(2));  // A stall, not an hour's wait.
  });
  EXPECT_THAT(wakes, ElementsAre(Wake::kDeadline, Wake::kStalled));
}

TEST(Scheduler, HonoursATimeOutThatTheCallerAskedFor) {
  Scheduler scheduler(1, 0);
  scheduler.run([&](int) {
    EXPECT_EQ(scheduler.block(waiting, {.at = absl::Seconds(1), .counts_as_progress = true}),
              Wake::kDeadline);
    EXPECT_EQ(scheduler.now(), absl::Seconds(1));
  });
}

TEST(Scheduler, WaitsForDefaultTimeOutsIfTold) {
  std::vector<Wake> wakes(3, Wake::kReady);
  std::vector<absl::Duration> ends(3);
  int stalls = 0;
  Scheduler scheduler(3, 0,
                      {.on_stall =
                           [&] {
                             ++stalls;
                             return "stall " + std::to_string(stalls);
                           },
                       .waits_for_deadlines = true});
  scheduler.run([&](int task) {
    const Deadline deadline{.at = task == 2 ? absl::InfiniteDuration() : absl::Minutes(30 + task)};
    wakes[task] = scheduler.block(waiting, deadline);
    ends[task] = scheduler.now();
    if (task == 0) EXPECT_EQ(scheduler.stall_report(), "stall 1");
  });
  EXPECT_THAT(wakes, ElementsAre(Wake::kStalled, Wake::kStalled, Wake::kStalled));
  EXPECT_THAT(ends, ElementsAre(absl::Minutes(30), absl::Minutes(31), absl::Minutes(31)));
  EXPECT_EQ(stalls, 3);
}

// That of a host which is ahead of the scheduler, as one that has filled its device's queue.
TEST(Scheduler, AStallTurnsNoClockBack) {
  for (const bool waits : {false, true}) {
    Scheduler scheduler(1, 0, {.waits_for_deadlines = waits});
    scheduler.run([&](int) {
      scheduler.advance_to(absl::ToInt64Nanoseconds(absl::Seconds(5)));
      EXPECT_EQ(scheduler.block(waiting), Wake::kStalled);
      EXPECT_EQ(scheduler.now(), absl::Seconds(5));
    });
  }
}

// Its time-out does not keep the others waiting any more.
TEST(Scheduler, ReportsAStallAtOnceAfterATaskWasWokenBeforeItsTimeOut) {
  std::vector<Wake> wakes;
  Scheduler scheduler(2, 0);
  scheduler.run([&](int task) {
    if (task == 1) {
      while (scheduler.state(0) != Scheduler::State::kBlocked) scheduler.yield();
      return scheduler.wake(0);
    }
    const Deadline asked_for{.at = absl::Minutes(1), .counts_as_progress = true};
    wakes.push_back(scheduler.block(waiting, asked_for));
    wakes.push_back(scheduler.block(waiting, {.at = absl::Minutes(60)}));
    EXPECT_EQ(scheduler.now(), absl::ZeroDuration());
  });
  EXPECT_THAT(wakes, ElementsAre(Wake::kReady, Wake::kStalled));
}

// What arrives at the very time of the deadline is not too late.
TEST(Scheduler, RunsAnEventBeforeTheTimersOfItsTime) {
  bool has_arrived = false;
  Scheduler scheduler(
      1, 0,
      {.next_event_ns = [&] { return has_arrived ? Scheduler::kNever : int64_t{1'000'000'000}; },
       .run_event =
           [&] {
             has_arrived = true;
             return std::vector<int>{0};
           }});
  scheduler.run([&](int) {
    EXPECT_EQ(scheduler.block(waiting, {.at = absl::Seconds(1), .counts_as_progress = true}),
              Wake::kReady);
  });
  EXPECT_TRUE(has_arrived);
}

TEST(Scheduler, CallsTheHooksAroundEveryTurn) {
  std::vector<std::string> events;
  Scheduler scheduler(
      1, 0,
      {.on_resume = [&](int task) { events.push_back("+" + std::to_string(task)); },
       .on_suspend = [&](int task) { events.push_back("-" + std::to_string(task)); }});
  scheduler.run([&](int) { scheduler.sleep_for(absl::Seconds(1)); });
  EXPECT_THAT(events, ElementsAre("+0", "-0", "+0", "-0"));
}

cpu_set_t cpus_of_this_thread() {
  cpu_set_t cpus;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}

// A thread is bound to a core while it wakes. A task that binds itself stays where it wants to be;
// two tasks do, so that threads wake on other cores for certain, where there are any.
TEST(Scheduler, LeavesEveryThreadTheCpusThatItHad) {
  const cpu_set_t all = cpus_of_this_thread();
  std::vector<int> numbers;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) numbers.push_back(cpu);
  }
  int turns_elsewhere = 0;
  Scheduler scheduler(8, 3);
  scheduler.run([&](int task) {
    cpu_set_t own = all;
    if (task < 2) {
      CPU_ZERO(&own);
      CPU_SET(task == 0 ? numbers.front() : numbers.back(), &own);
      EXPECT_EQ(sched_setaffinity(0, sizeof(own), &own), 0);
    }
    for (int turn = 0; turn < 100; ++turn) {
      scheduler.yield();
      const cpu_set_t cpus = cpus_of_this_thread();
      if (!CPU_EQUAL(&cpus, &own)) ++turns_elsewhere;
    }
    std::thread([&] {
      const cpu_set_t inherited = cpus_of_this_thread();
      EXPECT_TRUE(CPU_EQUAL(&inherited, &own));
    }).join();
  });
  EXPECT_EQ(turns_elsewhere, 0);
}

TEST(DeterministicRandom, GivesTheDocumentedSequence) {
  // Reference values of SplitMix64 for the seed 1234567.
  DeterministicRandom random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
}

// As under ulimit -v: threads need memory for their stacks.
TEST(Scheduler, NamesTheLimitsWhereNotAllThreadsCanBeStarted) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit small = before;
  small.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (int64_t{64} << 20));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  std::string error;
  int ran = 0;
  try {
    Scheduler scheduler(4000, 1);
    scheduler.run([&](int) { ++ran; });
  } catch (const std::system_error& failure) {
    error = failure.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(ran, 0);
  EXPECT_THAT(error, AllOf(HasSubstr("of 4000 threads of the simulation could be started"),
                           HasSubstr("ulimit -u"), HasSubstr("ulimit -v")));
}

}  // namespace
}  // namespace accelerate::simulator
