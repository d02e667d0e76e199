// A checkpoint four times as large as a device, loaded onto the device, the host and the disk; and
// models that are built on devices. One shape of the cluster each: the bytes are worked out for the
// memory of these devices.
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/files/formats/weight_files.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::HasSubstr;

constexpr int kBlocks = 32;

// A block has a weight and a bias in float.
struct Size {
  int64_t rows;
  int64_t columns;
  constexpr int64_t block_bytes() const { return (rows * columns + rows) * 4; }
};
constexpr Size kSmall = {256, 512};    // a model of 16 MiB
constexpr Size kLarge = {1024, 2048};  // 256 MiB
constexpr char kCheckpoint[] = "/sim/model";
constexpr char kOffload[] = "/sim/offload";

// Other bits in every element.
at::Tensor values_of(Size size, int block, bool is_bias) {
  const int64_t count = is_bias ? size.rows : size.rows * size.columns;
  const at::Tensor flat = (at::arange(count, at::kFloat) + 1) / (3 + 2 * block + (is_bias ? 1 : 0));
  return is_bias ? flat : flat.view({size.rows, size.columns});
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(Size size = kSmall, at::TensorOptions options = at::kMeta) {
    for (int i = 0; i < kBlocks; ++i) {
      auto block = std::make_shared<torch::nn::Module>(absl::StrCat("block", i));
      block->register_parameter("weight", at::zeros({size.rows, size.columns}, options));
      block->register_parameter("bias", at::zeros({size.rows}, options));
      register_module(absl::StrCat("block", i), block);
    }
  }
};
TORCH_MODULE(Net);

// The bytes of tensors in host memory that this thread asked for, while it lives.
class HostGauge : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    in_use += bytes;
    peak = std::max(peak, in_use);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t in_use = 0;
  int64_t peak = 0;
};

std::shared_ptr<SimDisk> disk_with_checkpoint(Size size = kSmall) {
  auto disk = std::make_shared<SimDisk>();
  NamedTensors state;
  for (int i = 0; i < kBlocks; ++i) {
    state.emplace_back(absl::StrCat("block", i, ".weight"), values_of(size, i, false));
    state.emplace_back(absl::StrCat("block", i, ".bias"), values_of(size, i, true));
  }
  save_model(*disk, state, kCheckpoint, {.max_shard_size = 6 * size.block_bytes()});
  return disk;
}

// A quarter less a block on the accelerator, a quarter in host memory, the rest on the disk.
DeviceMap map_for(int device) {
  DeviceMap map;
  for (int i = 0; i < kBlocks; ++i) {
    map.set(absl::StrCat("block", i), i < kBlocks / 4 - 1 ? DevicePlacement::accelerator(device)
                                      : i < kBlocks / 2   ? DevicePlacement::cpu()
                                                          : DevicePlacement::disk());
  }
  return map;
}

void expect_all_placed(const Net& net, const DeviceMap& map, FileSystem& files,
                       const std::string& folder, Size size = kSmall) {
  const OffloadedWeightsLoader weights(files, {.save_folder = folder});
  for (int i = 0; i < kBlocks; ++i) {
    const std::string block = absl::StrCat("block", i);
    const DevicePlacement& placement = *map.find(block);
    for (const bool is_bias : {false, true}) {
      const std::string name = is_bias ? "bias" : "weight";
      at::Tensor tensor = net->named_children()[block]->named_parameters()[name];
      EXPECT_EQ(tensor.is_meta(), placement.is_disk());
      EXPECT_EQ(tensor.is_cpu(), placement.is_cpu());
      if (placement.is_accelerator()) EXPECT_EQ(tensor.device().index(), placement.index());
      if (placement.is_disk()) tensor = weights.get(block + "." + name);
      EXPECT_TRUE(at::equal(tensor.detach().cpu(), values_of(size, i, is_bias))) << block;
    }
  }
}

