// Parameters and an optimizer's state on simulated disks: what is computed, what it takes, and what
// becomes of a disk's errors.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/comm/agree.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/optim/step_in_parts.h"
#include "integration_tests/offload/layers_on_disk.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDisk[] = ":h100,disk=1GB/s,disk_latency=10us";

SwapOptions on_disk(int buffers = 2) { return {.folder = "/sim/swap", .buffer_count = buffers}; }

std::vector<double> losses(const std::string& shape, const LayersJob& job, int steps = 4) {
  std::vector<double> losses;
  Cluster cluster(shape + kDisk, {.seed = 3, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    TrainedLayers trained(rank, job);
    for (int step = 0; step < steps; ++step) {
      const double loss = trained.step(step);
      if (rank.index() == 0) losses.push_back(loss);
    }
    for (const auto& each : trained.shards().shards()) {
      EXPECT_EQ(is_absent(each.shard), job.shards_on_disk.has_value() && each.shard.numel() > 0);
    }
  });
  return losses;
}

TEST(DiskOffload, ComputesWhatIsComputedInMemory) {
  for (const auto dtype : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    for (const char* shape : {"1x1", "1x2", "1x3"}) {
      const std::vector<double> in_memory = losses(shape, {.dtype = dtype, .offload = true});
      EXPECT_LT(in_memory.back(), in_memory.front());
      for (const int64_t elements : {0, 300}) {
        EXPECT_EQ(
            losses(shape, {.part_elements = elements, .dtype = dtype, .shards_on_disk = on_disk()}),
            in_memory);
      }
      EXPECT_EQ(losses(shape, {.part_elements = 300,
                               .dtype = dtype,
                               .shards_on_disk = on_disk(1),
                               .rows_on_disk = on_disk(3)}),
                in_memory);
      EXPECT_EQ(losses(shape, {.dtype = dtype, .offload = true, .rows_on_disk = on_disk(1)}),
                in_memory);
    }
  }
}

// 48 MiB of parameters on two ranks: shards, gradients and Adam's state have 96 MiB a rank.
TEST(DiskOffload, TrainsWhatNoDeviceHoldsWithBothOnDisk) {
  LayersJob job{.layers = 12, .width = 1024, .part_elements = 1 << 20};
  const auto train = [&] {
    Cluster cluster(std::string("1x2") + kDisk + ",mem=64MiB,efficiency=ideal",
                    {.disk = std::make_shared<SimDisk>()});
    cluster.run_on_every_rank([&](Rank& rank) {
      TrainedLayers trained(rank, job);
      for (int step = 0; step < 2; ++step) EXPECT_GT(trained.step(step), 0);
      if (trained.on_disk() == nullptr) return;
      const SwapTraffic traffic = trained.on_disk()->disk().traffic();
      EXPECT_GE(traffic.file_bytes, 72 << 20) << "shards and moments of 6 Mi elements";
      EXPECT_LE(traffic.buffer_bytes, 32 << 20) << "two parts of less than 1.5 Mi elements";
    });
  };
  EXPECT_THROW(train(), ClusterError);
  job.shards_on_disk = on_disk();
  job.rows_on_disk = on_disk();
  train();
}

// ---- Time.

