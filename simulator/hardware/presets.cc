#include "simulator/hardware/presets.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/message_text.h"
#include "simulator/hardware/kernel_tables.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;

// Networks are specified in gigabits per second.
constexpr double gbps(double gigabits) { return gigabits * kGiga / 8; }

// One direction of sixteen lanes, rounded as in data sheets. PCI-SIG, PCI Express 3.0, 4.0, 5.0.
constexpr double kPcie3 = 16 * kGiga;
constexpr double kPcie4 = 32 * kGiga;
constexpr double kPcie5 = 64 * kGiga;

// Vendors do not state latencies. These are round numbers in the range that NCCL's tuning model
// (src/graph/tuning.cc) assumes: about a microsecond from device to device in a node, a few between
// nodes; a handful of microseconds for the host to issue a kernel from LibTorch's eager mode
// (kLaunchNs).
constexpr int64_t kNodeLinkNs = 500;
constexpr int64_t kMeshLinkNs = 700;
constexpr int64_t kNicNs = 1000;
constexpr int64_t kTcpNicNs = 10000;
// About a microsecond for each link between TPUs: "How to Scale Your Model" (jax-ml.github.io),
// chapter 3.
constexpr int64_t kChipLinkNs = 1000;
using internal::kLaunchNs;
constexpr int64_t kKernelNsMin = 2000;

// TFLOP/s by MathType.
struct Peaks {
  double fp64, fp32, fp16, bf16, fp8, int8;
};

DeviceModel device(const char* name, const char* family, int64_t memory_bytes,
                   double memory_bytes_per_second, const Peaks& peaks,
                   double host_bytes_per_second) {
  return {.name = name,
          .family = family,
          .memory_bytes = memory_bytes,
          .memory_bytes_per_second = memory_bytes_per_second,
          .flops_per_second = {peaks.fp64 * kTera, peaks.fp32 * kTera, peaks.fp16 * kTera,
                               peaks.bf16 * kTera, peaks.fp8 * kTera, peaks.int8 * kTera},
          .launch_ns = kLaunchNs,
          .kernel_ns_min = kKernelNsMin,
          .host_bytes_per_second = host_bytes_per_second};
}

// ---- NVIDIA. NVLink is stated as both directions together. float32 is without TF32, because
// LibTorch's default float32 matmul precision is "highest"; float64 is on tensor cores, as in
// cuBLAS. Capacities are those that the driver reports, rounded to GiB.

// NVIDIA V100 datasheet, SXM; NVIDIA DGX-2 datasheet: 16 GPUs, 12 NVSwitches, 8 x 100 Gb/s
// InfiniBand. No bfloat16 (computed in float32), no FP8 (in float16), no INT8 matrix units.
Preset v100() {
  return {.device = device("v100", "gpu", 32 * kGiB, 900 * kGiga, {7.8, 15.7, 125, 15.7, 125, 15.7},
                           kPcie3),
          .compute_capability = 70,
          .aliases = {"v100-32"},
          .devices_per_node = 16,
          .node_link = {150 * kGiga, kNodeLinkNs},
          .network_fabric = NetworkFabric::kFatTree,
          .nic = {gbps(100), kNicNs},
          .nics_per_node = 8};
}

// NVIDIA A100 datasheet, SXM4; NVIDIA DGX A100 datasheet: 8 x 200 Gb/s for compute. No FP8
// (computed in bfloat16).
Preset a100(const char* name, std::vector<std::string> aliases, int64_t memory_bytes,
            double memory_bytes_per_second) {
  return {.device = device(name, "gpu", memory_bytes, memory_bytes_per_second,
                           {19.5, 19.5, 312, 312, 312, 624}, kPcie4),
          .compute_capability = 80,
          .aliases = std::move(aliases),
          .node_link = {300 * kGiga, kNodeLinkNs},
          .nic = {gbps(200), kNicNs},
          .nics_per_node = 8};
}

// NVIDIA A100 datasheet, PCIe: the chip of the SXM card with 1,935 GB/s and 300 W. Servers differ;
// eight cards behind the host, two NICs of 200 Gb/s and no NVLink bridges between pairs are an
// estimate of a usual one.
Preset a100_pcie() {
  Preset preset = a100("a100-pcie", {}, 80 * kGiB, 1935 * kGiga);
  preset.node_fabric = NodeFabric::kPcie;
  preset.node_link = {kPcie4, kNodeLinkNs};
  preset.network_fabric = NetworkFabric::kFatTree;
  preset.nics_per_node = 2;
  return preset;
}