// The number of indices in the folder, whose weights are all there.
int expect_complete_index(SimDisk& disk) {
  constexpr Size size = kSmall;
  if (!*exists(disk, absl::StrCat(kOffload, "/index.json"))) return 0;
  const OffloadedWeightsLoader weights(disk, {.save_folder = kOffload});
  EXPECT_EQ(weights.size(), kBlocks);
  for (int i = kBlocks / 2; i < kBlocks; ++i) {
    EXPECT_TRUE(
        at::equal(weights.get(absl::StrCat("block", i, ".weight")), values_of(size, i, false)));
    EXPECT_TRUE(
        at::equal(weights.get(absl::StrCat("block", i, ".bias")), values_of(size, i, true)));
  }
  return 1;
}

TEST(BigModelLoad, PutsEachTensorOnceIntoItsPlace) {
  constexpr int64_t kBlockBytes = kLarge.block_bytes();
  Cluster cluster(absl::StrCat("1x1:h100,efficiency=ideal,mem=", kBlocks * kBlockBytes / 4),
                  {.disk = disk_with_checkpoint(kLarge)});
  cluster.run_on_every_rank([&](Rank& rank) {
    FileSystem& files = rank.runtime().files();
    Net net(kLarge);
    const DeviceMap map = map_for(0);
    const auto gauge = std::make_shared<HostGauge>();
    {
      const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, gauge);
      load_checkpoint_in_model(files, *net, kCheckpoint,
                               {.device_map = map, .offload_folder = kOffload, .strict = true});
    }
    const int64_t on_device = (kBlocks / 4 - 1) * kBlockBytes;
    const int64_t on_host = (kBlocks / 4 + 1) * kBlockBytes;
    const DeviceMemoryUse device = *rank.runtime().device_memory();
    std::cout << "model " << kBlocks * kBlockBytes << " bytes; device: " << on_device
              << " placed, peak " << device.peak << " of " << device.capacity
              << "; host: " << on_host << " placed, peak " << gauge->peak << "\n";
    EXPECT_EQ(device.in_use, on_device);
    EXPECT_EQ(device.peak, on_device);
    EXPECT_EQ(gauge->in_use, on_host);
    // One tensor goes through host memory to the disk.
    EXPECT_LE(gauge->peak, on_host + kBlockBytes);
    expect_all_placed(net, map, files, kOffload, kLarge);
  });
}

TEST(BigModelLoad, ReadsOnOneRankForFour) {
  constexpr int64_t kBlockBytes = kLarge.block_bytes();
  const auto disk = disk_with_checkpoint(kLarge);
  Cluster cluster(absl::StrCat("1x4:h100,efficiency=ideal,mem=", kBlocks * kBlockBytes / 4),
                  {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    PartialState& state = PartialState::get(rank.runtime());
    FileSystem& files = rank.runtime().files();
    Net net(kLarge);
    const DeviceMap map = map_for(rank.index());
    const std::string folder = absl::StrCat(kOffload, rank.index() / 2);
    const auto gauge = std::make_shared<HostGauge>();
    {
      const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, gauge);
      load_checkpoint_in_model(files, *net, rank.index() == 0 ? kCheckpoint : "nowhere",
                               {.device_map = map,
                                .offload_folder = folder,
                                .strict = true,
                                .broadcast_from_rank0 = true,
                                .process_group = state.group()});
    }
    const DeviceMemoryUse device = *rank.runtime().device_memory();
    const int64_t on_host = (kBlocks / 4 + 1) * kBlockBytes;
    rank.report("device peak", static_cast<double>(device.peak));
    rank.report("host peak", static_cast<double>(gauge->peak));
    // A piece of a tensor on its way.
    EXPECT_LE(device.peak, (kBlocks / 4) * kBlockBytes);
    EXPECT_LE(gauge->peak, on_host + 3 * kBlockBytes);
    expect_all_placed(net, map, files, folder, kLarge);
  });
  for (const char* what : {"device peak", "host peak"}) {
    std::cout << what << " by rank:";
    for (const at::Tensor& peak : cluster.reports(what)) std::cout << " " << peak.item<double>();
    std::cout << "\n";
  }
}

