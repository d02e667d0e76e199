#include "launch/commands/probe.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/base/json_text.h"
#include "accelerate/platform/child.h"
#include "launch/process/process_plan.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::commands {

using process::environment_value;
using settings::numbered_names;
using settings::read_text;
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> search_folders(absl::Span<const std::string> environment) {
  std::vector<fs::path> folders;
  if (const std::string root = environment_value(environment, "LIBTORCH"); !root.empty()) {
    folders.push_back(fs::path(root) / "lib");
  }
  for (absl::string_view root : absl::StrSplit(environment_value(environment, "CMAKE_PREFIX_PATH"),
                                               absl::ByAnyChar(":;"), absl::SkipEmpty())) {
    folders.push_back(fs::path(std::string(root)) / "lib");
  }
  std::vector<fs::path> packages;
  for (const std::string& prefix : {environment_value(environment, "VIRTUAL_ENV"),
                                    environment_value(environment, "CONDA_PREFIX"),
                                    std::string("/usr/local"), std::string("/usr")}) {
    if (prefix.empty()) continue;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(fs::path(prefix) / "lib", ignored)) {
      if (!absl::StartsWith(entry.path().filename().string(), "python3")) continue;
      packages.push_back(entry.path() / "site-packages");
      packages.push_back(entry.path() / "dist-packages");
    }
  }
  for (const fs::path& folder : packages) {
    // Vendors' devices come as packages of their own.
    for (const char* package :
         {"torch", "torch_npu", "torch_mlu", "torch_musa", "habana_frameworks/torch", "libtpu"}) {
      folders.push_back(folder / package / "lib");
      folders.push_back(folder / package);
    }
  }
  return folders;
}

// The version in a file that is it, at most with spaces around it.
std::string version_of_file(const fs::path& file) {
  const std::string contents = read_text(file).value_or("");
  absl::string_view version = absl::StripAsciiWhitespace(contents);
  version = version.substr(0, version.find_first_of(" \t\r\n\v\f"));
  return !version.empty() && absl::ascii_isdigit(version[0]) ? std::string(version) : "";
}

// The version that a Python module sets.
std::string version_of_module(const fs::path& file) {
  constexpr absl::string_view kBefore = "__version__ = '";
  const std::string contents = read_text(file).value_or("");
  size_t begin = contents.find(kBefore.data());
  if (begin == contents.npos) return "";
  begin += kBefore.size();
  const size_t end = contents.find('\'', begin);
  return end == contents.npos ? "" : contents.substr(begin, end - begin);
}

constexpr absl::Duration kLimit = absl::Seconds(10);

std::string path_of(void* handle) {
  link_map* map = nullptr;
  char real[PATH_MAX];
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || realpath(map->l_name, real) == nullptr) {
    return "";
  }
  return real;
}

// The child writes '+' or '-' for the symbol, then the path; or '!' and the error.
void load_and_report(int fd, const std::string& name, const std::string& symbol) {
  void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    write_all(fd, absl::StrCat("!", dlerror()));
    return;
  }
  const bool has_symbol = !symbol.empty() && dlsym(handle, symbol.c_str()) != nullptr;
  write_all(fd, absl::StrCat(has_symbol ? "+" : "-", path_of(handle)));
}

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

// How many GPUs of which model there are, where the driver tells.
std::map<std::string, int> nvidia_models(const fs::path& root, int count) {
  std::map<std::string, int> models;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", ignored)) {
    const std::string model = field_of(entry.path() / "information", "Model");
    if (!model.empty()) ++models[model];
  }
  if (models.empty()) models[settings::kNvidiaGpu] = count;
  return models;
}

// The numbers of "2.6.0+cu124" or "2.7.0a0".
std::vector<std::string> numbers_of(absl::string_view version) {
  std::vector<std::string> numbers;
  for (const absl::string_view part : absl::StrSplit(version, '.')) {
    numbers.emplace_back(part.substr(0, part.find_first_not_of("0123456789")));
    if (numbers.back().size() < part.size()) break;
  }
  return numbers;
}

// Files of a distribution have fewer numbers in their names: "2.6" for 2.6.0.
bool is_same_version(absl::string_view one, absl::string_view other) {
  const std::vector<std::string> ours = numbers_of(one);
  const std::vector<std::string> theirs = numbers_of(other);
  const size_t common = std::min(ours.size(), theirs.size());
  return std::equal(ours.begin(), ours.begin() + common, theirs.begin());
}

// The C++ ABI of the LibTorch that has the library, where its CMake package tells.
std::optional<int> abi_of(const fs::path& library) {
  const fs::path root = library.parent_path().parent_path();
  const std::string text = read_text(root / "share/cmake/Torch/TorchConfig.cmake").value_or("");
  for (const int abi : {0, 1}) {
    if (absl::StrContains(text, absl::StrCat("_GLIBCXX_USE_CXX11_ABI=", abi))) return abi;
  }
  return std::nullopt;
}

std::string libtorch_text(absl::string_view version, std::optional<int> abi) {
  return absl::StrCat("LibTorch ", version, abi ? absl::StrCat(" (C++11 ABI: ", *abi, ")") : "");
}

}  // namespace

