// Sharded models whose ranks read their rows of a checkpoint while the model is prepared.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/shard_rows.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "integration_tests/sharding/gauges.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
using Plugin = FullyShardedDataParallelPlugin;
namespace nn = torch::nn;

constexpr char kWeights[] = "/sim/weights";

// A group of parameters for each layer.
struct TowerImpl : nn::Module {
  TowerImpl() {
    for (int i = 0; i < 8; ++i) layers->push_back(nn::Linear(512, 512));
    register_module("layers", layers);
    tied = register_parameter("tied", layers->ptr<nn::LinearImpl>(0)->weight);
    odd = register_parameter("odd", torch::rand({7, 3}));
    scale = register_buffer("scale", torch::full({512}, 0.5));
    mask = non_persistent(register_buffer("mask", torch::ones({512})));
  }
  Tensor forward(const Tensor& x) {
    return layers->forward(x).matmul(tied) * scale * mask * odd.sum();
  }
  nn::Sequential layers;
  Tensor tied, odd, scale, mask;
};
TORCH_MODULE(Tower);

Tower empty_tower() {
  const EmptyInit empty = init_empty_weights();
  return Tower();
}

// The values that a checkpoint has, without `left_out`.
NamedTensors tower_values(at::ScalarType dtype = at::kFloat, const std::string& left_out = "") {
  torch::manual_seed(11);
  NamedTensors values;
  const Tower tower;
  tower->scale.fill_(0.25);
  for (const auto& [name, tensor] : module_state_dict(*tower)) {
    if (name != "mask" && name != left_out) values.emplace_back(name, tensor.to(dtype));
  }
  return values;
}

// Saves checkpoints on a rank of its own.
std::shared_ptr<SimDisk> disk_with(const std::function<void(SimDisk&)>& save) {
  auto disk = std::make_shared<SimDisk>();
  Cluster("1x1", {.disk = disk}).run_on_every_rank([&](Rank&) { save(*disk); });
  return disk;
}
std::shared_ptr<SimDisk> disk_with_tower(at::ScalarType dtype = at::kFloat) {
  return disk_with([dtype](SimDisk& disk) {
    save_model(disk, tower_values(dtype), kWeights, {.max_shard_size = 3 << 20});
  });
}

template <typename Model>
void expect_tower_values(Model& model, at::ScalarType dtype = at::kFloat) {
  const auto whole = full_parameters(model, {.writeback = false});
  const auto own = model->named_parameters();
  for (const auto& [name, value] : tower_values(dtype)) {
    const Tensor* const parameter = own.find(name);
    const Tensor found = parameter != nullptr ? *parameter : model->named_buffers()[name];
    EXPECT_TRUE(torch::equal(found.detach().cpu(), value.to(at::kFloat))) << name;
  }
  EXPECT_TRUE(model->mask.detach().cpu().eq(1).all().template item<bool>());
  EXPECT_TRUE(model->tied.is_same(model->layers->template ptr<nn::LinearImpl>(0)->weight));
}

int64_t rows_bytes(const nn::Module& module, int ranks, int rank, bool padded) {
  int64_t bytes = 0;
  std::set<const void*> seen;
  for (const Tensor& each : module.parameters()) {
    if (!seen.insert(each.unsafeGetTensorImpl()).second) continue;
    const ShardRows rows = shard_rows(each.size(0), ranks, padded ? 0 : rank);
    bytes += each.numel() / each.size(0) * rows.count * 4;
  }
  return bytes;
}