// The share of a disk's time that passes beside computation, in rounds of ten parts that are used
// for as long as the disk takes to read and to write them, with time between rounds.
double hidden_share(int buffers, bool pipelined) {
  constexpr int64_t kBytes = 1 << 20;
  constexpr int64_t kBetween = 8 * kBytes;
  constexpr int kParts = 10, kRounds = 3;
  double hidden = 0;
  Cluster cluster(std::string("1x1") + kDisk, {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Runtime& runtime = rank.runtime();
    SwapOptions options = on_disk(buffers);
    options.pipeline_read = options.pipeline_write = pipelined;
    SwappedTensors disk(runtime, options);
    std::vector<SwappedTensors::Part> parts;
    for (int i = 0; i < kParts; ++i) parts.push_back({disk.move("part", torch::ones(kBytes / 4))});
    const absl::Time begin = runtime.now();
    const SwapTraffic before = disk.traffic();
    for (int round = 0; round < kRounds; ++round) {
      disk.begin_round(parts);
      for (int i = 0; i < kParts; ++i) {
        disk.swap_in(i);
        runtime.sleep_for(absl::Nanoseconds(2 * kBytes));
        disk.swap_out(i);
      }
      disk.expect_round();
      runtime.sleep_for(absl::Nanoseconds(kBetween));
    }
    disk.finish();
    const double elapsed_ns = absl::ToDoubleNanoseconds(runtime.now() - begin);
    const SwapTraffic after = disk.traffic();
    const double disk_ns = static_cast<double>(after.bytes_read - before.bytes_read +
                                               after.bytes_written - before.bytes_written);
    hidden = 1 - (elapsed_ns - kRounds * (2. * kBytes * kParts + kBetween)) / disk_ns;
  });
  return hidden;
}

// AdamW reads parameters, gradients and both moments, and writes all but gradients.
TEST(DiskOffload, AnUpdateOnTheHostTakesAsLongAsItsBytesPassTheHostsMemory) {
  Cluster("1x1:h100,host=10GB/s").run_on_every_rank([](Rank& rank) {
    const auto elapsed_ns = [&](at::ScalarType gradient, int64_t elements) {
      const torch::Tensor parameter = torch::ones({3, 1000}).requires_grad_();
      optim::AdamW adamw({parameter}, torch::optim::AdamWOptions(1e-2));
      parameter.mutable_grad() = torch::ones({3, 1000}, gradient);
      const absl::Time begin = rank.runtime().now();
      step_in_parts(adamw, elements);
      return absl::ToInt64Nanoseconds(rank.runtime().now() - begin);
    };
    for (const int64_t elements : {0, 1000}) {
      EXPECT_EQ(elapsed_ns(at::kFloat, elements), 28 * 3000 / 10) << elements;
    }
    // A gradient in bf16 is cast first.
    EXPECT_EQ(elapsed_ns(at::kBFloat16, 0), (24 + 2 + 8) * 3000 / 10);
  });
  Cluster("1x1").run_on_every_rank([](Rank& rank) {
    const torch::Tensor parameter = torch::ones({3, 1000}).requires_grad_();
    optim::AdamW adamw({parameter}, torch::optim::AdamWOptions(1e-2));
    parameter.mutable_grad() = torch::ones({3, 1000});
    const absl::Time begin = rank.runtime().now();
    step_in_parts(adamw, 0);
    EXPECT_EQ(rank.runtime().now(), begin) << "no hardware is named";
  });
}

TEST(DiskOffload, TwoBuffersHideTheDiskBehindUpdatesThatTakeAsLong) {
  EXPECT_LT(hidden_share(4, /*pipelined=*/false), 0);
  EXPECT_LT(hidden_share(1, /*pipelined=*/true), 0.1);
  EXPECT_GT(hidden_share(2, /*pipelined=*/true), 0.7);
  EXPECT_GT(hidden_share(4, /*pipelined=*/true), 0.9);
}

// ---- Errors.

// Ranks' files of one step, with a fault at an operation; what the ranks were told.
struct Told {
  std::vector<std::string> errors;  // by rank; empty: none
  int64_t operations[2][2];         // by rank: at the begin and the end of the step
  std::vector<double> losses;       // of rank 0, in the end without errors
};

