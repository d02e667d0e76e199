// Collectives of two axes of a mesh at the same time: what they take does not depend on the order
// in which ranks run, and no order of calls hangs.
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Tensors = std::vector<at::Tensor>;

constexpr char kSpec[] = "1x4:h100,efficiency=ideal,link=450GB/s,link_latency=1ns";
constexpr int64_t kBytes = int64_t{256} << 20;

// A rank's groups in a mesh of rows {0, 1}, {2, 3} and columns {0, 2}, {1, 3}.
struct Axes {
  Group row;
  Group column;
};

Group group_of(Rank& rank, const std::vector<int>& ranks) {
  return rank.runtime().new_group({.ranks = ranks, .name = absl::StrCat(ranks[0], "-", ranks[1])});
}

Axes axes_of(Rank& rank) {
  const int first_of_row = rank.index() / 2 * 2;
  const int first_of_column = rank.index() % 2;
  return {.row = group_of(rank, {first_of_row, first_of_row + 1}),
          .column = group_of(rank, {first_of_column, first_of_column + 2})};
}

at::Tensor on_device(Rank& rank, int64_t bytes) {
  return at::ones({bytes / 4}, at::TensorOptions(rank.runtime().device()));
}

// The time from the first call to the end of the last one, by rank.
std::vector<int64_t> times_of(uint64_t seed, bool both_axes) {
  Cluster cluster(kSpec, {.seed = seed, .numerics = Numerics::kShapes});
  std::vector<int64_t> times(4);
  cluster.run_on_every_rank([&](Rank& rank) {
    SimDevice& device = *rank.device();
    const Axes axes = axes_of(rank);
    Tensors row{on_device(rank, kBytes)}, column{on_device(rank, kBytes)};
    device.synchronize();
    const int64_t start_ns = device.host_ns();
    auto first = axes.row->allreduce(row);
    if (both_axes) axes.column->allreduce(column)->wait();
    first->wait();
    device.synchronize();
    times[rank.index()] = device.host_ns() - start_ns;
  });
  return times;
}

TEST(SharedLinks, TwoAxesAtOnceTakeTheTimeOfBothWithEverySeed) {
  const std::vector<int64_t> alone = times_of(1, false);
  const std::vector<int64_t> both = times_of(1, true);
  EXPECT_NEAR(static_cast<double>(both[0]) / static_cast<double>(alone[0]), 2, 0.02);
  for (const int64_t each : both) EXPECT_EQ(each, both[0]);
  for (uint64_t seed = 2; seed < 12; ++seed) EXPECT_EQ(times_of(seed, true), both) << seed;
}

struct Ends {
  double small_ns;
  double next_ns;
};

// A row's collective that is called while a column's runs, and the end of the column's next one.
Ends ends_beside(int64_t bytes_of_column) {
  Cluster cluster(kSpec, {.seed = 1, .numerics = Numerics::kShapes});
  cluster.run_on_every_rank([&](Rank& rank) {
    SimDevice& device = *rank.device();
    const Axes axes = axes_of(rank);
    Tensors large{on_device(rank, bytes_of_column)}, small{on_device(rank, kBytes / 4)};
    device.synchronize();
    const auto start_ns = static_cast<double>(device.host_ns());
    const auto passed_ns = [&] {
      return static_cast<double>(device.stream_ns(device.current_stream())) - start_ns;
    };
    auto first = axes.column->allreduce(large);
    axes.row->allreduce(small)->wait();
    rank.report("small", passed_ns());
    first->wait();
    axes.column->allreduce(small)->wait();
    rank.report("next", passed_ns());
  });
  return {.small_ns = cluster.reports("small")[0].item<double>(),
          .next_ns = cluster.reports("next")[0].item<double>()};
}

// The short one does not wait for the long one: each has half of the links. What the short one
// takes is added to the long one's time, which the next one of its group sees.
TEST(SharedLinks, AShortCollectiveDelaysALongOnesGroup) {
  const Ends alone = ends_beside(4);
  const Ends beside = ends_beside(2 * kBytes);
  EXPECT_NEAR(beside.small_ns / alone.small_ns, 2, 0.1);
  // Times of 8, 1 and 1, one after another, instead of 1 and 1.
  EXPECT_NEAR(beside.next_ns / alone.next_ns, 5, 0.3);
}

// What runs to its end although a time has to be found before that of an earlier call.
class Orders : public ::testing::TestWithParam<uint64_t> {
 protected:
  void run(const std::function<void(Rank&)>& body) {
    Cluster cluster(kSpec, {.seed = GetParam(), .numerics = Numerics::kShapes});
    cluster.run_on_every_rank(body);
    EXPECT_LT(cluster.elapsed(), absl::Seconds(2));
  }
};

// Real libraries may hang here, those of CPUs do not.
TEST_P(Orders, TwoGroupsThatRanksCallInDifferentOrders) {
  run([](Rank& rank) {
    if (rank.index() > 1) return;
    Group groups[] = {group_of(rank, {0, 1}),
                      rank.runtime().new_group({.ranks = {0, 1}, .name = "other"})};
    if (rank.index() == 1) std::swap(groups[0], groups[1]);
    Tensors a{on_device(rank, kBytes)}, b{on_device(rank, kBytes)};
    auto first = groups[0]->allreduce(a);
    auto second = groups[1]->allreduce(b);
    first->wait();
    second->wait();
  });
}