TEST(LazyLoading, ReadsARanksRowsStraightIntoItsShards) {
  constexpr int kRanks = 4;
  constexpr int64_t kGroup = int64_t{1} << 20;  // ShardedDataParallelKwargs
  for (const char* shape : {"1x4", "1x4:h100"}) {
    Cluster cluster(shape, {.disk = disk_with_tower()});
    cluster.run_on_every_rank([&](Rank& rank) {
      CountedFiles files(rank.runtime().files());
      Accelerator accelerator({.fsdp_plugin = Plugin{.fsdp_version = 2}});
      const auto gauge = std::make_shared<HostGauge>();
      std::optional<c10::DebugInfoGuard> watched;
      watched.emplace(c10::DebugInfoKind::PROFILER_STATE, gauge);
      Tower net = empty_tower();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      load_checkpoint_in_model(files, *net, kWeights, {.strict = true, .lazy = true});
      EXPECT_TRUE(net->odd.is_meta());
      const int64_t rows = rows_bytes(*net, kRanks, rank.index(), /*padded=*/false);
      const int64_t shards = rows_bytes(*net, kRanks, rank.index(), /*padded=*/true);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      watched.reset();
      rank.report("rows", static_cast<double>(rows));
      rank.report("read", static_cast<double>(files.total()));
      rank.report("shards", static_cast<double>(shards));
      rank.report("peak", static_cast<double>(gauge->peak));
      // Heads of files, and the buffer.
      EXPECT_GE(files.total(), rows);
      EXPECT_LE(files.total(), rows + 16384);
      EXPECT_LE(gauge->peak, (accelerator.device().is_cpu() ? shards : 0) + kGroup);
      expect_tower_values(model);
      const Tensor loss = model(torch::ones({2, 512}, accelerator.device())).square().mean();
      accelerator.backward(loss);
      optimizer.step();
    });
    for (const char* what : {"rows", "read", "shards", "peak"}) {
      std::cout << shape << ", " << what << " by rank:";
      for (const Tensor& each : cluster.reports(what)) {
        std::cout << " " << static_cast<int64_t>(each.item<double>());
      }
      std::cout << "\n";
    }
  }
}

TEST(LazyLoading, ChangesTheDtypeOfWhatItReads) {
  const auto disk = disk_with_tower(at::kBFloat16);
  for (const Plugin& plugin :
       {Plugin{.fsdp_version = 2}, Plugin{.fsdp_version = 2, .cpu_offload = true},
        Plugin{.sharding_strategy = ShardingStrategy::kHybridShard}}) {
    for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
      Cluster("2x2:h100", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
        Accelerator accelerator({.mixed_precision = precision, .fsdp_plugin = plugin});
        Tower net = empty_tower();
        load_checkpoint_in_model(rank.runtime().files(), *net, kWeights, {.lazy = true});
        auto [model, optimizer] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.1));
        expect_tower_values(model, at::kBFloat16);
      });
    }
  }
}

TEST(LazyLoading, TakesTheValuesOfRank0WhereItAloneHasTheFiles) {
  for (const bool efficient : {true, false}) {
    Cluster cluster("1x3:h100", {.disk = disk_with_tower()});
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(
          {.fsdp_plugin = Plugin{.fsdp_version = 2, .cpu_ram_efficient_loading = efficient}});
      Tower net = empty_tower();
      const auto gauge = std::make_shared<HostGauge>();
      const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, gauge);
      if (rank.index() == 0) {
        load_checkpoint_in_model(rank.runtime().files(), *net, kWeights, {.lazy = true});
      }
      auto [model, optimizer] =
          accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.1));
      // One layer at a time.
      EXPECT_LE(gauge->peak, int64_t{3} << 20);
      expect_tower_values(model);
    });
  }
}

// What each rank's `body` throws, which leaves the model empty unless it prepares it again.
std::vector<std::string> errors_of(int ranks, const std::shared_ptr<SimDisk>& disk,
                                   const std::function<void(Rank&, Tower&)>& body,
                                   std::vector<FileFault> faults = {}, bool again = false) {
  std::vector<std::string> errors(ranks);
  Cluster("1x" + std::to_string(ranks) + ":h100", {.disk = disk, .file_faults = std::move(faults)})
      .run_on_every_rank([&](Rank& rank) {
        Tower net = empty_tower();
        try {
          body(rank, net);
        } catch (const c10::Error& error) {
          errors[rank.index()] = error.what_without_backtrace();
          for (const Tensor& each : net->parameters()) EXPECT_NE(each.is_meta(), again);
        }
      });
  return errors;
}

