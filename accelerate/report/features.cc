#include "accelerate/report/features.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include "accelerate/platform/nvidia.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate {
namespace {

constexpr char kVersion[] = "0.1.0";

// Asked of the runtime, and of the feature's name.
using Probe = bool (*)(const Runtime&, const char* name);

bool yes(const Runtime&, const char*) { return true; }
bool no(const Runtime&, const char*) { return false; }

bool linked_tracker(const Runtime&, const char* name) {
  return TrackerRegistry::linked().find(name) != nullptr;
}

bool can_load(const char* library) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

bool nvml(const Runtime& runtime, const char*) { return runtime.owns_process() && has_nvml(); }
bool amdsmi(const Runtime& runtime, const char*) {
  return runtime.owns_process() && can_load("libamd_smi.so");
}

// Whether `aws` is a program of the PATH.
bool aws(const Runtime& runtime, const char*) {
  if (!runtime.owns_process()) return false;
  std::istringstream path(runtime.environment().get_or("PATH", ""));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty() && access((folder + "/aws").c_str(), X_OK) == 0) return true;
  }
  return false;
}

struct Entry {
  const char* name;
  FeatureKind kind;
  Probe available;
  const char* note;
};

constexpr char kPython[] = "a Python package; nothing here needs it";
constexpr char kNoReplacement[] = "a Python package without a native replacement";
constexpr char kNoEngine[] = "its native replacement is not in this build";
constexpr char kFp8Engine[] = "layers in fp8 are computed natively";
constexpr char kTracker[] = "there, if the program links //trackers or the one of that name";

// Sorted by name.
constexpr Entry kEntries[] = {
    {"aim", FeatureKind::kTracker, linked_tracker, kTracker},
    {"amdsmi", FeatureKind::kLibrary, amdsmi, "AMD's management library, looked up at run time"},
    {"bitsandbytes_4bit", FeatureKind::kEngine, no, kNoEngine},
    {"bitsandbytes_8bit", FeatureKind::kEngine, no, kNoEngine},
    {"bitsandbytes_multi_backend", FeatureKind::kEngine, no, kNoEngine},
    {"bnb", FeatureKind::kEngine, no, kNoEngine},
    {"boto3", FeatureKind::kPackage, aws, "the aws command, looked up in PATH, takes its place"},
    {"clearml", FeatureKind::kTracker, linked_tracker, kTracker},
    {"comet_ml", FeatureKind::kTracker, linked_tracker, kTracker},
    {"datasets", FeatureKind::kPackage, no, kNoReplacement},
    {"deepspeed", FeatureKind::kEngine, no, kNoEngine},
    {"dvclive", FeatureKind::kTracker, linked_tracker, kTracker},
    {"hwloc", FeatureKind::kBuild, yes, "the machine's layout, linked in"},
    {"import_timer", FeatureKind::kPackage, no, kPython},
    {"ipex", FeatureKind::kBuild, no, "LibTorch for Intel's GPUs needs no extension any more"},
    {"lomo", FeatureKind::kEngine, no, kNoEngine},
    {"matplotlib", FeatureKind::kPackage, no, kPython},
    {"megatron_lm", FeatureKind::kEngine, no, kNoEngine},
    {"mlflow", FeatureKind::kTracker, linked_tracker, kTracker},
    {"msamp", FeatureKind::kEngine, yes, kFp8Engine},
    {"numpy", FeatureKind::kPackage, no, "tensors take its place"},
    {"pandas", FeatureKind::kPackage, no, kPython},
    {"peft", FeatureKind::kPackage, no, kNoReplacement},
    {"pippy", FeatureKind::kPackage, no, kNoReplacement},
    {"pynvml", FeatureKind::kLibrary, nvml, "NVIDIA's management library, looked up at run time"},
    {"pytest", FeatureKind::kPackage, no, "GoogleTest takes its place"},
    {"rich", FeatureKind::kPackage, no, kPython},
    {"sagemaker", FeatureKind::kPackage, aws,
     "the aws command, looked up in PATH, takes its place"},
    {"schedulefree", FeatureKind::kEngine, no, kNoEngine},
    {"swanlab", FeatureKind::kTracker, linked_tracker, kTracker},
    {"tensorboard", FeatureKind::kTracker, linked_tracker, kTracker},
    {"timm", FeatureKind::kPackage, no, kNoReplacement},
    {"torch_distributed", FeatureKind::kBuild, yes, "c10d is part of LibTorch"},
    {"torchao", FeatureKind::kEngine, yes, kFp8Engine},
    {"torchdata", FeatureKind::kPackage, yes, "loaders save and restore their position themselves"},
    {"torchdata_stateful_dataloader", FeatureKind::kPackage, yes,
     "loaders save and restore their position themselves"},
    {"torchvision", FeatureKind::kPackage, no, kPython},
    {"tqdm", FeatureKind::kPackage, yes, "ProgressBar takes its place"},
    {"trackio", FeatureKind::kTracker, linked_tracker, kTracker},
    {"transformer_engine", FeatureKind::kEngine, yes, kFp8Engine},
    {"transformer_engine_mxfp8", FeatureKind::kEngine, yes, kFp8Engine},
    {"transformers", FeatureKind::kPackage, no, kNoReplacement},
    {"triton", FeatureKind::kPackage, no, kPython},
    {"wandb", FeatureKind::kTracker, linked_tracker, kTracker},
    {"weights_only", FeatureKind::kPackage, no, "nothing in this build reads pickled weights"},
};

constexpr bool before(const Entry& a, const Entry& b) {
  return std::string_view(a.name) < std::string_view(b.name);
}
static_assert(std::is_sorted(std::begin(kEntries), std::end(kEntries), before));

const Entry& find(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry;
  }
  std::string known;
  for (const Entry& entry : kEntries) known += std::string(known.empty() ? "" : ", ") + entry.name;
  TORCH_CHECK_VALUE(false, "no feature is called \"", std::string(name), "\"; known: ", known);
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

BuildInfo build_info(const Runtime& runtime) {
  BuildInfo info{.version = kVersion,
                 .libtorch_version = TORCH_VERSION,
                 .compiler = compiler(),
                 .flags = flags()};
  for (const Entry& entry : kEntries) {
    info.features.push_back(
        {entry.name, entry.kind, entry.available(runtime, entry.name), entry.note});
  }
  return info;
}

bool is_feature_available(std::string_view name, const Runtime& runtime) {
  const Entry& entry = find(name);
  return entry.available(runtime, entry.name);
}

void require_feature(std::string_view name, const Runtime& runtime) {
  const Entry& entry = find(name);
  TORCH_CHECK_NOT_IMPLEMENTED(entry.available(runtime, entry.name), "this needs ", entry.name,
                              ", which is not available: ", entry.note);
}

}  // namespace accelerate