// Devices without room for a piece on its way get it over the hosts.
TEST(BigModelLoad, ReadsForDevicesThatAreFull) {
  constexpr Size size = kSmall;
  const auto disk = disk_with_checkpoint();
  Cluster cluster(absl::StrCat("1x2:h100,efficiency=ideal,mem=", kBlocks * size.block_bytes() / 4),
                  {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    FileSystem& files = rank.runtime().files();
    Net net;
    const DeviceMap map = map_for(rank.index());
    load_checkpoint_in_model(files, *net, kCheckpoint,
                             {.device_map = map,
                              .offload_folder = kOffload,
                              .strict = true,
                              .broadcast_from_rank0 = true,
                              .process_group = PartialState::get(rank.runtime()).group()});
    EXPECT_EQ(rank.runtime().device_memory()->peak, (kBlocks / 4 - 1) * size.block_bytes());
    expect_all_placed(net, map, files, kOffload);
  });
}

// As stages of a pipeline: each rank has its blocks in memory, and all write into one folder.
TEST(BigModelLoad, RanksPutOtherTensorsIntoOneFolder) {
  constexpr Size size = kSmall;
  const auto disk = disk_with_checkpoint();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Cluster cluster("1x4:h100", {.seed = seed, .disk = disk});
    cluster.run_on_every_rank([&](Rank& rank) {
      DeviceMap map;
      for (int i = 0; i < kBlocks; ++i) {
        map.set(absl::StrCat("block", i), i % 4 == rank.index() || i >= kBlocks / 2
                                              ? DevicePlacement::cpu()
                                              : DevicePlacement::disk());
      }
      Net net;
      load_checkpoint_in_model(rank.runtime().files(), *net, kCheckpoint,
                               {.device_map = map,
                                .offload_folder = kOffload,
                                .broadcast_from_rank0 = true,
                                .process_group = PartialState::get(rank.runtime()).group()});
    });
    const OffloadedWeightsLoader weights(*disk, {.save_folder = kOffload});
    EXPECT_EQ(weights.size(), kBlocks);
    for (int i = 0; i < kBlocks / 2; ++i) {
      EXPECT_TRUE(
          at::equal(weights.get(absl::StrCat("block", i, ".weight")), values_of(size, i, false)));
    }
    ASSERT_TRUE(remove_all(*disk, kOffload).ok());
  }
}

TEST(BigModelLoad, SaysThatRanksHaveOtherDtypes) {
  const auto disk = disk_with_checkpoint();
  Cluster cluster("1x2:h100", {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    Net net(kSmall, at::TensorOptions(rank.index() == 1 ? at::kHalf : at::kFloat));
    try {
      load_checkpoint_in_model(rank.runtime().files(), *net, kCheckpoint,
                               {.broadcast_from_rank0 = true,
                                .process_group = PartialState::get(rank.runtime()).group()});
      ADD_FAILURE();
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("the models differ: rank 0 has 'block0.bias' as Float, and rank 1 as "
                            "Half"));
    }
  });
}

// A tensor changes its dtype together with its values.
TEST(BigModelLoad, ChangesADtypeWithTheValues) {
  const auto disk = disk_with_checkpoint();
  const auto load = [&](Rank& rank, Net& net, bool by_rank0) {
    LoadCheckpointInModelOptions options = {.dtype = at::kHalf};
    if (by_rank0) {
      options.broadcast_from_rank0 = true;
      options.process_group = PartialState::get(rank.runtime()).group();
    }
    load_checkpoint_in_model(rank.runtime().files(), *net, kCheckpoint, options);
  };
  const auto expect_values = [](const Net& net, bool all) {
    int changed = 0;
    for (int i = 0; i < kBlocks; ++i) {
      for (const bool is_bias : {false, true}) {
        const at::Tensor tensor = net->named_children()[absl::StrCat("block", i)]
                                      ->named_parameters()[is_bias ? "bias" : "weight"];
        const bool is_new = tensor.scalar_type() == at::kHalf;
        changed += is_new ? 1 : 0;
        EXPECT_TRUE(at::equal(tensor.detach(), is_new ? values_of(kSmall, i, is_bias).to(at::kHalf)
                                                      : at::zeros_like(tensor)));
      }
    }
    EXPECT_EQ(changed == 2 * kBlocks, all) << changed;
  };
  const at::TensorOptions host = at::kFloat;
  Cluster("1x2:h100", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
    Net net(kSmall, host);
    load(rank, net, /*by_rank0=*/true);
    expect_values(net, /*all=*/true);
  });
  Cluster("1x1:h100", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
    Net net(kSmall, host);
    load(rank, net, /*by_rank0=*/false);
    expect_values(net, /*all=*/true);
  });
  const int64_t operations = disk->operations(0);
  for (const int64_t part : {1, 2, 3}) {
    Cluster cluster("1x1:h100", {.disk = disk,
                                 .file_faults = {{.operation = operations * part / 4,
                                                  .kind = FileFaultKind::kInputOutputError}}});
    cluster.run_on_every_rank([&](Rank& rank) {
      Net net(kSmall, host);
      EXPECT_THROW(load(rank, net, /*by_rank0=*/false), CheckpointError);
      expect_values(net, /*all=*/false);
    });
  }
}