// NVIDIA H100 datasheet, SXM5, and NVIDIA H200 datasheet, SXM: the same chip with other memory.
// Matrix rates are half of those printed, which count sparsity. NVIDIA DGX H100 datasheet: 8 x
// 400 Gb/s.
Preset hopper(const char* name, int64_t memory_bytes, double memory_bytes_per_second) {
  return {.device = device(name, "gpu", memory_bytes, memory_bytes_per_second,
                           {67, 67, 989.5, 989.5, 1979, 1979}, kPcie5),
          .compute_capability = 90,
          .node_link = {450 * kGiga, kNodeLinkNs},
          .nic = {gbps(400), kNicNs},
          .nics_per_node = 8};
}

// NVIDIA DGX B200 datasheet (1,440 GB, 64 TB/s, 14.4 TB/s NVLink over 8 GPUs; 8 x 400 Gb/s) and
// NVIDIA Blackwell datasheet, HGX B200 per GPU, without sparsity.
Preset b200() {
  return {.device = device("b200", "gpu", 180 * kGiB, 8 * kTera, {37, 75, 2250, 2250, 4500, 4500},
                           kPcie5),
          .compute_capability = 100,
          .node_link = {900 * kGiga, kNodeLinkNs},
          .nic = {gbps(400), kNicNs},
          .nics_per_node = 8};
}

// ---- AMD.

// AMD Instinct MI300X datasheet: matrix rates without sparsity; AMD Instinct MI300X Platform
// datasheet: 7 Infinity Fabric links of 128 GB/s (both directions) from each device, one to each
// other. NICs: one of 400 Gb/s for each device, as in AMD's reference cluster design.
Preset mi300x() {
  return {.device = device("mi300x", "gpu", 192 * kGiB, 5.3 * kTera,
                           {163.4, 163.4, 1307.4, 1307.4, 2614.9, 2614.9}, kPcie5),
          .aliases = {"mi300"},
          .node_fabric = NodeFabric::kMesh,
          .node_link = {64 * kGiga, kMeshLinkNs},
          .nic = {gbps(400), kNicNs},
          .nics_per_node = 8};
}

// ---- Huawei.

// Huawei Atlas 800T A2 product page: 8 devices of 64 GB, HCCS full mesh of 392 GB/s a device (both
// directions, 7 links of 56), 8 x 200GE RoCE, 313 TFLOP/s in float16 a device. Memory bandwidth and
// float32 as commonly reported; Huawei prints neither. INT8 is twice float16. No float64 matrix
// units (a quarter of float32, a round number), no FP8 (computed in bfloat16).
Preset ascend910b() {
  return {.device = device("ascend910b", "npu", 64 * kGiB, 1.6 * kTera,
                           {19, 78, 313, 313, 313, 626}, kPcie5),
          .aliases = {"910b", "ascend-910b", "ascend"},
          .node_fabric = NodeFabric::kMesh,
          .node_link = {28 * kGiga, kMeshLinkNs},
          .nic = {gbps(200), kNicNs},
          .nics_per_node = 8};
}

// ---- Intel.

// Intel Gaudi 2 white paper: 96 GB, 2.45 TB/s, 432 TFLOP/s in BF16, 865 in FP8; 24 ports of 100 GbE
// RoCE, of which in an HLS-Gaudi2 server three go to each of the 7 others and three out of the
// node. Float32 is not printed: an eighth of BF16, a round number; float64 has no unit (a round 1);
// INT8 is computed in BF16.
Preset gaudi2() {
  return {.device =
              device("gaudi2", "hpu", 96 * kGiB, 2.45 * kTera, {1, 54, 432, 432, 865, 432}, kPcie4),
          .aliases = {"gaudi-2", "hpu"},
          .node_fabric = NodeFabric::kMesh,
          .node_link = {gbps(300), kMeshLinkNs},
          .nic = {gbps(300), kNicNs},
          .nics_per_node = 8};
}

// Intel Data Center GPU Max Series product brief: 128 GB, 3.28 TB/s, 52 TFLOP/s in FP64 and FP32,
// 839 in FP16 and BF16, 1678 in INT8; no FP8 (computed in BF16). Argonne Leadership Computing
// Facility, Aurora machine overview: 6 devices, Xe Link all to all (16 links of 26.5 GB/s a device,
// three to each other), 8 Slingshot NICs of 200 Gb/s.
Preset max1550() {
  return {.device = device("max1550", "xpu", 128 * kGiB, 3276.8 * kGiga,
                           {52, 52, 839, 839, 839, 1678}, kPcie5),
          .aliases = {"max-1550", "pvc", "xpu"},
          .devices_per_node = 6,
          .node_fabric = NodeFabric::kMesh,
          .node_link = {79.5 * kGiga, kMeshLinkNs},
          .network_fabric = NetworkFabric::kFatTree,
          .nic = {gbps(200), kNicNs},
          .nics_per_node = 8};
}