// Rank 1 joins rank 0's first collective after it has heard from it, which is after the second.
void joins_late(Rank& rank, const std::function<void(c10d::Work&)>& wait) {
  const auto store = rank.runtime().store();
  Tensors a{on_device(rank, kBytes)}, b{on_device(rank, kBytes)};
  if (rank.index() == 0) {
    auto first = group_of(rank, {0, 1})->allreduce(a);
    wait(*group_of(rank, {0, 2})->allreduce(b));
    store->set("second", "done");
    first->wait();
  } else if (rank.index() == 1) {
    const Group row = group_of(rank, {0, 1});
    store->wait({"second"});
    row->allreduce(a)->wait();
  } else if (rank.index() == 2) {
    group_of(rank, {0, 2})->allreduce(b)->wait();
  }
}

TEST_P(Orders, AnEarlierCallThatNeedsALaterOne) {
  run([](Rank& rank) { joins_late(rank, [](c10d::Work& work) { work.wait(); }); });
}

TEST_P(Orders, ALaterOneThatIsPolled) {
  run([](Rank& rank) {
    joins_late(rank, [](c10d::Work& work) {
      while (!work.isCompleted()) {
      }
    });
  });
}

TEST_P(Orders, ALaterOneWithATimeOut) {
  run([](Rank& rank) {
    joins_late(rank, [](c10d::Work& work) { work.wait(std::chrono::milliseconds(500)); });
  });
}

TEST_P(Orders, AnEarlierCallThatNobodyElseMakes) {
  run([](Rank& rank) {
    Tensors a{on_device(rank, kBytes)}, b{on_device(rank, kBytes)};
    c10::intrusive_ptr<c10d::Work> never;
    if (rank.index() == 0) never = group_of(rank, {0, 3})->allreduce(a);
    if (rank.index() < 2) group_of(rank, {0, 1})->allreduce(b)->wait();
    if (!never) return;
    never->abort();
    EXPECT_THROW(never->wait(), c10::DistBackendError);
  });
}

// With a limit that passes before the collective is ready on its device.
TEST_P(Orders, ALimitBeforeTheDataIsReady) {
  run([](Rank& rank) {
    Tensors a{on_device(rank, kBytes)}, b{on_device(rank, kBytes)};
    c10::intrusive_ptr<c10d::Work> first;
    if (rank.index() == 0) first = group_of(rank, {0, 1})->allreduce(a);
    if (rank.index() == 0 || rank.index() == 2) {
      rank.device()->stream_waits(rank.device()->current_stream(), int64_t{500'000'000});
      EXPECT_TRUE(group_of(rank, {0, 2})->allreduce(b)->wait(std::chrono::milliseconds(100)));
    }
    if (rank.index() == 1) {
      rank.runtime().sleep_for(absl::Milliseconds(300));
      group_of(rank, {0, 1})->allreduce(a)->wait();
    }
    if (first) first->wait();
  });
}

// The host of rank 0 goes on behind a collective that is ready late on its device, and tells
// rank 3.
TEST_P(Orders, AHostThatGoesOnIsHeard) {
  run([](Rank& rank) {
    const auto store = rank.runtime().store();
    Tensors a{on_device(rank, kBytes)}, b{on_device(rank, kBytes)};
    c10::intrusive_ptr<c10d::Work> first;
    if (rank.index() == 0) first = group_of(rank, {0, 1})->allreduce(a);
    if (rank.index() == 0 || rank.index() == 2) {
      rank.device()->stream_waits(rank.device()->current_stream(), int64_t{500'000'000});
      group_of(rank, {0, 2})->allreduce(b)->wait();
    }
    if (rank.index() == 0) store->set("told", "so");
    if (rank.index() == 3) store->wait({"told"}, std::chrono::milliseconds(100));
    if (rank.index() == 1) {
      rank.runtime().sleep_for(absl::Milliseconds(700));
      group_of(rank, {0, 1})->allreduce(a)->wait();
    }
    if (first) first->wait();
  });
}

// A collective that no member has waited for counts for the run's end, whoever ends last.
TEST(SharedLinks, OneThatIsLeftCountsForTheEndWithEverySeed) {
  std::vector<absl::Duration> ends;
  for (uint64_t seed = 1; seed < 9; ++seed) {
    Cluster cluster(kSpec, {.seed = seed, .numerics = Numerics::kShapes, .detect_leaks = false});
    cluster.run_on_every_rank([](Rank& rank) {
      const Axes axes = axes_of(rank);
      Tensors sum{on_device(rank, kBytes)}, other{on_device(rank, kBytes)};
      axes.row->allreduce(sum);
      axes.column->allreduce(other);
    });
    ends.push_back(cluster.elapsed());
  }
  for (const absl::Duration each : ends) EXPECT_EQ(each, ends[0]);
}

// A host that waits for its device waits for the collectives that it has called, although another
// member calls later.
TEST_P(Orders, ASynchronisationOfTheDevice) {
  Cluster cluster(kSpec, {.seed = GetParam(), .numerics = Numerics::kShapes});
  cluster.run_on_every_rank([](Rank& rank) {
    Tensors sum{on_device(rank, kBytes)}, other{on_device(rank, kBytes)};
    const Group world = rank.runtime().new_group({.name = "world"});
    if (rank.index() == 2) rank.runtime().sleep_for(absl::Milliseconds(7));
    auto work = world->allreduce(sum);
    auto second = world->allreduce(other);
    rank.runtime().synchronize_device();
    rank.report("end", static_cast<double>(rank.device()->host_ns()));
    work->wait();
    second->wait();
  });
  const double end_ns = cluster.reports("end")[2].item<double>();
  EXPECT_GT(end_ns, 7e6);
  for (const at::Tensor& each : cluster.reports("end")) EXPECT_EQ(each.item<double>(), end_ns);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Orders, ::testing::Range(uint64_t{1}, uint64_t{6}));

}  // namespace
}  // namespace accelerate::simulator
