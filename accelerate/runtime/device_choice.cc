#include "accelerate/runtime/device_choice.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/runtime/env_parsing.h"

namespace accelerate {
namespace {

constexpr char kTorchDevice[] = "ACCELERATE_TORCH_DEVICE";
constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";

struct Kind {
  const char* family;
  c10::DeviceType type;
  const char* backend;
};

// Best first. What has the type PrivateUse1 is recognised by the name its plug-in gave that type.
constexpr Kind kKinds[] = {
    {"tpu", c10::kXLA, "xla"},           {"mps", c10::kMPS, "gloo"},
    {"mlu", c10::kPrivateUse1, "cncl"},  {"sdaa", c10::kPrivateUse1, "tccl"},
    {"musa", c10::kPrivateUse1, "mccl"}, {"npu", c10::kPrivateUse1, "hccl"},
    {"hpu", c10::kHPU, "hccl"},          {"hpu", c10::kPrivateUse1, "hccl"},
    {"gpu", c10::kCUDA, "nccl"},         {"gpu", c10::kHIP, "nccl"},
    {"xpu", c10::kXPU, "xccl"},          {"neuron", c10::kPrivateUse1, "neuron"},
};

// LibTorch's name of PrivateUse1 until a plug-in names it.
constexpr char kNoPlugIn[] = "privateuseone";

std::string describe(const std::vector<DeviceKind>& present) {
  std::vector<std::string> words = {"cpu"};
  for (const DeviceKind& kind : present) {
    words.push_back(
        absl::StrCat(kind.count, " x ", c10::DeviceTypeName(kind.type, /*lower_case=*/true)));
  }
  return absl::StrJoin(words, ", ");
}

c10::Device nth(const DeviceKind& kind, int index) {
  return c10::Device(kind.type, static_cast<c10::DeviceIndex>(index));
}

absl::StatusOr<c10::Device> named_device(const std::string& text, int local_rank,
                                         const std::vector<DeviceKind>& present) {
  std::optional<c10::Device> device;
  try {
    device.emplace(text);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        kTorchDevice, "=\"", text, "\" is not a device; present: ", describe(present)));
  }
  if (device->is_cpu()) return c10::Device(c10::kCPU);
  const auto kind = std::ranges::find(present, device->type(), &DeviceKind::type);
  if (kind == present.end() || device->index() >= kind->count) {
    return absl::InvalidArgumentError(absl::StrCat(
        kTorchDevice, "=\"", text, "\" is not on this machine; present: ", describe(present)));
  }
  return device->has_index() ? *device : nth(*kind, local_rank % kind->count);
}

}  // namespace

std::vector<DeviceKind> present_devices() {
  std::vector<DeviceKind> present;
  const auto add = [&present](const std::string& family, c10::DeviceType type) {
    if (!c10::impl::hasDeviceGuardImpl(type)) return;
    const int count = c10::impl::getDeviceGuardImpl(type)->deviceCount();
    if (count > 0) present.push_back({family, type, count});
  };
  const std::string plug_in = c10::get_privateuse1_backend();
  bool is_known = plug_in == kNoPlugIn;
  for (const Kind& kind : kKinds) {
    is_known = is_known || kind.family == plug_in;
    if (kind.type != c10::kPrivateUse1 || kind.family == plug_in) add(kind.family, kind.type);
  }
  // A plug-in that the list does not know is a family by its own name.
  if (!is_known) add(plug_in, c10::kPrivateUse1);
  return present;
}

absl::StatusOr<c10::Device> choose_device(const Environment& environment, const Topology& topology,
                                          const std::vector<DeviceKind>& present) {
  if (std::string text = environment.get_or(kTorchDevice, ""); !text.empty()) {
    return named_device(text, topology.local_rank, present);
  }
  try {
    if (parse_flag_from_env(kUseCpu, false, environment)) return c10::Device(c10::kCPU);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(error.what_without_backtrace());
  }
  for (const DeviceKind& kind : present) {
    if (kind.type == c10::kMPS && topology.world_size > 1) continue;
    return nth(kind, topology.local_rank % kind.count);
  }
  return c10::Device(c10::kCPU);
}

std::string default_backend(const std::string& family) {
  const auto* kind =
      std::ranges::find_if(kKinds, [&](const Kind& k) { return k.family == family; });
  return kind == std::end(kKinds) ? "gloo" : kind->backend;
}

std::string choose_backend(const std::string& requested, const std::string& family,
                           const std::vector<std::string>& registered) {
  if (!requested.empty()) return requested;
  std::string backend = default_backend(family);
  TORCH_CHECK_VALUE(std::find(registered.begin(), registered.end(), backend) != registered.end(),
                    "devices of family \"", family, "\" want the backend \"", backend,
                    "\", which is not linked in (there is: ", absl::StrJoin(registered, ", "),
                    "); link it, name another one, or train on CPUs with ", kUseCpu, "=true");
  return backend;
}

}  // namespace accelerate