TEST(BigModelLoad, LoadsTwiceAtOnceIntoOneFolder) {
  const auto disk = disk_with_checkpoint();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Cluster cluster("1x2:h100", {.seed = seed, .disk = disk});
    cluster.run_on_every_rank([&](Rank& rank) {
      FileSystem& files = rank.runtime().files();
      Net net;
      const DeviceMap map = map_for(rank.index());
      load_checkpoint_in_model(files, *net, kCheckpoint,
                               {.device_map = map, .offload_folder = kOffload});
      expect_all_placed(net, map, files, kOffload);
    });
    // 16 blocks of two tensors, and the index.
    EXPECT_EQ(disk->list(kOffload)->size(), 33);
    ASSERT_TRUE(remove_all(*disk, kOffload).ok());
  }
}

// Wherever the disk fails, the model stays empty, and an index names complete files if there is
// one.
TEST(BigModelLoad, UsesNothingOfALoadThatFails) {
  const auto load = [](Rank& rank, Net& net) {
    load_checkpoint_in_model(rank.runtime().files(), *net, kCheckpoint,
                             {.device_map = map_for(0), .offload_folder = kOffload});
  };
  const auto disk = disk_with_checkpoint();
  Cluster("1x1:h100", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
    Net net;
    load(rank, net);
  });
  const int64_t operations = disk->operations(0);
  ASSERT_GT(operations, 100);
  ASSERT_TRUE(remove_all(*disk, kOffload).ok());
  for (const FileFaultKind kind : {FileFaultKind::kDiskFull, FileFaultKind::kInputOutputError}) {
    int failed = 0;
    // Also close to the end, where the files have their names.
    for (int64_t back = 1; back < operations; back += 1 + back / 3) {
      Cluster cluster(
          "1x1:h100",
          {.disk = disk, .file_faults = {{.operation = operations - back, .kind = kind}}});
      std::string error;
      cluster.run_on_every_rank([&](Rank& rank) {
        Net net;
        try {
          load(rank, net);
        } catch (const CheckpointError& thrown) {
          error = thrown.what_without_backtrace();
          for (const at::Tensor& tensor : net->parameters()) EXPECT_TRUE(tensor.is_meta());
        }
      });
      if (error.empty()) {
        // The names that files get at the end take no room.
        EXPECT_LT(back, kind == FileFaultKind::kDiskFull ? kBlocks + 5 : 5)
            << "an operation that failed was ignored";
      } else {
        ++failed;
        EXPECT_THAT(error, HasSubstr("/sim"));
        EXPECT_FALSE(absl::StrContains(error, '\n')) << error;
        EXPECT_LT(expect_complete_index(*disk), back < 4 ? 2 : 1);
      }
      if (kind == FileFaultKind::kDiskFull && *exists(*disk, kOffload)) {
        const std::vector<std::string> left = *disk->list(kOffload);
        for (const std::string& name : left) {
          EXPECT_FALSE(absl::StrContains(name, "partial")) << name;
        }
      }
      ASSERT_TRUE(remove_all(*disk, kOffload).ok());
    }
    EXPECT_GT(failed, 5);
  }
}

