// A checkpoint four times as large as a device, loaded onto the device, the host and the disk.
// One shape of the cluster each: the bytes are worked out for the memory of these devices.
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

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/formats/weight_files.h"
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
constexpr int64_t kRows = 256, kColumns = 512;
// A block has a weight and a bias in float.
constexpr int64_t kBlockBytes = (kRows * kColumns + kRows) * 4;
constexpr char kCheckpoint[] = "/sim/model";
constexpr char kOffload[] = "/sim/offload";

// Other bits in every element.
at::Tensor values_of(int block, bool is_bias) {
  const int64_t count = is_bias ? kRows : kRows * kColumns;
  const at::Tensor flat = (at::arange(count, at::kFloat) + 1) / (3 + 2 * block + (is_bias ? 1 : 0));
  return is_bias ? flat : flat.view({kRows, kColumns});
}

struct NetImpl : torch::nn::Module {
  // Without memory.
  NetImpl() {
    for (int i = 0; i < kBlocks; ++i) {
      auto block = std::make_shared<torch::nn::Module>(absl::StrCat("block", i));
      const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
      block->register_parameter("weight", at::empty({kRows, kColumns}, meta));
      block->register_parameter("bias", at::empty({kRows}, meta));
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

std::shared_ptr<SimDisk> disk_with_checkpoint() {
  auto disk = std::make_shared<SimDisk>();
  NamedTensors state;
  for (int i = 0; i < kBlocks; ++i) {
    state.emplace_back(absl::StrCat("block", i, ".weight"), values_of(i, false));
    state.emplace_back(absl::StrCat("block", i, ".bias"), values_of(i, true));
  }
  save_model(*disk, state, kCheckpoint, {.max_shard_size = 3'000'000});
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
                       const std::string& folder) {
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
      EXPECT_TRUE(at::equal(tensor.detach().cpu(), values_of(i, is_bias))) << block;
    }
  }
}

// The number of indices in the folder, whose weights are all there.
int expect_complete_index(SimDisk& disk) {
  if (!*exists(disk, absl::StrCat(kOffload, "/index.json"))) return 0;
  const OffloadedWeightsLoader weights(disk, {.save_folder = kOffload});
  EXPECT_EQ(weights.size(), kBlocks);
  for (int i = kBlocks / 2; i < kBlocks; ++i) {
    EXPECT_TRUE(at::equal(weights.get(absl::StrCat("block", i, ".weight")), values_of(i, false)));
    EXPECT_TRUE(at::equal(weights.get(absl::StrCat("block", i, ".bias")), values_of(i, true)));
  }
  return 1;
}

TEST(BigModelLoad, PutsEachTensorOnceIntoItsPlace) {
  Cluster cluster(absl::StrCat("1x1:h100,mem=", kBlocks * kBlockBytes / 4),
                  {.disk = disk_with_checkpoint()});
  cluster.run_on_every_rank([&](Rank& rank) {
    FileSystem& files = rank.runtime().files();
    Net net;
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
    expect_all_placed(net, map, files, kOffload);
  });
}

TEST(BigModelLoad, ReadsOnOneRankForFour) {
  const auto disk = disk_with_checkpoint();
  Cluster cluster(absl::StrCat("1x4:h100,mem=", kBlocks * kBlockBytes / 4), {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    PartialState& state = PartialState::get(rank.runtime());
    FileSystem& files = rank.runtime().files();
    Net net;
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
    // A piece of a tensor on its way, twice where the device's network carries it.
    EXPECT_LE(device.peak, (kBlocks / 4) * kBlockBytes);
    EXPECT_LE(gauge->peak, on_host + 3 * kBlockBytes);
    expect_all_placed(net, map, files, folder);
  });
  for (const char* what : {"device peak", "host peak"}) {
    std::cout << what << " by rank:";
    for (const at::Tensor& peak : cluster.reports(what)) std::cout << " " << peak.item<double>();
    std::cout << "\n";
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
        EXPECT_LT(back, 5) << "an operation that failed was ignored";
      } else {
        ++failed;
        EXPECT_THAT(error, HasSubstr("/sim/"));
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
  Cluster cluster("1x1:h100,mem=1MiB", {.disk = disk});
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
