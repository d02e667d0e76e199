#include "accelerate/data/worker.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace accelerate {
namespace {

using internal::OrderedWorkers;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

using Values = std::vector<int64_t>;

// A gate that threads wait at until it is opened.
class Gate {
 public:
  void open() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Makes what `make(i)` gives for i in [0, count) and takes it all.
template <typename Make>
Values take_all(const OrderedWorkers::Options& options, int64_t count, const Make& make) {
  std::vector<int64_t> slots(static_cast<size_t>(options.capacity));
  OrderedWorkers workers(options, [&](int64_t i, size_t slot) {
    if (i >= count) return false;
    slots[slot] = make(i);
    return true;
  });
  Values taken;
  while (workers.next([&](size_t slot) { taken.push_back(slots[slot]); })) {
  }
  EXPECT_FALSE(workers.next([](size_t) { FAIL() << "after the end"; }));
  return taken;
}

Values count_to(int64_t count) {
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(i);
  return values;
}

TEST(OrderedWorkers, HandsOutBatchesInOrderWhateverTheirNumberAndCapacity) {
  for (int num_workers : {1, 2, 5}) {
    for (int64_t capacity : {1, 2, 3, 7}) {
      for (int64_t count : {0, 1, 4, 40}) {
        SCOPED_TRACE(testing::Message() << num_workers << " workers, capacity " << capacity);
        EXPECT_EQ(take_all({.num_workers = num_workers, .capacity = capacity}, count,
                           [](int64_t i) { return i; }),
                  count_to(count));
      }
    }
  }
}

// The first worker does not finish before another has: order does not follow from speed.
TEST(OrderedWorkers, WaitsForASlowWorker) {
  Gate second_done;
  EXPECT_EQ(take_all({.num_workers = 2, .capacity = 2}, 2,
                     [&](int64_t i) {
                       if (i == 0) second_done.wait();
                       if (i == 1) second_done.open();
                       return i;
                     }),
            count_to(2));
}

TEST(OrderedWorkers, NeverMakesMoreThanItsCapacityAhead) {
  for (int num_workers : {1, 3}) {
    for (int64_t capacity : {1, 4}) {
      std::atomic<int64_t> made = 0;
      std::atomic<int64_t> taken = 0;
      std::atomic<int64_t> most = 0;
      OrderedWorkers workers(
          {.num_workers = num_workers, .capacity = capacity}, [&](int64_t i, size_t) {
            if (i >= 50) return false;
            // A batch counts as taken before its slot is free, so this is never too many.
            const int64_t ahead = ++made - taken;
            int64_t before = most;
            while (before < ahead && !most.compare_exchange_weak(before, ahead)) {
            }
            return true;
          });
      while (workers.next([&](size_t) { ++taken; })) {
      }
      EXPECT_EQ(made, 50);
      EXPECT_LE(most, capacity);
    }
  }
}

TEST(OrderedWorkers, MakesItsCapacityWithoutBeingAsked) {
  Gate all_made;
  std::atomic<int> made = 0;
  OrderedWorkers workers({.num_workers = 2, .capacity = 6}, [&](int64_t, size_t) {
    if (++made == 6) all_made.open();
    return true;
  });
  all_made.wait();
}

TEST(OrderedWorkers, GivesBatchIToWorkerIModN) {
  std::mutex mutex;
  std::map<int64_t, int> worker_of;
  take_all({.num_workers = 3, .capacity = 5}, 10, [&](int64_t i) {
    std::lock_guard<std::mutex> lock(mutex);
    worker_of[i] = worker_info()->id;
    return i;
  });
  for (const auto& [batch, worker] : worker_of) EXPECT_EQ(worker, batch % 3);
  EXPECT_THAT(worker_of, SizeIs(10));
}

// ---- Failures

TEST(OrderedWorkers, ThrowsWhatABatchThrewInItsTurn) {
  for (int num_workers : {1, 3}) {
    OrderedWorkers workers({.num_workers = num_workers, .capacity = 6}, [](int64_t i, size_t) {
      if (i == 2) throw std::out_of_range("two");
      return true;
    });
    Values taken;
    auto next = [&] { return workers.next([&](size_t slot) { taken.push_back(slot); }); };
    EXPECT_TRUE(next());
    EXPECT_TRUE(next());
    EXPECT_THROW(next(), std::out_of_range);
    EXPECT_THROW(next(), std::out_of_range) << "what comes after is not given";
    EXPECT_THAT(taken, ElementsAre(0, 1));
  }
}

TEST(OrderedWorkers, ThrowsWhatIsNoException) {
  OrderedWorkers workers({}, [](int64_t, size_t) -> bool { throw 5; });
  EXPECT_THROW(workers.next([](size_t) {}), int);
}

TEST(OrderedWorkers, ThrowsWhatTheInitThrew) {
  OrderedWorkers workers({.init = [](const WorkerInfo&) { throw std::logic_error("init"); }},
                         [](int64_t, size_t) { return true; });
  EXPECT_THROW(workers.next([](size_t) {}), std::logic_error);
}

TEST(OrderedWorkers, GivesUpAfterTheTimeOut) {
  Gate gate;
  OrderedWorkers workers({.num_workers = 2, .capacity = 2, .timeout = absl::Milliseconds(1)},
                         [&](int64_t i, size_t) {
                           if (i == 0) gate.wait();
                           return true;
                         });
  try {
    workers.next([](size_t) {});
    FAIL() << "no exception";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("batch 0"), HasSubstr("worker 0"), HasSubstr("1ms")));
  }
  gate.open();
}