LibraryProbe probe_library(const std::string& name, const std::string& symbol) {
  const absl::StatusOr<ChildResult> child =
      run_in_child([&](int fd) { load_and_report(fd, name, symbol); }, kLimit);
  if (!child.ok()) return {.error = std::string(child.status().message())};
  const std::string& answer = child->output;
  if (child->timed_out)
    return {.error = absl::StrCat("not loaded within ", absl::FormatDuration(kLimit))};
  if (answer.empty()) {
    if (child->signal == 0) return {.error = "loading it ends the process"};
    return {.error = absl::StrCat("it crashes when it is loaded (", strsignal(child->signal), ")")};
  }
  if (answer[0] == '!') return {.error = answer.substr(1)};
  return {.is_loadable = true, .path = answer.substr(1), .has_symbol = answer[0] == '+'};
}

std::optional<std::string> output_of(const std::vector<std::string>& argv) {
  const absl::StatusOr<ChildResult> child =
      run_command(argv, {.collects_errors = false, .limit = kLimit});
  if (!child.ok() || child->exit_code != 0) return std::nullopt;
  return child->output;
}

LibraryProbe probe_torch_library(const std::string& library,
                                 absl::Span<const std::string> environment) {
  LibraryProbe first = probe_library(library);
  if (first.is_loadable) return first;
  for (const fs::path& folder : search_folders(environment)) {
    const std::string file = folder / library;
    if (!settings::file_exists(file)) continue;
    // A file that exists but cannot be loaded is the error to report.
    first = probe_library(file);
    if (first.is_loadable) return first;
    first.path = file;
  }
  return first;
}

std::string linked_library(const std::string& program, const std::string& name) {
  const std::optional<std::string> lines = output_of({"ldd", program});
  if (!lines) return "";
  for (absl::string_view line : absl::StrSplit(*lines, '\n')) {
    // "libtorch_cpu.so.2.6 => /usr/lib/libtorch_cpu.so.2.6 (0x00007f5b4ebf5000)"
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 3 || words[1] != "=>" || !absl::StartsWith(words[0], name)) continue;
    std::error_code failed;
    const fs::path file = fs::canonical(words[2], failed);
    if (!failed) return file.string();
  }
  return "";
}

std::string companion_path(const std::string& executable, absl::string_view name) {
  const fs::path folder = fs::path(executable).parent_path();
  // Bazel keeps the distances between packages in its outputs and in runfiles, and for other
  // workspaces too. //launch:accelerate has the programs in its data, so that they are built.
  for (const char* place : {"", "module_loader", "../integration_tests/self_test",
                            "../accelerate/examples/lm", "../simulator/cluster"}) {
    const fs::path path = (folder / place / std::string(name)).lexically_normal();
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path.string();
  }
  return (folder / std::string(name)).string();
}

std::string libtorch_version(const std::string& path) {
  const fs::path library(path);
  const fs::path root = library.parent_path().parent_path();
  // A release as an archive has a file of its own for this, a Python package a module; in a
  // distribution the file name of the library has it.
  std::string version = version_of_file(root / "build-version");
  if (version.empty()) version = version_of_module(root / "version.py");
  if (version.empty()) {
    const std::string name = library.filename();
    const size_t end = name.find(".so.");
    if (end != name.npos) version = name.substr(end + 4);
  }
  return version;
}

absl::Status check_libtorch(const std::string& executable, const std::string& program) {
  const fs::path root = fs::path(executable).parent_path().parent_path();
  const nlohmann::json release = accelerate::internal::parse_json(
      read_text(root / "share/accelerate-cpp/release.json").value_or(""),
      /*allow_exceptions=*/false);
  if (!release.is_object()) return absl::OkStatus();
  const std::string wanted = release.value("libtorch", std::string());
  const int wanted_abi = release.value("cxx11_abi", 1);
  const std::string library = linked_library(program, "libtorch_cpu.so");
  if (wanted.empty() || library.empty()) return absl::OkStatus();
  const std::string found = libtorch_version(library);
  const std::optional<int> found_abi = abi_of(library);
  const bool is_known = !found.empty();
  const bool is_same_abi = found_abi.value_or(wanted_abi) == wanted_abi;
  if ((!is_known || is_same_version(found, wanted)) && is_same_abi) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "Accelerate was built with ", libtorch_text(wanted, wanted_abi), ", and ",
      libtorch_text(is_known ? found : "of an unknown version", found_abi), " was found: ", library,
      ". Take the release of Accelerate for this LibTorch, or put the folder of the other one "
      "first in LD_LIBRARY_PATH"));
}

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
  cpu_set_t set;
  const bool is_known = sched_getaffinity(0, sizeof(set), &set) == 0;
  return absl::StrCat(name, ", ", is_known ? CPU_COUNT(&set) : 0, " usable");
}

double memory_bytes() {
  const std::string text = field_of("/proc/meminfo", "MemTotal");
  int64_t kilobytes = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(text, " kB"), &kilobytes)) return 0;
  return static_cast<double>(kilobytes) * 1024;
}

std::vector<std::string> device_texts(const std::string& root) {
  std::vector<std::string> texts;
  for (const settings::InstalledDevices& devices : settings::installed_devices(root)) {
    std::map<std::string, int> models = {{devices.name, devices.count}};
    if (devices.name == settings::kNvidiaGpu) models = nvidia_models(root, devices.count);
    for (const auto& [model, count] : models) texts.push_back(absl::StrCat(count, " x ", model));
  }
  // Devices that no kind of run takes.
  for (const auto& [folder, prefix, name] :
       {std::array{"accel", "accel", "accelerator"},
        std::array{"vfio", "", "device given to this machine by VFIO"}}) {
    const size_t count = numbered_names(fs::path(root) / "dev" / folder, prefix).size();
    if (count > 0) texts.push_back(absl::StrCat(count, " x ", name));
  }
  return texts;
}

}  // namespace accelerate::launcher::commands
