// Windows of micro-batches in virtual time: makespans are those of the cost model, whichever rank
// is late nothing comes to a standstill, and gradients are the same bits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/pipeline/stage_messages.h"
#include "accelerate/parallel/pipeline/window.h"
#include "accelerate/pipeline/costs.h"
#include "accelerate/pipeline/schedule.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using pipeline::Action;
using pipeline::Pass;
using pipeline::PipelineCosts;
using pipeline::Schedule;
using pipeline::ScheduleKind;
using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;
using enum pipeline::ScheduleKind;

int stages_per_rank(ScheduleKind kind) {
  return kind == kGpipe || kind == k1f1b || kind == kZeroBubbleH1 ? 1 : 2;
}

Schedule made(ScheduleKind kind, int ranks, int micro_batches) {
  return make_schedule(kind, {.ranks = ranks,
                              .stages_per_rank = stages_per_rank(kind),
                              .micro_batches = micro_batches})
      .value();
}

using ActionTime = std::function<int64_t(const Action& action)>;  // in nanoseconds

// A rank's part of a window in which each stage multiplies by a weight of its own. Returns the time
// from a moment that all ranks have in common to the end.
class RankWindow {
 public:
  RankWindow(Rank& rank, const Schedule& schedule)
      : rank_(rank),
        schedule_(schedule),
        mesh_(Mesh(MeshSizes{.pp = static_cast<int>(schedule.ranks.size())}), rank.runtime()),
        channels_(stage_ranks(schedule), mesh_) {
    const at::TensorOptions options(rank.runtime().device());
    for (int stage = 0; stage < schedule.stages; ++stage) {
      weights_.push_back(torch::full({3}, 1 + 0.1 * (stage + 1), options).set_requires_grad(true));
    }
  }

  int64_t run(const ActionTime& time, absl::Time start) {
    Runtime& runtime = rank_.runtime();
    runtime.sleep_for(std::max(start - runtime.now(), absl::ZeroDuration()));
    const auto spend = [&](const Action& action) {
      // What the action needs has come when its kernels begin.
      if (rank_.device() != nullptr) rank_.device()->synchronize();
      runtime.sleep_for(absl::Nanoseconds(time(action)));
    };
    StageWork work;
    work.input = [&](int i) {
      return torch::full({3}, 0.3 * (i + 1), at::TensorOptions(runtime.device()));
    };
    work.forward = [&](int stage, int i, Tensor x) {
      spend({Pass::kForward, stage, i});
      return x * weights_[static_cast<size_t>(stage)];
    };
    work.loss = [](const Tensor& output, int) { return output.sum(); };
    work.backward = [&](const Action& action, const Tensor& root, const Tensor& gradient, bool) {
      spend(action);
      root.backward(gradient);
    };
    work.late_gradients = spend;
    WindowMessages messages(
        channels_, schedule_,
        std::vector<BatchSignature>(static_cast<size_t>(schedule_.micro_batches), {3}),
        runtime.device());
    run_window(schedule_, channels_.rank(), &messages, work);
    if (rank_.device() != nullptr) rank_.device()->synchronize();
    return absl::ToInt64Nanoseconds(runtime.now() - start);
  }

  // The gradients of this rank's stages.
  std::vector<Tensor> gradients() const {
    std::vector<Tensor> gradients;
    for (const Tensor& weight : weights_) {
      if (weight.grad().defined()) gradients.push_back(weight.grad().cpu());
    }
    return gradients;
  }

 private:
  Rank& rank_;
  const Schedule& schedule_;
  const DeviceMesh mesh_;
  StageChannels channels_;
  std::vector<Tensor> weights_;
};

// From the common start to the end of the last rank. A window before has told all shapes.
int64_t makespan_ns(const std::string& cluster, const Schedule& schedule, const ActionTime& time) {
  std::vector<int64_t> ends(schedule.ranks.size());
  Cluster(cluster).run_on_every_rank([&](Rank& rank) {
    const absl::Time begin = rank.runtime().now();
    RankWindow window(rank, schedule);
    window.run([](const Action&) { return 0; }, begin + absl::Seconds(1));
    ends[static_cast<size_t>(rank.index())] = window.run(time, begin + absl::Seconds(2));
  });
  return *std::ranges::max_element(ends);
}