TEST(OrderedWorkers, WaitsForEverForAnInfiniteTimeOut) {
  EXPECT_EQ(take_all({.timeout = absl::InfiniteDuration()}, 3, [](int64_t i) { return i; }),
            count_to(3));
}

// ---- The end

TEST(OrderedWorkers, EndsWhileWorkersAreBusyOrWaiting) {
  for (int taken : {0, 3}) {
    std::atomic<int> running = 0;
    {
      OrderedWorkers workers({.num_workers = 3, .capacity = 4}, [&](int64_t, size_t) {
        ++running;
        std::this_thread::yield();
        --running;
        return true;
      });
      for (int i = 0; i < taken; ++i) EXPECT_TRUE(workers.next([](size_t) {}));
    }
    EXPECT_EQ(running, 0) << "threads are joined";
  }
}

TEST(OrderedWorkers, FinishesTheBatchThatIsBeingMade) {
  Gate begun;
  Gate go_on;
  std::atomic<bool> finished = false;
  auto workers = std::make_unique<OrderedWorkers>(OrderedWorkers::Options{}, [&](int64_t, size_t) {
    begun.open();
    go_on.wait();
    finished = true;
    return true;
  });
  begun.wait();
  std::thread opener([&] { go_on.open(); });
  workers.reset();
  EXPECT_TRUE(finished);
  opener.join();
}

// ---- What a worker knows

TEST(WorkerInfo, IsThereOnWorkersOnly) {
  EXPECT_EQ(worker_info(), nullptr);
  std::mutex mutex;
  std::map<int, uint64_t> seeds;
  std::map<int, int> inits;
  const OrderedWorkers::Options options{
      .num_workers = 3, .capacity = 3, .base_seed = 100, .init = [&](const WorkerInfo& info) {
        EXPECT_EQ(worker_info(), &info);
        EXPECT_EQ(info.generator.current_seed(), info.seed);
        std::lock_guard<std::mutex> lock(mutex);
        ++inits[info.id];
      }};
  take_all(options, 12, [&](int64_t i) {
    std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(worker_info()->num_workers, 3);
    EXPECT_EQ(inits[worker_info()->id], 1) << "once, before the first batch";
    seeds[worker_info()->id] = worker_info()->seed;
    return i;
  });
  EXPECT_EQ(seeds, (std::map<int, uint64_t>{{0, 100}, {1, 101}, {2, 102}}));
  EXPECT_EQ(worker_info(), nullptr);
}

// The numbers that each batch draws, however many it draws: batch i draws i % 3 + 1 numbers.
Values draws(OrderedWorkers::Options options, int64_t first = 0, int64_t count = 30) {
  options.place = [first](int64_t i) { return first + i; };
  return take_all(options, count - first, [first](int64_t i) {
    int64_t drawn = 0;
    for (int64_t n = 0; n <= (first + i) % 3; ++n) {
      drawn = at::randint(1 << 30, {}, worker_info()->generator, at::kLong).item<int64_t>();
    }
    return drawn;
  });
}

TEST(WorkerInfo, HasAGeneratorWhoseDrawsFollowFromBaseSeedAndPlaceAlone) {
  const Values all = draws({.capacity = 4, .base_seed = 7});
  for (int num_workers : {1, 2, 3, 5}) {
    EXPECT_EQ(draws({.num_workers = num_workers, .capacity = 6, .base_seed = 7}), all);
    EXPECT_EQ(draws({.num_workers = num_workers, .capacity = 6, .base_seed = 7}, /*first=*/11),
              Values(all.begin() + 11, all.end()));
  }
  EXPECT_NE(draws({.num_workers = 3, .capacity = 4, .base_seed = 8}), all);
  EXPECT_THAT(std::set<int64_t>(all.begin(), all.end()), SizeIs(all.size()));
}

// Generators take 32 bits of a seed: neighbouring base seeds must not share their sequences.
TEST(WorkerInfo, DrawsOtherwiseForANeighbouringBaseSeed) {
  const Values all = draws({.base_seed = 7});
  for (int64_t drawn : draws({.base_seed = 8})) EXPECT_THAT(all, Not(Contains(drawn)));
}

}  // namespace
}  // namespace accelerate