TEST(LazyLoading, NamesKeysFilesAndRanksOnAllRanks) {
  const auto disk = disk_with([](SimDisk& disk) {
    save_model(disk, tower_values(), kWeights);
    save_model(disk, tower_values(at::kFloat, /*left_out=*/"layers.3.bias"), "/sim/short");
    NamedTensors other = tower_values(at::kFloat, /*left_out=*/"odd");
    other.emplace_back("odd", torch::zeros({7, 4}));
    other.emplace_back("extra", torch::zeros({1}));
    save_model(disk, other, "/sim/other");
  });
  const auto load = [](Rank& rank, Tower& net, const std::string& on_rank_1) {
    load_checkpoint_in_model(
        rank.runtime().files(), *net, rank.index() == 1 ? on_rank_1 : kWeights,
        {.strict = true, .lazy = true, .process_group = PartialState::get(rank.runtime()).group()});
  };
  for (const std::string& error :
       errors_of(3, disk, [&](Rank& rank, Tower& net) { load(rank, net, "/sim/short"); })) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1: /sim/short: the state dict does not fit"),
                             HasSubstr("missing: layers.3.bias")));
  }
  for (const std::string& error :
       errors_of(3, disk, [&](Rank& rank, Tower& net) { load(rank, net, "/sim/other"); })) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1: /sim/other"), HasSubstr("unexpected: extra"),
                             HasSubstr("odd ([7, 4] there, [7, 3] in the model)")));
  }
  for (const std::string& error :
       errors_of(3, disk, [&](Rank& rank, Tower& net) { load(rank, net, "/sim/gone"); })) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1: "), HasSubstr("/sim/gone")));
  }
  // Each rank for itself: prepare compares.
  for (const std::string& error : errors_of(3, disk, [&](Rank& rank, Tower& net) {
         load_checkpoint_in_model(rank.runtime().files(), *net,
                                  rank.index() == 1 ? "/sim/short" : kWeights, {.lazy = true});
         Accelerator accelerator({.fsdp_plugin = Plugin{.fsdp_version = 2}});
         accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.1));
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 waits for 18 tensors of /sim/weights"),
                             HasSubstr("rank 1 waits for 17 tensors of /sim/short")));
  }
}

// Wherever the disk fails in prepare, on the rank that reads for all or on one that reads its rows:
// all ranks say so, and the model is empty as before and can be prepared again.
TEST(LazyLoading, CanBePreparedAgainWhereADiskFails) {
  const auto disk = disk_with_tower();
  for (const bool on_all : {true, false}) {
    const int failing = on_all ? 2 : 0;
    int64_t begin = 0;
    const auto prepare = [&](Rank& rank, Tower& net) {
      Accelerator accelerator({.fsdp_plugin = Plugin{.fsdp_version = 2}});
      if (on_all || rank.index() == 0) {
        load_checkpoint_in_model(rank.runtime().files(), *net, kWeights, {.lazy = true});
      }
      if (rank.index() == failing) begin = disk->operations(failing);
      const auto attempt = [&] {
        auto [model, optimizer] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.1));
        expect_tower_values(model);
      };
      try {
        attempt();
      } catch (const c10::Error&) {
        for (const Tensor& each : net->parameters()) EXPECT_TRUE(each.is_meta());
        attempt();
        throw;
      }
    };
    EXPECT_THAT(errors_of(3, disk, prepare), testing::Each(""));
    const int64_t end = disk->operations(failing);
    ASSERT_GE(end - begin, 17);
    for (const int64_t operation : {begin, (begin + end) / 2, end - 1}) {
      const FileFault fault{.rank = failing,
                            .operation = operation,
                            .kind = FileFaultKind::kInputOutputError,
                            .until = operation + 1};
      for (const std::string& error : errors_of(3, disk, prepare, {fault}, /*again=*/true)) {
        EXPECT_THAT(error, AllOf(HasSubstr(absl::StrCat("rank ", failing, ": cannot read '")),
                                 HasSubstr("/sim/weights/model-")));
      }
    }
  }
}

}  // namespace
}  // namespace accelerate
