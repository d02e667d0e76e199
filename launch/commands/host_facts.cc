#include "launch/commands/host_facts.h"

#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/utsname.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launch/settings/machine.h"

namespace accelerate::launch::commands {

using settings::numbered_names;
namespace {

namespace fs = std::filesystem;

// The value of "name : value" in a file of such lines; the first one.
std::string field_of(const fs::path& path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() == 2 && absl::StripAsciiWhitespace(parts[0]) == name) {
      return std::string(absl::StripAsciiWhitespace(parts[1]));
    }
  }
  return "";
}

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 0;
  return CPU_COUNT(&set);
}

}  // namespace

std::string compiler_text() {
#if defined(__clang__)
  const std::string name = absl::StrCat("Clang ", __clang_version__);
#else
  const std::string name = absl::StrCat("GCC ", __VERSION__);
#endif
  return absl::StrCat(name, ", C++", __cplusplus / 100 % 100);
}

std::string build_options_text() {
  std::vector<std::string> parts;
#ifdef __OPTIMIZE__
  parts.push_back("optimised");
#else
  parts.push_back("not optimised");
#endif
#ifdef NDEBUG
  parts.push_back("assertions off");
#else
  parts.push_back("assertions on");
#endif
#ifdef __SANITIZE_ADDRESS__
  parts.push_back("address sanitizer");
#endif
#ifdef __SANITIZE_THREAD__
  parts.push_back("thread sanitizer");
#endif
  return absl::StrJoin(parts, ", ");
}

std::string platform_text() {
  utsname names;
  if (uname(&names) != 0) return "unknown";
  return absl::StrCat(names.sysname, "-", names.release, "-", names.machine, "-with-glibc",
                      gnu_get_libc_version());
}

std::string executable_path() {
  std::error_code failed;
  const fs::path path = fs::read_symlink("/proc/self/exe", failed);
  return failed ? "unknown" : path.string();
}

std::string cpu_text() {
  std::string name = field_of("/proc/cpuinfo", "model name");
  if (name.empty()) name = "unknown";
  return absl::StrCat(name, ", ", usable_processors(), " usable");
}

double memory_bytes() {
  const std::string text = field_of("/proc/meminfo", "MemTotal");
  int64_t kilobytes = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(text, " kB"), &kilobytes)) return 0;
  return static_cast<double>(kilobytes) * 1024;
}

std::vector<std::string> device_texts(const std::string& root) {
  std::vector<std::string> texts;
  const fs::path dev = fs::path(root.empty() ? "/" : root) / "dev";
  if (const size_t count = numbered_names(dev, "nvidia").size(); count > 0) {
    std::map<std::string, int> models;
    std::error_code ignored;
    const fs::path gpus = fs::path(root.empty() ? "/" : root) / "proc/driver/nvidia/gpus";
    for (const auto& entry : fs::directory_iterator(gpus, ignored)) {
      const std::string model = field_of(entry.path() / "information", "Model");
      if (!model.empty()) ++models[model];
    }
    if (models.empty()) models["NVIDIA GPU"] = static_cast<int>(count);
    for (const auto& [model, n] : models) texts.push_back(absl::StrCat(n, " x ", model));
  }
  struct Kind {
    const char* folder;
    const char* prefix;
    const char* name;
  };
  std::error_code ignored;
  const bool is_amd = fs::exists(dev / "kfd", ignored);
  for (const Kind& kind :
       {Kind{"dri", "renderD", is_amd ? "AMD GPU (/dev/kfd)" : nullptr},
        Kind{".", "davinci", "Ascend NPU"}, Kind{"accel", "accel", "accelerator"},
        Kind{".", "accel", "TPU or accelerator"}, Kind{".", "neuron", "Neuron"},
        Kind{".", "cambricon_dev", "Cambricon MLU"}, Kind{".", "mtgpu.", "Moore Threads GPU"},
        Kind{"vfio", "", "device given to this machine by VFIO"}}) {
    if (kind.name == nullptr) continue;
    const size_t count = numbered_names(dev / kind.folder, kind.prefix).size();
    if (count > 0) texts.push_back(absl::StrCat(count, " x ", kind.name));
  }
  return texts;
}

}  // namespace accelerate::launch::commands