TEST(BigModelLoad, SaysWhichDeviceIsMissingOrFull) {
  const auto disk = disk_with_checkpoint();
  Cluster cluster("1x1:h100,mem=1MiB,efficiency=ideal", {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    FileSystem& files = rank.runtime().files();
    const auto load = [&](const std::string& map) {
      Net net;
      try {
        load_checkpoint_in_model(files, *net, kCheckpoint, {.device_map = *DeviceMap::parse(map)});
      } catch (const c10::Error& error) {
        for (const at::Tensor& tensor : net->parameters()) EXPECT_TRUE(tensor.is_meta());
        return std::string(error.what_without_backtrace());
      }
      return std::string("no error");
    };
    EXPECT_EQ(load(R"({"": 1})"),
              "the device map names sim:1, and there is one device of this kind");
    EXPECT_THAT(load(R"({"": 0})"), HasSubstr("out of memory"));
    EXPECT_EQ(rank.device()->memory().in_use(), 0);
  });
}

// ---- Models that are built on devices.

TEST(InitOnDevice, MovesBackWhatItMade) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([&](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const at::TensorOptions there = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor outside = at::ones({3}, there);
    at::Tensor copy, made, derived, named, moved;
    torch::nn::BatchNorm1d norm = nullptr;
    {
      const EmptyInit scope = init_on_device(device);
      outside.add_(1);
      copy = outside.clone();
      made = at::full({2}, 3.0);
      derived = made * 2;
      named = at::zeros({2}, there);
      moved = derived.slice(0, 0, 1).to(at::kCPU).to(device);
      norm = torch::nn::BatchNorm1d(4);
      EXPECT_EQ(made.device(), device);
    }
    for (const at::Tensor& stays : {outside, copy, named, moved}) {
      EXPECT_EQ(stays.device(), device);
    }
    EXPECT_TRUE(at::equal(outside.cpu(), at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(made, at::full({2}, 3.0)));
    EXPECT_TRUE(at::equal(derived, at::full({2}, 6.0)));
    EXPECT_EQ(norm->weight.device(), device);
    EXPECT_TRUE(norm->weight.requires_grad());
    EXPECT_TRUE(at::equal(norm->weight.detach().cpu(), at::ones({4})));
    EXPECT_TRUE(norm->running_var.is_cpu());
    EXPECT_TRUE(at::equal(norm->running_var, at::ones({4})));
    // The same memory, which the module sees.
    EXPECT_TRUE(norm->named_buffers()["running_var"].is_alias_of(norm->running_var));
    {
      const EmptyInit scope = init_on_device(device, /*include_buffers=*/true);
      norm = torch::nn::BatchNorm1d(4);
    }
    EXPECT_EQ(norm->running_var.device(), device);
    EXPECT_EQ(norm->num_batches_tracked.device(), device);
  });
}

TEST(Materialize, PutsValuesOnADevice) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([&](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    torch::manual_seed(3);
    const torch::nn::Linear eager(5, 4);
    torch::manual_seed(3);
    torch::nn::Linear net = nullptr;
    {
      const EmptyInit scope = init_empty_weights();
      net = torch::nn::Linear(5, 4);
    }
    materialize(*net, {.filter = [](const std::string& name) { return name == "bias"; }});
    EXPECT_TRUE(net->bias.is_cpu());
    materialize(*net, {.device = device});
    EXPECT_EQ(net->weight.device(), device);
    EXPECT_TRUE(net->bias.is_cpu()) << "it had its values";
    EXPECT_TRUE(at::equal(net->weight.detach().cpu(), eager->weight.detach()));
    EXPECT_TRUE(at::equal(net->bias, eager->bias));
  });
}

TEST(BigModelLoad, ReadsAFileOntoDevices) {
  const auto disk = disk_with_checkpoint();
  const WeightFiles weights = *find_weight_files(*disk, kCheckpoint);
  Cluster cluster("1x1:h100", {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    DeviceMap map;
    map.set("block0", DevicePlacement::accelerator(0));
    map.set("block1", DevicePlacement::disk());
    for (const auto& [name, tensor] :
         load_state_dict(rank.runtime().files(), weights.files[0].path, map)) {
      EXPECT_EQ(tensor.is_cpu(), !absl::StartsWith(name, "block0.")) << name;
    }
  });
}

}  // namespace
}  // namespace accelerate