ActionTime time_of(const PipelineCosts& costs) {
  return [costs](const Action& action) {
    const auto& [forward, input, weight] = costs.stages[0];
    switch (action.pass) {
      case Pass::kForward: return forward;
      case Pass::kBackward: return input + weight;
      case Pass::kInputGradient: return input;
      case Pass::kWeightGradient: return weight;
    }
    return int64_t{0};
  };
}

// A rank's forward pass and the halves of its backward pass take one unit each.
PipelineCosts even_costs(ScheduleKind kind, int64_t unit_ns, int64_t hop_ns = 0) {
  const int64_t each = unit_ns / stages_per_rank(kind);
  return {.stages = {{each, each, each}}, .hop_ns = hop_ns};
}

std::string without_hardware(int ranks) { return absl::StrCat("1x", ranks); }

// Devices on which nothing takes time but a message, from one to the other.
std::string with_devices(int ranks, int64_t hop_ns) {
  return absl::StrCat(R"({"num_nodes": 1, "ranks_per_node": )", ranks, R"(,
      "device": {"name": "even", "family": "gpu", "memory_bytes": "1GiB",
                 "memory_bytes_per_second": 1e15, "flops_per_second": {"fp32": 1e18},
                 "launch_ns": 0, "kernel_ns_min": 0},
      "node_fabric": "mesh", "node_link": {"bytes_per_second": 1e15, "latency_ns": )",
                      hop_ns, "}}");
}

TEST(Makespans, AreThoseOfTheCostModelToTheNanosecond) {
  for (const int ranks : {2, 4, 8}) {
    for (const int micro_batches : {ranks, 2 * ranks}) {
      for (const ScheduleKind kind : values<ScheduleKind>()) {
        const Schedule schedule = made(kind, ranks, micro_batches);
        const PipelineCosts costs = even_costs(kind, 1000);
        for (const std::string& cluster : {without_hardware(ranks), with_devices(ranks, 0)}) {
          EXPECT_EQ(makespan_ns(cluster, schedule, time_of(costs)),
                    schedule_times(schedule, costs).value().makespan_ns)
              << to_string(kind) << " " << micro_batches << " " << cluster;
        }
      }
    }
  }
}

// The closed forms, in units of a forward pass.
TEST(Makespans, AreTheClosedForms) {
  struct Form {
    ScheduleKind kind;
    int ranks, micro_batches;
    double units;
  };
  for (const auto& [kind, ranks, micro_batches, units] :
       {Form{kGpipe, 2, 4, 15}, Form{k1f1b, 2, 4, 15}, Form{kInterleaved, 2, 4, 13.5},
        Form{kLoopedBreadthFirst, 2, 4, 13.5}, Form{kZeroBubbleH1, 2, 4, 13},
        Form{kZeroBubbleV, 2, 4, 12.5}, Form{kGpipe, 4, 8, 33}, Form{k1f1b, 4, 8, 33},
        Form{kInterleaved, 4, 8, 28.5}, Form{kLoopedBreadthFirst, 4, 8, 28.5},
        Form{kZeroBubbleH1, 4, 8, 27}, Form{kZeroBubbleV, 4, 8, 25.5}, Form{kGpipe, 8, 16, 69},
        Form{k1f1b, 8, 16, 69}, Form{kInterleaved, 8, 16, 58.5},
        Form{kLoopedBreadthFirst, 8, 16, 58.5}, Form{kZeroBubbleH1, 8, 16, 55},
        Form{kZeroBubbleV, 8, 16, 51.5}}) {
    for (const std::string& cluster : {without_hardware(ranks), with_devices(ranks, 0)}) {
      EXPECT_EQ(
          makespan_ns(cluster, made(kind, ranks, micro_batches), time_of(even_costs(kind, 1000))),
          static_cast<int64_t>(units * 1000))
          << to_string(kind) << " " << cluster;
    }
  }
}

