#include "simulator/hardware/driver_memory.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kHundredthGiB = (int64_t{1} << 30) / 100;

// LibTorch, aten/src/ATen/cuda/CublasHandlePool.cpp (2.6, 2025-01): :4096:2:16:8 below Hopper, and
// 32 MiB on compute capability 9.0; newer releases take 32 MiB for 10.0 as well.
constexpr int64_t kWorkspaceAmpere = (2 * 4096 + 8 * 16) * kKiB;
constexpr int64_t kWorkspaceHopper = 32 * kMiB;

// Estimate: an order of magnitude. No table of a data-centre device was found. LibTorch's source
// (pull request 96995, 2023-04) says that mapping costs by page, whatever its size, so each page
// takes as long as a call of cudaMalloc here.
constexpr int64_t kDriverCallNs = 100'000;

// What is known of a device.
struct Row {
  const char* device;
  // The total capacity in LibTorch's messages about memory, in hundredths of a GiB.
  int64_t visible;
  // In hundredths of a GiB.
  int64_t context;
  int64_t workspace;
};

// Visible totals vary with the driver by up to 0.1 GiB; these are the lower ones that were found.
//   a100-40  39.50: github.com/TianheWu/CoSeR, issue 10 (2025-01); others have up to 39.59
//   a100-80  79.15: github.com/stas00/ml-engineering, training/performance (read 2026-11; it has
//            79.21 of another driver as well); a100-pcie is taken to have it, too (estimate)
//   h100     79.11: github.com/vllm-project/vllm, issues 751 (2023-08) and 27508 (2025-10); others
//            have up to 79.19
//   h200     139.72 to 139.81 in messages of many programs; 139.80 is the usual one
//   b200     178.35 in messages of many programs; 178.4 in github.com/sgl-project/sglang, issue
//            25225 (2026-05)
// Contexts:
//   a100-80  0.55: the same page of ml-engineering, lazy loading and one small operator; eager
//            loading of all kernels takes 0.9 to 1.1, so training takes up to 0.5 more (estimate)
//   a100-40, a100-pcie, h100, h200  as a100-80 (estimate)
//   b200     0.7: the same issue 25225, 177.7 of 178.4 GiB are free with a context alone
constexpr std::array kRows = {
    Row{"a100-40", 3950, 55, kWorkspaceAmpere},   Row{"a100-80", 7915, 55, kWorkspaceAmpere},
    Row{"a100-pcie", 7915, 55, kWorkspaceAmpere}, Row{"h100", 7911, 55, kWorkspaceHopper},
    Row{"h200", 13980, 55, kWorkspaceHopper},     Row{"b200", 17835, 70, kWorkspaceHopper},
};

const Row* row_of(const DeviceModel& device) {
  if (device.efficiency != Efficiency::kMeasured) return nullptr;
  const auto* row = std::ranges::find(kRows, device.name, &Row::device);
  return row == kRows.end() ? nullptr : row;
}

// NCCL 2.28.9, src/include/device.h and src/init.cc: 8 lines x 512 threads x 8 steps x 16 bytes;
// 120 x 640 x 8 x 8 bytes; NCCL_BUFFSIZE.
constexpr int64_t kBuffersLl = 524'288;
constexpr int64_t kBuffersLl128 = 4'915'200;
constexpr int64_t kBuffersSimple = 4'194'304;
// src/transport/p2p.cc: a sender and a receiver of one channel, each rounded up to 2 MiB: 2 and
// 10 MiB, or 6 and 6 where the sender reads.
constexpr int64_t kRingChannel = 12 * kMiB;
// src/transport/net.cc, with GPU Direct: the sender has LL in the host's memory.
constexpr int64_t kNetworkChannel =
    kBuffersLl128 + kBuffersSimple + kBuffersLl + kBuffersLl128 + kBuffersSimple;
// src/transport/nvls.cc: two buffers of 8 steps of 128 KiB for each channel and head.
constexpr int64_t kNvlsChannelAndHead = 2 * 8 * 128 * kKiB;
// Control structures. Estimate: NVIDIA's aiconfigurator (systems/h100_sxm.yaml, 2025) counts 342
// MiB for NCCL with two devices, of which rings on 24 channels take 288.
constexpr int64_t kControl = 54 * kMiB;
// Where devices are not behind NVSwitch, which NCCL's model is about: an estimate for PCIe.
constexpr int kOtherChannels = 4;

}  // namespace