// ---- Google. Float32 matrices take six passes of bfloat16 at the highest precision; float64 is
// emulated (a tenth of float32, a round number); FP8 is computed in bfloat16. Links are stated as
// their sum over a chip's neighbours: four in a torus of two axes, six in one of three.

Preset tpu(const char* name, std::vector<std::string> aliases, int axes, int64_t memory_bytes,
           double memory_bytes_per_second, double bf16, double int8, double link) {
  return {.device = device(name, "tpu", memory_bytes, memory_bytes_per_second,
                           {bf16 / 60, bf16 / 6, bf16, bf16, bf16, int8}, kPcie3),
          .aliases = std::move(aliases),
          .devices_per_node = 4,
          .node_fabric = NodeFabric::kTorus,
          .node_link = {link, kChipLinkNs},
          .network_fabric = NetworkFabric::kEthernet,
          .torus_axes = axes};
}

// ---- Generic devices with round numbers, so that every family can be simulated: 64 GiB, 1 TB/s,
// 25 TFLOP/s in float32 and 200 in 16 bits; eight to a node behind a switch at 100 GB/s; a fat tree
// with four NICs of 200 Gb/s.
Preset generic(const char* family) {
  return {
      .device = device(family, family, 64 * kGiB, 1 * kTera, {5, 25, 200, 200, 200, 400}, kPcie4),
      .node_link = {100 * kGiga, kNodeLinkNs},
      .network_fabric = NetworkFabric::kFatTree,
      .nic = {gbps(200), kNicNs},
      .nics_per_node = 4};
}

// One socket of a server. Intel Xeon Platinum 8480+ (ARK): 56 cores, 2.0 GHz, 8 channels of
// DDR5-4800. Peaks are cores x clock x FLOPs a cycle by the Intel 64 optimisation manual: 32
// (FP64), 64 (FP32), 128 (FP16) with two AVX-512 units, 2048 (BF16) and 4096 (INT8) with AMX. FP8
// is computed in BF16. Sockets meet over UPI (three links of 16 GT/s, a round 50 GB/s); one 100 GbE
// NIC with TCP. The host is the device, so a kernel costs the dispatch of an operator, about a
// microsecond.
Preset cpu() {
  constexpr double kTeraCycles = 56 * 2.0 * kGiga / kTera;
  DeviceModel model = device("cpu", "cpu", 256 * kGiB, 8 * 38.4 * kGiga,
                             {32 * kTeraCycles, 64 * kTeraCycles, 128 * kTeraCycles,
                              2048 * kTeraCycles, 2048 * kTeraCycles, 4096 * kTeraCycles},
                             8 * 38.4 * kGiga);
  model.launch_ns = 1000;
  model.kernel_ns_min = 1000;
  return {.device = std::move(model),
          .aliases = {"xeon"},
          .devices_per_node = 2,
          .node_link = {50 * kGiga, kNodeLinkNs},
          .network_fabric = NetworkFabric::kEthernet,
          .nic = {gbps(100), kTcpNicNs}};
}

std::vector<Preset> measured_where_known(std::vector<Preset> presets) {
  const std::vector<std::string> measured = devices_with_kernel_table();
  for (Preset& preset : presets) {
    if (absl::c_linear_search(measured, preset.device.name)) {
      preset.device.efficiency = Efficiency::kMeasured;
    }
  }
  return presets;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const auto* all = new std::vector<Preset>(measured_where_known({
      v100(),
      a100("a100-40", {}, 40 * kGiB, 1555 * kGiga),
      a100("a100-80", {"a100"}, 80 * kGiB, 2039 * kGiga),
      a100_pcie(),
      hopper("h100", 80 * kGiB, 3.35 * kTera),
      hopper("h200", 141 * kGiB, 4.8 * kTera),
      b200(),
      mi300x(),
      ascend910b(),
      gaudi2(),
      max1550(),
      // Jouppi et al., "TPU v4" (ISCA 2023), table 4: 275 TFLOP/s, 32 GiB, 1200 GB/s, 6 x 50 GB/s.
      tpu("tpu-v4", {"tpuv4"}, 3, 32 * kGiB, 1200 * kGiga, 275, 275, 50 * kGiga),
      // Google Cloud documentation, "TPU v5e": 197 TFLOP/s, 16 GB, 819 GB/s, 1600 Gb/s a chip.
      tpu("tpu-v5e", {"tpuv5e", "tpu-v5-lite"}, 2, 16 * kGiB, 819 * kGiga, 197, 394, gbps(400)),
      // Google Cloud documentation, "TPU v5p": 459 TFLOP/s, 95 GB, 2765 GB/s, 4800 Gb/s a chip.
      tpu("tpu-v5p", {"tpuv5p"}, 3, 95 * kGiB, 2765 * kGiga, 459, 918, gbps(800)),
      generic("mlu"),
      generic("sdaa"),
      generic("musa"),
      generic("neuron"),
      cpu(),
  }));
  return *all;
}

