// The watch over Gloo, ranks being threads that share one store.
#include "accelerate/comm/watch/watched_backend.h"

#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/backends/gloo/gloo_backend.h"
#include "accelerate/comm/watch/job_watch.h"
#include "accelerate/comm/watch/rank_dump.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr std::chrono::milliseconds kImpatience(500);
constexpr std::chrono::seconds kPatience(60);

struct Member {
  int rank = 0;
  std::shared_ptr<JobWatch> job;
  c10::intrusive_ptr<WatchedBackend> group;
  c10::intrusive_ptr<WatchedBackend> other = nullptr;  // of the same ranks
  std::vector<std::shared_ptr<void>> interrupts = {};  // of comparers, when the job fails
};

// How members compare their calls.
enum class Debug { kOff, kConnections, kSharedMemory, kOnRequest };
constexpr Debug kDebugModes[] = {Debug::kConnections, Debug::kSharedMemory};

struct Job {
  int ranks = 2;
  Debug debug = Debug::kOff;
  std::chrono::milliseconds timeout = kPatience;
  absl::Duration grace = absl::Seconds(2);
  absl::Duration patience = absl::Seconds(30);
  std::function<void(const std::string&)> say = nullptr;
  bool has_two_groups = false;
  bool fails_crossed = false;
  std::string dump_folder = {};
};