std::optional<DriverMemory> driver_memory_of(const DeviceModel& device) {
  const Row* row = row_of(device);
  if (row == nullptr) return std::nullopt;
  // Other memory than the device's own is what its driver shows.
  const bool is_usual = device.memory_bytes == find_device(device.name)->memory_bytes;
  return DriverMemory{
      .visible_bytes = is_usual ? row->visible * kHundredthGiB : device.memory_bytes,
      .context_bytes = row->context * kHundredthGiB,
      .product_workspace_bytes = row->workspace,
      .malloc_ns = kDriverCallNs,
      .free_ns = kDriverCallNs,
      .map_ns = kDriverCallNs,
      .unmap_ns = kDriverCallNs};
}

int64_t communicator_bytes(const DeviceModel& device, const CommunicatorShape& shape) {
  if (row_of(device) == nullptr) return 0;
  const int64_t channels = shape.channels > 0 ? shape.channels : kOtherChannels;
  // Each channel enters a node at one of its ranks and leaves it at one: an equal part for each.
  const int64_t over_network =
      shape.spans_nodes ? std::max<int64_t>(1, channels / shape.ranks_per_node) : 0;
  return kControl + (channels - over_network) * kRingChannel + over_network * kNetworkChannel +
         int64_t{shape.nvls_channels} * shape.nvls_heads * kNvlsChannelAndHead;
}

std::optional<std::string> apply_allocator_settings(absl::string_view settings,
                                                    DeviceModel& device) {
  if (row_of(device) == nullptr) return std::nullopt;
  // The last of several wins, as in LibTorch, and the cluster's text wins over all.
  std::optional<bool> expandable;
  std::optional<int64_t> max_split;
  for (absl::string_view setting : absl::StrSplit(settings, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> parts = absl::StrSplit(setting, absl::MaxSplits(':', 1));
    const std::string key(absl::StripAsciiWhitespace(parts[0]));
    const std::string value(parts.size() > 1 ? absl::StripAsciiWhitespace(parts[1]) : "");
    const auto expected = [&](absl::string_view what) {
      return absl::StrCat("expected ", what, " for ", key, ", got \"", value, "\"");
    };
    if (key == "expandable_segments") {
      if (value != "True" && value != "False") return expected("True or False");
      expandable = value == "True";
    } else if (key == "max_split_size_mb") {
      int64_t mebibytes = 0;
      if (!absl::SimpleAtoi(value, &mebibytes) || mebibytes <= 20 || mebibytes > (1 << 30)) {
        return expected("a number of MiB above 20");
      }
      max_split = mebibytes * kMiB;
    } else if (key == "backend") {
      if (value != "native") return expected("native, the one that simulated devices model,");
    } else if (key == "roundup_power2_divisions") {
      return absl::StrCat(key, " is not modelled for simulated devices");
    }
    // Others: of pinned memory and graphs, or without an effect unless a fraction of the memory is
    // set.
  }
  if (!device.expandable_segments) device.expandable_segments = expandable;
  if (!device.max_split_bytes) device.max_split_bytes = max_split;
  return std::nullopt;
}

namespace internal {

std::string memory_problem(const DeviceModel& device) {
  const std::optional<DriverMemory> memory = driver_memory_of(device);
  if (!memory || memory->visible_bytes > memory->context_bytes) return "";
  return absl::StrCat(
      "more than ", format_quantity(static_cast<double>(memory->context_bytes), Dimension::kBytes),
      ", which the context of a process alone takes, or \"efficiency=ideal\", without a context,");
}

std::string allocator_problem(absl::string_view key, const DeviceModel& device) {
  if (device.efficiency != Efficiency::kMeasured) {
    return absl::StrCat("no \"", key, "\" with \"efficiency=ideal\", which models no allocator,");
  }
  constexpr int64_t kLargeSegment = 20 * (int64_t{1} << 20);
  if (key == "max_split_size" &&
      device.max_split_bytes.value_or(kLargeSegment + 1) <= kLargeSegment) {
    return "more than 20 MiB, the size of a segment,";
  }
  return "";
}

}  // namespace internal
}  // namespace accelerate::simulator