// A receive that is posted early keeps no other message back: the hops are all there is besides the
// actions.
TEST(Makespans, WithHopsAreNotLonger) {
  constexpr int64_t kUnit = 200'000, kHop = kUnit / 10;
  struct Form {
    ScheduleKind kind;
    double units;
  };
  for (const auto& [kind, units] : {Form{kGpipe, 33.6}, Form{k1f1b, 34.6}, Form{kInterleaved, 29.9},
                                    Form{kZeroBubbleH1, 28.2}}) {
    EXPECT_EQ(
        makespan_ns(with_devices(4, kHop), made(kind, 4, 8), time_of(even_costs(kind, kUnit))),
        std::llround(units * kUnit))
        << to_string(kind);
  }
}

// Receives that are posted two ahead are enough for every schedule, also where a message waits for
// its receiver.
TEST(Makespans, WithHopsAreThoseOfTheCostModelInEachSchedule) {
  constexpr int64_t kUnit = 200'000, kHop = kUnit / 10;
  for (const int ranks : {2, 4, 8}) {
    for (const ScheduleKind kind : values<ScheduleKind>()) {
      const Schedule schedule = made(kind, ranks, 2 * ranks);
      const PipelineCosts costs = even_costs(kind, kUnit, kHop);
      EXPECT_EQ(makespan_ns(with_devices(ranks, kHop), schedule, time_of(costs)),
                schedule_times(schedule, costs).value().makespan_ns)
          << to_string(kind) << " " << ranks;
    }
  }
}

// ---- Ranks that are late.

// The gradients of all stages. Actions take any time, and those of one rank a hundred times that.
std::vector<Tensor> gradients_with_a_late_rank(const Schedule& schedule, uint32_t seed) {
  const auto ranks = static_cast<int>(schedule.ranks.size());
  std::vector<std::vector<Tensor>> all(schedule.ranks.size());
  Cluster(without_hardware(ranks), {.seed = seed}).run_on_every_rank([&](Rank& rank) {
    const absl::Time begin = rank.runtime().now();
    std::mt19937 draw(seed * 64 + static_cast<uint32_t>(rank.index()));
    const int64_t factor = rank.index() == static_cast<int>(seed) % ranks ? 100 : 1;
    RankWindow window(rank, schedule);
    window.run([&](const Action&) { return factor * static_cast<int64_t>(draw() % 1000); },
               begin + absl::Milliseconds(draw() % 10));
    all[static_cast<size_t>(rank.index())] = window.gradients();
  });
  std::vector<Tensor> gradients;
  for (const auto& each : all) gradients.insert(gradients.end(), each.begin(), each.end());
  return gradients;
}

void expect_same_bits(const Schedule& schedule, uint32_t seeds, const std::string& what) {
  const std::vector<Tensor> first = gradients_with_a_late_rank(schedule, 1);
  ASSERT_EQ(first.size(), static_cast<size_t>(schedule.stages)) << what;
  for (uint32_t seed = 2; seed <= seeds; ++seed) {
    const std::vector<Tensor> gradients = gradients_with_a_late_rank(schedule, seed);
    ASSERT_EQ(gradients.size(), first.size()) << what << " seed " << seed;
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(gradients[i].equal(first[i])) << what << " seed " << seed;
    }
  }
}

// As many as ci/parallel.sh says, else some.
uint32_t num_seeds() {
  uint32_t seeds = 0;
  const char* const given = std::getenv("ACCELERATE_PIPELINE_SEEDS");
  return given != nullptr && absl::SimpleAtoi(given, &seeds) ? seeds : 12;
}

TEST(LateRanks, ChangeNoGradient) {
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    expect_same_bits(made(kind, 4, 8), num_seeds(), to_string(kind));
  }
}

TEST(LateRanks, EndInPipelinesOfAnyLength) {
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    for (const int ranks : {2, 3, 5, 8}) {
      expect_same_bits(made(kind, ranks, ranks), 3, absl::StrCat(to_string(kind), " ", ranks));
      expect_same_bits(made(kind, ranks, 2 * ranks), 2, absl::StrCat(to_string(kind), " ", ranks));
    }
  }
}

}  // namespace
}  // namespace accelerate