const Preset* find_preset(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  const auto found = std::ranges::find_if(presets(), [&lower](const Preset& preset) {
    return preset.device.name == lower || absl::c_linear_search(preset.aliases, lower);
  });
  return found != presets().end() ? &*found : nullptr;
}

const DeviceModel* find_device(absl::string_view name) {
  const Preset* preset = find_preset(name);
  return preset != nullptr ? &preset->device : nullptr;
}

bool multiplies_fp8(const DeviceModel& device) {
  const DeviceModel* const known = find_device(device.name);
  if (known == nullptr) return false;
  const double in_16_bits = std::max(known->flops(MathType::kFp16), known->flops(MathType::kBf16));
  return known->flops(MathType::kFp8) > in_16_bits;
}

bool is_amd(const DeviceModel& device) { return absl::StartsWith(device.name, "mi"); }

bool is_first_gaudi(const DeviceModel& device) {
  return device.name == "gaudi" || device.name == "gaudi1";
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.device.name);
  return names;
}

namespace internal {

// What was expected in the place of a setting of NVIDIA's devices, whose other value is `usual`;
// empty for such a device.
static std::string vendor_problem(const DeviceModel& device, absl::string_view usual) {
  const Preset* preset = find_preset(device.name);
  if (preset != nullptr && preset->compute_capability > 0) return "";
  return absl::StrCat("\"", usual, "\", because \"", device.name, "\" is not NVIDIA's,");
}

std::string efficiency_text(const DeviceModel& device) {
  return device.kernel_file.empty() ? accelerate::to_string(device.efficiency) : device.kernel_file;
}

std::string set_kernels(absl::string_view name, DeviceModel& device) {
  const auto kernels = accelerate::value_of<KernelSet>({name.data(), name.size()});
  if (!kernels.has_value()) return suggestion(name, accelerate::texts<KernelSet>());
  device.kernels = *kernels;
  if (*kernels == KernelSet::kEager) return "";
  return vendor_problem(device, accelerate::to_string(KernelSet::kEager));
}

std::string set_graphs(absl::string_view name, DeviceModel& device) {
  if (name != "on" && name != "off") return "\"on\" or \"off\"";
  device.graphs = name == "on";
  return device.graphs ? vendor_problem(device, "off") : "";
}

std::string set_efficiency(absl::string_view name, DeviceModel& device) {
  device.kernel_file.clear();
  if (absl::EndsWith(name, ".json")) {
    const auto table = kernel_table_in(std::string(name));
    if (!table.ok()) {
      return absl::StrCat("a table of kernels, but ", table.status().message(), ",");
    }
    if ((*table)->device != device.name) {
      return absl::StrCat("a table of \"", device.name, "\", but \"", name, "\" is one of \"",
                          (*table)->device, "\",");
    }
    device.efficiency = Efficiency::kMeasured;
    device.kernel_file = std::string(name);
    return "";
  }
  const auto efficiency = accelerate::value_of<Efficiency>({name.data(), name.size()});
  if (!efficiency.has_value()) {
    return absl::StrCat(suggestion(name, accelerate::texts<Efficiency>()),
                        ", or a file whose name ends in \".json\"");
  }
  if (*efficiency == Efficiency::kMeasured && find_kernel_table(device.name) == nullptr) {
    return absl::StrCat("\"ideal\", because no measurements are known of \"", device.name,
                        "\" (they are of ", absl::StrJoin(devices_with_kernel_table(), ", "), "),");
  }
  device.efficiency = *efficiency;
  return "";
}

}  // namespace internal
}  // namespace accelerate::simulator