// Runs `body` on each rank. Returns each rank's error, empty where there was none.
std::vector<std::string> run(const Job& options, const std::function<void(Member&)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(options.ranks);
  std::vector<Member> members(options.ranks);  // end together
  std::vector<int> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) ranks.push_back(rank);
  auto gloo = [&](const std::string& name, int rank) {
    return c10::make_intrusive<GlooBackend>(
        BackendOptions{.store = c10::make_intrusive<c10d::PrefixStore>(name, store),
                       .rank = rank,
                       .size = options.ranks,
                       .timeout = options.timeout});
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Member& self = members[rank];
      self.rank = rank;
      self.job =
          std::make_shared<JobWatch>(JobWatch::Options{.rank = rank,
                                                       .world_size = options.ranks,
                                                       .connect = [store] { return store; },
                                                       .grace = options.grace,
                                                       .patience = options.patience,
                                                       .fails_crossed = options.fails_crossed,
                                                       .say = options.say,
                                                       .dump_folder = options.dump_folder});
      const auto made = [&](const std::string& name) {
        WatchedBackend::Options watch{.timeout = options.timeout};
        watch.compares_all = options.debug != Debug::kOnRequest;
        auto group = gloo(name, rank);
        if (options.debug == Debug::kConnections) {
          watch.comparer = std::make_shared<GlooComparer>(gloo(name + " words", rank));
        } else if (options.debug == Debug::kSharedMemory) {
          const auto calls = c10::make_intrusive<c10d::PrefixStore>(name + " calls", store);
          watch.comparer = SharedMemoryComparer::make(*calls, rank, options.ranks);
        } else if (options.debug == Debug::kOnRequest) {
          watch.comparer = std::make_shared<GlooComparer>(group);
        }
        if (watch.comparer) {
          self.interrupts.push_back(
              self.job->on_failure([comparer = watch.comparer] { comparer->interrupt(); }));
        }
        const int index = self.job->log().add_group(name, ranks);
        auto watched = c10::make_intrusive<WatchedBackend>(
            std::move(group),
            WatchedGroup{
                .job = self.job, .name = name, .ranks = ranks, .rank = rank, .index = index},
            watch);
        self.job->log().group_is_made(index);
        return watched;
      };
      self.group = made("world");
      if (options.has_two_groups) self.other = made("other");
      try {
        body(self);
      } catch (const c10::Error& error) {
        errors[rank] = error.what_without_backtrace();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void all_reduce(Member& self, at::Tensor tensor) {
  Tensors tensors{std::move(tensor)};
  self.group->allreduce(tensors, {})->wait();
}

void broadcast(Member& self, int root) {
  Tensors tensors{at::ones({2})};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  self.group->broadcast(tensors, options)->wait();
}

TEST(WatchedBackend, GivesWhatTheBackendGives) {
  for (Debug debug : {Debug::kOff, Debug::kConnections, Debug::kSharedMemory}) {
    const auto errors = run({.ranks = 3, .debug = debug}, [](Member& self) {
      Tensors tensors{at::full({2}, self.rank + 1.0)};
      auto future = self.group->allreduce(tensors, {})->getFuture();
      future->wait();
      EXPECT_EQ(tensors[0][1].item<float>(), 6);
      at::Tensor all = at::empty({3}), own = at::full({1}, self.rank * 1.0);
      self.group->_allgather_base(all, own, {})->wait();
      EXPECT_EQ(all[2].item<float>(), 2);
      EXPECT_EQ(self.job->log().snapshot().operations.back().state, OperationState::kDone);
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
  }
}

TEST(WatchedBackend, NamesWhoDoesNotComeToAllThatWaitAndToWhoeverComesLater) {
  auto store_key = std::make_shared<std::promise<void>>();
  std::shared_future<void> failed = store_key->get_future().share();
  const auto errors = run({.ranks = 3, .timeout = kImpatience}, [&](Member& self) {
    all_reduce(self, at::ones({1}));
    if (self.rank == 1) {
      failed.wait();
      return all_reduce(self, at::ones({1}));
    }
    try {
      all_reduce(self, at::ones({1}));
    } catch (...) {
      if (self.rank == 0) store_key->set_value();
      throw;
    }
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #1 (sum, Float[1]) of group \"world\" failed"),
                             HasSubstr("rank 1: 1 operation behind, its last was all_reduce #0")));
    EXPECT_EQ(error, errors[0]);
  }
}

// What ranks say about an operation that lasts, and a wait until one has.
class Said {
 public:
  void say(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
    if (lines_.size() == 1) first_.set_value();
  }
  void wait() const { came_.wait(); }
  /// Whether a line comes in this time.
  bool comes_within(std::chrono::milliseconds time) const {
    return came_.wait_for(time) == std::future_status::ready;
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  std::promise<void> first_;
  const std::shared_future<void> came_ = first_.get_future().share();
};

TEST(WatchedBackend, SaysOnceWhoIsLateAndFailsNothing) {
  Said said;
  const auto errors = run({.ranks = 3,
                           .patience = absl::Milliseconds(60),
                           .say = [&](const std::string& line) { said.say(line); }},
                          [&](Member& self) {
                            all_reduce(self, at::ones({1}));
                            if (self.rank == 1) said.wait();
                            all_reduce(self, at::ones({1}));
                          });
  EXPECT_EQ(errors, std::vector<std::string>(3));
  ASSERT_EQ(said.lines().size(), 1);
  EXPECT_THAT(said.lines()[0],
              ::testing::MatchesRegex("accelerate: rank [02] has waited for more than 60ms in "
                                      "all_reduce #1 \\(sum, Float\\[1\\]\\) of group \"world\"; "
                                      "behind: rank 1: 1 operation behind, its last was "
                                      "all_reduce #0 \\(sum, Float\\[1\\]\\), done\n"));
}

// As one whose process is stopped.
TEST(WatchedBackend, SaysWhoDoesNotAnswer) {
  Said said;
  const auto errors = run({.ranks = 3,
                           .grace = absl::Milliseconds(100),
                           .patience = absl::Milliseconds(60),
                           .say = [&](const std::string& line) { said.say(line); }},
                          [&](Member& self) {
                            if (self.rank > 0) {
                              self.job->stop();
                              said.wait();
                            }
                            all_reduce(self, at::ones({1}));
                          });
  EXPECT_EQ(errors, std::vector<std::string>(3));
  ASSERT_EQ(said.lines().size(), 1);
  EXPECT_THAT(said.lines()[0],
              HasSubstr("; behind: ranks 1-2: did not answer (gone or unreachable)\n"));
}

TEST(WatchedBackend, SaysOnceWhichCallDiffers) {
  Said said;
  const auto errors = run({.timeout = 4 * kImpatience,
                           .patience = absl::Milliseconds(200),
                           .say = [&](const std::string& line) { said.say(line); }},
                          [&](Member& self) {
                            all_reduce(self, at::ones({1}));
                            if (self.rank == 0) {
                              all_reduce(self, at::ones({1}));
                            } else {
                              self.group->barrier({})->wait();
                            }
                          });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("collective mismatch in call #1")));
  ASSERT_EQ(said.lines().size(), 1);
  EXPECT_THAT(said.lines()[0],
              ::testing::MatchesRegex("accelerate: rank [01] has waited for more than 200ms in .* "
                                      "of group \"world\"; collective mismatch in call #1 of group "
                                      "\"world\": .*; rank 0: all_reduce #1 .*; rank 1: barrier #1"
                                      "\n"));
}

TEST(WatchedBackend, SaysNothingOfAnOperationThatNobodyHoldsUp) {
  Said said;
  const auto errors = run(
      {.patience = absl::Milliseconds(15), .say = [&](const std::string& line) { said.say(line); }},
      [&](Member& self) {
        Tensors tensors{at::ones({1})};
        const auto work = self.group->allreduce(tensors, {});
        EXPECT_FALSE(said.comes_within(std::chrono::milliseconds(100)));
        work->wait();
      });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(said.lines(), std::vector<std::string>());
}

TEST(WatchedBackend, WritesWhatEachRankDidLast) {
  const std::string folder = ::testing::TempDir() + "/watched_backend_dumps";
  // More than ranks send to each other.
  constexpr uint64_t kBefore = OperationLog::kShared + 6;
  const auto errors = run({.timeout = kImpatience, .dump_folder = folder}, [](Member& self) {
    for (uint64_t i = 0; i < kBefore; ++i) all_reduce(self, at::ones({3}));
    if (self.rank == 0) all_reduce(self, at::ones({4}));
  });
  EXPECT_THAT(errors[0], HasSubstr("all_reduce #70"));
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream file(folder + "/" + rank_dump_file(rank));
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const RankDump dump = parse_rank_dump(text);
    EXPECT_EQ(dump.history.rank, rank);
    EXPECT_EQ(dump.history.groups.at(0).collectives, kBefore + (rank == 0 ? 1 : 0));
    EXPECT_EQ(dump.history.operations.size(), dump.history.groups.at(0).collectives);
    EXPECT_EQ(dump.members.at(0), (std::vector<int>{0, 1}));
  }
}

TEST(WatchedBackend, FailsFuturesWithTheReport) {
  const auto errors = run({.timeout = kImpatience}, [](Member& self) {
    if (self.rank == 1) return;
    Tensors tensors{at::ones({1})};
    const auto future = self.group->allreduce(tensors, {})->getFuture();
    future->wait();
    EXPECT_TRUE(future->hasError());
    future->value();
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 1: 1 operation behind"));
}

// One rank's failure ends what others wait for, long before their own time-out.
TEST(WatchedBackend, EndsWaitsOfOtherRanks) {
  const auto errors = run({.ranks = 3}, [](Member& self) {
    if (self.rank == 2) {
      self.job->fail_explained({.reason = "rank 2 failed: out of patience"});
      self.job->check();
    }
    self.group->barrier({})->wait();
  });
  EXPECT_EQ(errors, std::vector<std::string>(3, "rank 2 failed: out of patience"));
}

TEST(WatchedBackend, LeavesTheJobAloneWhenACallIsWrongByItself) {
  for (Debug debug : {Debug::kOff, Debug::kConnections, Debug::kSharedMemory}) {
    const auto errors = run({.debug = debug}, [](Member& self) {
      Tensors nothing;
      EXPECT_ANY_THROW(self.group->allreduce(nothing, {}));
      at::Tensor small = at::empty({3}), own = at::ones({2});
      EXPECT_ANY_THROW(self.group->_allgather_base(small, own, {}));
      all_reduce(self, at::ones({1}));
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
  }
}

TEST(DebugMode, NamesTheRanksThatDifferBeforeAnythingRuns) {
  struct Case {
    const char* expected;
    std::function<void(Member&)> odd;  // what rank 1 does
  };
  const Case cases[] = {
      {"operation all_reduce against barrier",
       [](Member& self) { self.group->barrier({})->wait(); }},
      {"shape Float[2] against Float[3]", [](Member& self) { all_reduce(self, at::ones({3})); }},
      {"dtype Float[2] against Double[2]",
       [](Member& self) { all_reduce(self, at::ones({2}, at::kDouble)); }},
      {"operation all_reduce against broadcast",  // in another order
       [](Member& self) {
         broadcast(self, 0);
         all_reduce(self, at::ones({2}));
       }},
      {"reduce op sum against max",
       [](Member& self) {
         Tensors tensors{at::ones({2})};
         c10d::AllreduceOptions options;
         options.reduceOp = c10d::ReduceOp::MAX;
         self.group->allreduce(tensors, options)->wait();
       }},
  };
  for (Debug debug : kDebugModes) {
    for (const Case& c : cases) {
      const auto errors = run({.ranks = 3, .debug = debug}, [&](Member& self) {
        if (self.rank == 1) return c.odd(self);
        all_reduce(self, at::ones({2}));
        ADD_FAILURE() << "it was done: " << c.expected;
      });
      for (const std::string& error : errors) {
        EXPECT_THAT(error, AllOf(HasSubstr("collective mismatch in call #0 of group \"world\""),
                                 HasSubstr(c.expected), HasSubstr("ranks 0, 2: all_reduce"),
                                 HasSubstr("rank 1: ")));
        EXPECT_EQ(error, errors[0]);
      }
    }
  }
}

// Outside of debug mode, over the connections of the operations themselves, which run at that time.
TEST(ComparedCalls, AreComparedWhereCodeAsksForIt) {
  const auto errors = run({.ranks = 3, .debug = Debug::kOnRequest}, [](Member& self) {
    Tensors pending{at::full({1000}, self.rank * 1.0)};
    const auto work = self.group->allreduce(pending, {});
    {
      const ComparedCalls compared;
      EXPECT_TRUE(ComparedCalls::current());
      all_reduce(self, at::ones({2}));
    }
    EXPECT_FALSE(ComparedCalls::current());
    work->wait();
    EXPECT_EQ(pending[0][999].item<float>(), 3);
    const std::string purpose = self.rank == 1 ? "gather of {1}" : "gather of {2}";
    const CollectivePurpose named(purpose);
    const ComparedCalls compared;
    all_reduce(self, at::ones({2}));
    ADD_FAILURE() << "it was done";
  });
  // The report names the first call that differs, which was not compared itself.
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("call #2"), HasSubstr("gather of {2} against gather of {1}"),
                             HasSubstr("rank 1: ")));
  }
}

// The root of a broadcast could go on without the others.
TEST(DebugMode, ComparesRoots) {
  for (Debug debug : kDebugModes) {
    const auto errors = run({.debug = debug}, [](Member& self) { broadcast(self, self.rank); });
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("root 0 against 1"));
  }
}

TEST(DebugMode, NamesWhoDoesNotCome) {
  for (Debug debug : kDebugModes) {
    for (bool root : {false, true}) {
      const auto errors = run({.debug = debug, .timeout = kImpatience}, [&](Member& self) {
        if (self.rank == 0) root ? broadcast(self, 0) : all_reduce(self, at::ones({2}));
      });
      EXPECT_THAT(errors[0], HasSubstr("rank 1: 1 operation behind"));
    }
  }
}

// Long before the operations time out.
TEST(DebugMode, NamesRanksThatEnterGroupsInDifferentOrders) {
  for (Debug debug : kDebugModes) {
    const auto errors = run({.debug = debug,
                             .patience = absl::Milliseconds(60),
                             .say = [](const std::string&) {},
                             .has_two_groups = true,
                             .fails_crossed = true},
                            [](Member& self) {
                              const bool is_first = self.rank == 0;
                              for (const auto& group : {is_first ? self.group : self.other,
                                                        is_first ? self.other : self.group}) {
                                Tensors tensors{at::ones({1})};
                                group->allreduce(tensors, {})->wait();
                              }
                            });
    for (const std::string& error : errors) {
      EXPECT_THAT(error,
                  HasSubstr("ranks 0 and 1 entered groups in different orders: rank 0 waits in "
                            "all_reduce #0 (sum, Float[1]) of group \"world\", and rank 1 in "
                            "all_reduce #0 (sum, Float[1]) of group \"other\""));
    }
  }
}

// A gradient bucket need not wait for slower ranks: only who waits for it does.
TEST(DebugMode, HoldsNobodyUpWhoDoesNotWait) {
  std::promise<void> issued;
  std::shared_future<void> all_issued = issued.get_future().share();
  const auto errors = run({.debug = Debug::kSharedMemory}, [&](Member& self) {
    std::vector<Tensors> buckets;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    if (self.rank == 1) all_issued.wait();
    for (int i = 0; i < 5; ++i) {
      buckets.push_back({at::full({4}, self.rank + 1.0)});
      works.push_back(self.group->allreduce(buckets.back(), {}));
    }
    if (self.rank == 0) issued.set_value();
    for (const auto& work : works) work->wait();
    for (const Tensors& bucket : buckets) EXPECT_EQ(bucket[0][0].item<float>(), 3);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(DebugMode, RefusesTensorsOfAnotherDevice) {
  const auto errors = run({.debug = Debug::kSharedMemory}, [](Member& self) {
    all_reduce(self, at::ones({2}, at::device(at::kMeta)));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("a tensor is on meta"), HasSubstr("compute on cpu")));
  }
}

}  // namespace
}  // namespace accelerate
