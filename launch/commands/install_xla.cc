// `accelerate devices`: which device plug-ins this machine could load, and how to get one. Its name
// was `install_xla`, which is still understood.
//
// Each is loaded in a child process; nothing is installed.
// Mirrors: accelerate utils/torch_xla.py, install_xla, in its purpose.
// Differs: it installs nothing: a C++ program's LibTorch is chosen when it is built.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/process/process_plan.h"

namespace accelerate::launcher::commands {

using process::environment_value;
namespace {

constexpr char kName[] = "devices";
// The function that every PJRT plug-in exports.
constexpr char kPjrtEntry[] = "GetPjrtApi";

struct TorchDevice {
  const char* devices;
  const char* library;
  const char* how_to_get_it;
};

// Libraries that give LibTorch a device when a program loads them.
constexpr TorchDevice kTorchDevices[] = {
    {"NVIDIA GPUs", "libtorch_cuda.so", "build against a release of LibTorch made for CUDA"},
    {"AMD GPUs", "libtorch_hip.so", "build against a release of LibTorch made for ROCm"},
    {"Intel GPUs", "libtorch_xpu.so", "build against a release of LibTorch made for XPU"},
    {"Ascend NPUs", "libtorch_npu.so", "Ascend's plug-in torch_npu, of LibTorch's version"},
    {"Cambricon MLUs", "libtorch_mlu.so", "Cambricon's plug-in torch_mlu, of LibTorch's version"},
    {"Gaudi HPUs", "libhabana_pytorch_plugin.so",
     "Habana's plug-in habana_frameworks, of LibTorch's version"},
    {"Moore Threads GPUs", "libmusa_python.so",
     "Moore Threads' plug-in torch_musa, of LibTorch's version"},
};

struct Options {
  std::vector<std::string> libraries;
  bool upgrade = false;
};

struct PjrtPlugin {
  std::string name;
  std::string library;
};

// TPUs' own library, and what the variables of PJRT's users name.
std::vector<PjrtPlugin> pjrt_plugins(const Options& options, const Invocation& invocation) {
  std::vector<PjrtPlugin> plugins;
  const std::string tpu = environment_value(invocation.environment, "TPU_LIBRARY_PATH");
  plugins.push_back({"TPU", tpu.empty() ? "libtpu.so" : tpu});
  const std::string single = environment_value(invocation.environment, "PJRT_PLUGIN_LIBRARY_PATH");
  if (!single.empty()) plugins.push_back({"PJRT_PLUGIN_LIBRARY_PATH", single});
  const std::string named =
      environment_value(invocation.environment, "PJRT_NAMES_AND_LIBRARY_PATHS");
  for (absl::string_view entry : absl::StrSplit(named, ',', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(entry, absl::MaxSplits(':', 1));
    plugins.push_back({parts[0], parts.back()});
  }
  for (const std::string& library : options.libraries) plugins.push_back({"--library", library});
  return plugins;
}

std::string state_of(const LibraryProbe& probe) {
  if (probe.is_loadable) return absl::StrCat("loadable: ", probe.path);
  if (absl::StrContains(probe.error, "cannot open shared object file") && probe.path.empty()) {
    return "not found";
  }
  return absl::StrCat("not loadable: ", probe.error);
}

int run(const Options& options, Invocation& invocation) {
  if (options.upgrade) {
    invocation.err << "accelerate devices: --upgrade has no effect: nothing is installed\n";
  }
  std::ostream& out = invocation.out;
  out << "Libraries that give LibTorch a device:\n";
  for (const TorchDevice& device : kTorchDevices) {
    const LibraryProbe probe = probe_torch_library(device.library, invocation.environment);
    out << "- " << device.devices << ", " << device.library << ": " << state_of(probe) << "\n";
    if (!probe.is_loadable) out << "    to get it: " << device.how_to_get_it << "\n";
  }
  out << "PJRT plug-ins:\n";
  int failures = 0;
  for (const PjrtPlugin& plugin : pjrt_plugins(options, invocation)) {
    const bool is_by_name = plugin.library == "libtpu.so";
    LibraryProbe probe = probe_library(plugin.library, kPjrtEntry);
    if (is_by_name && !probe.is_loadable) {
      const LibraryProbe found = probe_torch_library(plugin.library, invocation.environment);
      if (!found.path.empty()) probe = probe_library(found.path, kPjrtEntry);
    }
    out << "- " << plugin.name << ", " << plugin.library << ": " << state_of(probe);
    if (probe.is_loadable && !probe.has_symbol) {
      out << ", which is not a PJRT plug-in: it has no " << kPjrtEntry;
    }
    out << "\n";
    if (is_by_name && !probe.is_loadable) {
      out << "    to get it: the package libtpu; TPU_LIBRARY_PATH names its file\n";
    }
    failures += plugin.name == "--library" && !(probe.is_loadable && probe.has_symbol);
  }
  out << "A PJRT plug-in serves PyTorch/XLA, which registers the device \"xla\" with LibTorch; "
         "link "
         "or load\nthat library in the program. Without hardware: accelerate launch --simulate "
         "SPEC "
         "PROGRAM.\n";
  const int written = finish(invocation);
  return failures > 0 ? kExitLauncherFailed : written;
}

void declare(CLI::App& app, Options& options) {
  add_value(app, "--library", options.libraries, "PATH",
            "a PJRT plug-in to try as well; may be repeated. It is an error if one cannot be "
            "loaded")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--upgrade", options.upgrade, "accepted; nothing is installed");
}

}  // namespace

const Command kInstallXla = {kName, "Say which device plug-ins are loadable, and how to get one.",
                             with_options<declare, run>};

}  // namespace accelerate::launcher::commands
