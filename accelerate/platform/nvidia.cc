#include "accelerate/platform/nvidia.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

// "550.40.07": the first driver with which the RTX 40 series works.
constexpr std::array<int, 3> kFirstDriverForRtx40 = {550, 40, 7};

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library open_nvml() { return Library(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)); }

template <typename Function>
Function* find(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

// The C interface of NVML, of which this much is stable; every function returns 0 on success.
using Return = int;
using Device = void*;

std::array<int, 3> parse_version(const std::string& text) {
  std::array<int, 3> version = {};
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  for (size_t i = 0; i < std::min(parts.size(), version.size()); ++i) {
    if (!absl::SimpleAtoi(parts[i], &version[i])) break;
  }
  return version;
}

}  // namespace

NvidiaGpus query_nvidia_gpus() {
  NvidiaGpus gpus;
  const Library nvml = open_nvml();
  if (!nvml) return gpus;
  auto* init = find<Return()>(nvml, "nvmlInit_v2");
  auto* shutdown = find<Return()>(nvml, "nvmlShutdown");
  auto* driver = find<Return(char*, unsigned)>(nvml, "nvmlSystemGetDriverVersion");
  auto* count = find<Return(unsigned*)>(nvml, "nvmlDeviceGetCount_v2");
  auto* handle = find<Return(unsigned, Device*)>(nvml, "nvmlDeviceGetHandleByIndex_v2");
  auto* name = find<Return(Device, char*, unsigned)>(nvml, "nvmlDeviceGetName");
  if (!init || !shutdown || !driver || !count || !handle || !name || init() != 0) return gpus;
  std::array<char, 128> text = {};
  if (driver(text.data(), text.size()) == 0) gpus.driver_version = text.data();
  unsigned num_gpus = 0;
  if (count(&num_gpus) != 0) num_gpus = 0;
  for (unsigned index = 0; index < num_gpus; ++index) {
    Device device = nullptr;
    const bool named = handle(index, &device) == 0 && name(device, text.data(), text.size()) == 0;
    gpus.names.push_back(named ? text.data() : "");
  }
  shutdown();
  return gpus;
}

bool has_nvml() { return open_nvml() != nullptr; }

bool cuda_p2p_ib_supported(const NvidiaGpus& gpus) {
  const bool affected =
      gpus.names.size() > 1 && std::ranges::any_of(gpus.names, [](const auto& name) {
        return absl::StrContains(name, "RTX 40");
      });
  // A driver without a known version is taken for a good one.
  return !affected || gpus.driver_version.empty() ||
         parse_version(gpus.driver_version) >= kFirstDriverForRtx40;
}

absl::Status check_nccl_environment(const NvidiaGpus& gpus, const Environment& environment) {
  const bool disabled = environment.get("NCCL_P2P_DISABLE").has_value() &&
                        environment.get("NCCL_IB_DISABLE").has_value();
  if (disabled || cuda_p2p_ib_supported(gpus)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "GPUs of the RTX 40 series cannot talk to one another directly with the driver ",
      gpus.driver_version,
      ": set NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1, start the program with `accelerate launch`, "
      "which does so, or install the driver 550.40.07 or a newer one"));
}

}  // namespace accelerate
