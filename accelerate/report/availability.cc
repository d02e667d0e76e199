#include "accelerate/report/availability.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"
#include "accelerate/runtime/device_choice.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/values/versions.h"

namespace accelerate {
namespace {

// A device of the family, as tensors spell it: the rank's own where it is of that family.
std::optional<c10::Device> device_of(const std::string& family, const Runtime& runtime) {
  if (runtime.device_family() == family) return runtime.device();
  for (const DeviceKind& kind : present_devices()) {
    if (kind.family == family) return c10::Device(kind.type, 0);
  }
  return std::nullopt;
}

bool can_hold_a_tensor(c10::Device device) {
  try {
    return at::empty({1}, at::TensorOptions().device(device)).defined();
  } catch (const c10::Error&) {
    return false;
  }
}

bool has_context(c10::Device device) {
  try {
    return at::globalContext()
        .getAcceleratorHooksInterface(device.type())
        .hasPrimaryContext(device.index());
  } catch (const c10::Error&) {
    return false;  // A vendor's plug-in need not answer.
  }
}

// Asked of the runtime, and of the feature's name.
using Probe = bool (*)(Runtime&, const char* name);

bool yes(Runtime&, const char*) { return true; }
bool no(Runtime&, const char*) { return false; }

// Whether log_with would take it, as get_available_trackers() says.
bool tracker(Runtime& runtime, const char* name) {
  const auto* registered = runtime.find_shared<TrackerRegistry>();
  const TrackerRegistry& registry = registered != nullptr ? *registered : TrackerRegistry::linked();
  const TrackerClass* found = registry.find(name);
  if (found == nullptr || !found->unavailable) return found != nullptr;
  const TrackerServices services{.files = runtime.files(),
                                 .environment = runtime.environment(),
                                 .rank = runtime.topology().rank,
                                 .world_size = runtime.topology().world_size,
                                 .is_real = runtime.sees_machine(),
                                 .now = [&runtime] { return runtime.now(); },
                                 .warn = [](std::string_view) {},
                                 .info = [](std::string_view) {}};
  return found->unavailable(services).empty();
}

bool finds_nvml(const Environment&) { return has_nvml(); }
bool finds_amdsmi(const Environment&) {
  void* handle = dlopen("libamd_smi.so", RTLD_LAZY | RTLD_LOCAL);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

// Whether `aws` is a program of the PATH.
bool finds_aws(const Environment& environment) {
  std::istringstream path(environment.get_or("PATH", ""));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty() && access((folder + "/aws").c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Whether it is on the machine, where the rank sees one.
template <bool (*finds)(const Environment&)>
bool on_machine(Runtime& runtime, const char*) {
  return runtime.sees_machine() && finds(runtime.environment());
}

struct Entry {
  const char* name;
  FeatureKind kind;
  Probe available;
  const char* note;
};

constexpr char kPython[] = "a Python package, which this library does not need";
constexpr char kNoReplacement[] = "a Python package without a native replacement";
constexpr char kNoEngine[] = "its native replacement is not in this build";
constexpr char kBnbEngine[] = "weights in 8 and 4 bits are quantised natively, for every device";
constexpr char kFp8Engine[] = "layers in fp8 are computed natively";
constexpr char kTracker[] =
    "there, if the program links //trackers or the one of that name, and finds what it needs";

// Sorted by name.
constexpr Entry kEntries[] = {
    {"aim", FeatureKind::kTracker, tracker, kTracker},
    {"amdsmi", FeatureKind::kLibrary, on_machine<finds_amdsmi>,
     "AMD's management library, looked up at run time"},
    {"bitsandbytes_4bit", FeatureKind::kEngine, yes, kBnbEngine},
    {"bitsandbytes_8bit", FeatureKind::kEngine, yes, kBnbEngine},
    {"bitsandbytes_multi_backend", FeatureKind::kEngine, yes, kBnbEngine},
    {"bnb", FeatureKind::kEngine, yes, kBnbEngine},
    {"boto3", FeatureKind::kPackage, on_machine<finds_aws>,
     "the aws command, looked up in PATH, takes its place"},
    {"clearml", FeatureKind::kTracker, tracker, kTracker},
    {"comet_ml", FeatureKind::kTracker, tracker, kTracker},
    {"datasets", FeatureKind::kPackage, no, kNoReplacement},
    {"deepspeed", FeatureKind::kEngine, yes, "ZeRO's stages are native"},
    {"dvclive", FeatureKind::kTracker, tracker, kTracker},
    {"hwloc", FeatureKind::kBuild, yes, "the machine's layout, linked in"},
    {"import_timer", FeatureKind::kPackage, no, kPython},
    {"ipex", FeatureKind::kBuild, no, "LibTorch for Intel's GPUs needs no extension any more"},
    {"lomo", FeatureKind::kEngine, yes, "the optimizers Lomo and AdaLomo are native"},
    {"matplotlib", FeatureKind::kPackage, no, kPython},
    {"megatron_lm", FeatureKind::kEngine, no, kNoEngine},
    {"mlflow", FeatureKind::kTracker, tracker, kTracker},
    {"msamp", FeatureKind::kEngine, yes, kFp8Engine},
    {"numpy", FeatureKind::kPackage, no, "tensors take its place"},
    {"pandas", FeatureKind::kPackage, no, kPython},
    {"peft", FeatureKind::kPackage, no, kNoReplacement},
    {"pippy", FeatureKind::kPackage, no, "prepare_pippy needs no package"},
    {"pynvml", FeatureKind::kLibrary, on_machine<finds_nvml>,
     "NVIDIA's management library, looked up at run time"},
    {"pytest", FeatureKind::kPackage, no, "GoogleTest takes its place"},
    {"rich", FeatureKind::kPackage, no, kPython},
    {"sagemaker", FeatureKind::kPackage, on_machine<finds_aws>,
     "the aws command, looked up in PATH, takes its place"},
    {"schedulefree", FeatureKind::kEngine, yes, "the optimizer ScheduleFreeAdamW is native"},
    {"swanlab", FeatureKind::kTracker, tracker, kTracker},
    {"tensorboard", FeatureKind::kTracker, tracker, kTracker},
    {"timm", FeatureKind::kPackage, no, kNoReplacement},
    {"torch_distributed", FeatureKind::kBuild, yes, "c10d is part of LibTorch"},
    {"torchao", FeatureKind::kEngine, yes, kFp8Engine},
    {"torchdata", FeatureKind::kPackage, yes, "loaders save and restore their position themselves"},
    {"torchdata_stateful_dataloader", FeatureKind::kPackage, yes,
     "loaders save and restore their position themselves"},
    {"torchvision", FeatureKind::kPackage, no, kPython},
    {"tqdm", FeatureKind::kPackage, yes, "ProgressBar takes its place"},
    {"trackio", FeatureKind::kTracker, tracker, kTracker},
    {"transformer_engine", FeatureKind::kEngine, yes, kFp8Engine},
    {"transformer_engine_mxfp8", FeatureKind::kEngine, yes, kFp8Engine},
    {"transformers", FeatureKind::kPackage, no, kNoReplacement},
    {"triton", FeatureKind::kPackage, no, kPython},
    {"wandb", FeatureKind::kTracker, tracker, kTracker},
    {"weights_only", FeatureKind::kBuild, yes,
     "files of torch.save are read natively, and nothing in them is executed"},
};

constexpr auto kName = [](const Entry& entry) { return std::string_view(entry.name); };
static_assert(std::ranges::is_sorted(kEntries, {}, kName));

const Entry& find(std::string_view name) {
  const Entry* const found = std::ranges::find(kEntries, name, kName);
  const auto append_name = [](std::string* out, const Entry& entry) { *out += entry.name; };
  TORCH_CHECK_VALUE(found != std::end(kEntries), "no feature is called \"", std::string(name),
                    "\"; known: ", absl::StrJoin(kEntries, ", ", append_name));
  return *found;
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

std::string flags() {
  std::string words;
#ifdef __OPTIMIZE__
  words += "optimised";
#else
  words += "not optimised";
#endif
#ifndef NDEBUG
  words += ", assertions";
#endif
#ifdef __SANITIZE_ADDRESS__
  words += ", address sanitizer";
#endif
#ifdef __SANITIZE_THREAD__
  words += ", thread sanitizer";
#endif
  return words;
}

}  // namespace

bool internal::DeviceCheck::operator()(bool check_device, const Runtime& runtime) const {
  const std::vector<std::string> families = runtime.accelerator_families();
  if (std::find(families.begin(), families.end(), family) == families.end()) return false;
  if (!check_device) return true;
  const std::optional<c10::Device> device = device_of(family, runtime);
  return device && can_hold_a_tensor(*device);
}

bool internal::FeatureCheck::operator()(Runtime& runtime) const {
  return is_feature_available(name, runtime);
}

bool internal::VersionedFeatureCheck::operator()(const std::string& min_version,
                                                 Runtime& runtime) const {
  // Checks the text. What takes a package's place serves programs for all versions of it.
  if (!min_version.empty()) compare_versions("0", "<", min_version);
  return is_feature_available(name, runtime);
}

bool internal::VersionedFeatureCheck::operator()(Runtime& runtime) const {
  return is_feature_available(name, runtime);
}

bool internal::has_gaudi1(const std::string& pci_devices) {
  constexpr char kHabana[] = "0x1da3";
  const auto number = [](const std::filesystem::path& file) {
    std::string text;
    std::ifstream(file) >> text;
    return text;
  };
  std::error_code error;
  std::filesystem::directory_iterator device(pci_devices, error);
  for (; !error && device != std::filesystem::directory_iterator(); device.increment(error)) {
    if (number(device->path() / "vendor") != kHabana) continue;
    const std::string model = number(device->path() / "device");
    if (model == "0x1000" || model == "0x1010") return true;  // The second is its secured variant.
  }
  return false;
}

bool is_rocm_available(bool check_device, const Runtime& runtime) {
  const std::optional<bool> amd = runtime.device_has(DeviceTrait::kRocm);
  return (amd ? *amd : at::hasHIP()) && is_cuda_available(check_device, runtime);
}

bool is_habana_gaudi1(const Runtime& runtime) {
  if (!is_hpu_available(false, runtime)) return false;
  const std::optional<bool> first = runtime.device_has(DeviceTrait::kFirstGaudi);
  return first ? *first : internal::has_gaudi1("/sys/bus/pci/devices");
}

bool is_mps_available(const std::string& min_version, const Runtime& runtime) {
  return is_torch_version(">=", min_version) && internal::DeviceCheck{"mps"}(false, runtime);
}

bool is_torch_xla_available(bool check_is_tpu, bool check_is_gpu, const Runtime& runtime) {
  TORCH_CHECK_VALUE(!check_is_tpu || !check_is_gpu,
                    "is_torch_xla_available: only one of check_is_tpu and check_is_gpu can be "
                    "true");
  if (!parse_flag_from_env("USE_TORCH_XLA", true, runtime.environment())) return false;
  return !check_is_gpu && internal::DeviceCheck{"tpu"}(false, runtime);
}

std::vector<c10::Device> initialized_devices() {
  std::vector<c10::Device> devices;
  for (const DeviceKind& kind : present_devices()) {
    for (int index = 0; index < kind.count; ++index) {
      const c10::Device device(kind.type, static_cast<c10::DeviceIndex>(index));
      if (has_context(device)) devices.push_back(device);
    }
  }
  return devices;
}

bool is_bf16_available(bool ignore_tpu, const Runtime& runtime) {
  // LibTorch computes in bfloat16 on all devices, where need be by converting.
  return !(ignore_tpu && is_torch_xla_available(true, false, runtime));
}

bool is_fp8_available(Runtime& runtime) {
  return is_transformer_engine_available(runtime) || is_msamp_available(runtime) ||
         is_torchao_available(runtime);
}

NvidiaGpus get_gpu_info(const Runtime& runtime) {
  const std::optional<bool> amd = runtime.device_has(DeviceTrait::kRocm);
  if (!amd) return query_nvidia_gpus();
  if (runtime.device_family() != "gpu" || *amd) return {};
  const auto num_gpus = static_cast<size_t>(runtime.topology().local_world_size);
  return {.names = std::vector<std::string>(num_gpus, runtime.device_name())};
}

BuildInfo build_info(Runtime& runtime) {
  BuildInfo info{.version = std::string(library_version("accelerate").value()),
                 .libtorch_version = std::string(library_version("torch").value()),
                 .compiler = compiler(),
                 .flags = flags()};
  for (const Entry& entry : kEntries) {
    info.features.push_back(
        {entry.name, entry.kind, entry.available(runtime, entry.name), entry.note});
  }
  return info;
}

bool is_feature_available(std::string_view name, Runtime& runtime) {
  const Entry& entry = find(name);
  return entry.available(runtime, entry.name);
}

void require_feature(std::string_view name, Runtime& runtime) {
  const Entry& entry = find(name);
  TORCH_CHECK_NOT_IMPLEMENTED(entry.available(runtime, entry.name), "this needs ", entry.name,
                              ", which is not available: ", entry.note);
}

}  // namespace accelerate