Told step_with(const std::vector<FileFault>& faults) {
  Told told{.errors = std::vector<std::string>(2)};
  const auto disk = std::make_shared<SimDisk>();
  const LayersJob job{
      .layers = 3, .part_elements = 1, .shards_on_disk = on_disk(), .rows_on_disk = on_disk(3)};
  Cluster cluster(std::string("1x2") + kDisk, {.seed = 5, .disk = disk, .file_faults = faults});
  cluster.run_on_every_rank([&](Rank& rank) {
    TrainedLayers trained(rank, job);
    trained.step(0);
    const StateDict saved = [&] {
      StateDict state = optimizer_state_dict(trained.optimizer());
      for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
      for (const auto& each : trained.shards().shards()) {
        state.tensors.emplace_back(each.name, each.shard.detach().clone());
      }
      return state;
    }();
    told.operations[rank.index()][0] = disk->operations(rank.index());
    const auto train = [&] {
      const double first = trained.step(1), second = trained.step(2);
      if (rank.index() == 0) told.losses = {first, second};
    };
    try {
      train();
    } catch (const c10::Error& error) {
      told.errors[rank.index()] = error.what_without_backtrace();
    }
    told.operations[rank.index()][1] = disk->operations(rank.index());
    if (told.errors[rank.index()].empty()) return;
    // Training goes on from what was saved, once the disk has room for it.
    const auto restore = [&] {
      StateDict state{.values = saved.values};
      for (const auto& [name, tensor] : saved.tensors) {
        if (name.starts_with("state.")) state.tensors.emplace_back(name, tensor.clone());
      }
      load_optimizer_state_dict(trained.optimizer(), std::move(state));
      trained.on_disk()->store();
      const torch::NoGradGuard no_grad;
      size_t next = saved.tensors.size() - trained.shards().shards().size();
      for (const auto& each : trained.shards().shards()) {
        each.shard.copy_(saved.tensors[next++].second);
        each.shard.mutable_grad().reset();
      }
      return std::string();
    };
    for (int attempt = 0; attempt < 4; ++attempt) {
      try {
        internal::agree(trained.group(), "restore", restore);
        train();
        break;
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("no space left"));
      }
    }
  });
  return told;
}

TEST(DiskOffload, AnErrorOfOneRanksDiskIsAnErrorOnAllAndTrainingGoesOnFromASave) {
  const Told sound = step_with({});
  ASSERT_EQ(sound.errors, std::vector<std::string>(2));
  const int64_t begin = sound.operations[1][0], end = sound.operations[1][1];
  ASSERT_GT(end - begin, 20);
  int told = 0;
  for (int64_t operation = begin; operation < end; ++operation) {
    for (const auto kind : {FileFaultKind::kInputOutputError, FileFaultKind::kDiskFull}) {
      SCOPED_TRACE(std::to_string(operation) + (kind == FileFaultKind::kDiskFull ? " full" : ""));
      const Told after =
          step_with({{.rank = 1, .operation = operation, .kind = kind, .until = operation + 1}});
      EXPECT_EQ(after.losses, sound.losses);
      // A full disk affects no reads, and what is written last is not needed any more.
      if (after.errors[0].empty() && after.errors[1].empty()) continue;
      ++told;
      for (const std::string& error : after.errors) {
        EXPECT_THAT(error, AllOf(HasSubstr("rank "), HasSubstr("/sim/swap/swapped_tensors")));
      }
    }
  }
  EXPECT_GE(told, (end - begin) / 2);
}

TEST(DiskOffload, AFolderThatCannotBeMadeIsAnErrorOnAllRanks) {
  std::mutex mutex;
  std::vector<std::string> errors;
  Cluster cluster(
      std::string("1x2") + kDisk,
      {.disk = std::make_shared<SimDisk>(),
       .file_faults = {
           {.rank = 1, .operation = 0, .kind = FileFaultKind::kInputOutputError, .until = 1}}});
  cluster.run_on_every_rank([&](Rank& rank) {
    try {
      TrainedLayers(rank, {.shards_on_disk = on_disk()});
    } catch (const c10::Error& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(error.what_without_backtrace());
    }
  });
  EXPECT_THAT(errors, ::testing::Each(AllOf(HasSubstr("rank 1"), HasSubstr("/sim/swap"))));
  EXPECT_EQ(errors.size(), 2);
}

}  // namespace
}  // namespace accelerate
