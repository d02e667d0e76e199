/// Facts about this machine as text, and probes that may crash or hang their process, so they run
/// in a child (accelerate/platform/child.h).
///
/// The child has 10 s, and its output goes nowhere but to the caller.
/// Threads: probes only while the process has one: they fork; facts any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::launcher::commands {

struct LibraryProbe {
  bool is_loadable = false;
  /// The file, where it could be loaded.
  std::string path;
  /// Whether it, or what it loads, has the symbol that was asked for.
  bool has_symbol = false;
  /// Otherwise: what the dynamic linker said, or how the child ended.
  std::string error;
};

/// Loads a shared object by its path or by its name, as dlopen does. `symbol` may be empty.
LibraryProbe probe_library(const std::string& name, const std::string& symbol = "");

/// The standard output of a program. `argv[0]` is looked for in PATH. Unset if it cannot be run or
/// does not exit with 0.
std::optional<std::string> output_of(const std::vector<std::string>& argv);

// Where LibTorch's libraries are, and of which version, for programs that do not link them. They
// are looked for where the dynamic linker looks, then in the folders that `LIBTORCH`,
// `VIRTUAL_ENV`, `CONDA_PREFIX` and `CMAKE_PREFIX_PATH` name, and in those of the system's Python
// packages.

/// Loads one of LibTorch's libraries, "libtorch_cuda.so", from the first place that has it. Without
/// one the error is the dynamic linker's. `environment` holds `NAME=value` words.
LibraryProbe probe_torch_library(const std::string& library,
                                 absl::Span<const std::string> environment);

/// The file of the library `name`, "libtorch_cpu.so", that the dynamic linker would load with a
/// program or shared object, without running it; empty if it loads none, or cannot be asked.
std::string linked_library(const std::string& program, const std::string& name);

/// The program of `accelerate test`. It links LibTorch as every training program does.
inline constexpr char kSelfTest[] = "accelerate-self-test";

/// The program of `accelerate plan`, which has the simulator and a language model.
inline constexpr char kPlanProgram[] = "accelerate-plan";

/// The program of `accelerate simulate --from_dump`, which reads pickles with LibTorch and has the
/// simulator.
inline constexpr char kDumpReport[] = "accelerate-dump-report";

/// With this word alone accelerate-self-test prints {"libtorch": VERSION, "backends": [NAME, ...],
/// "hwloc": VERSION}, and does nothing else.
inline constexpr char kSelfTestVersions[] = "--versions";

/// A program that comes with `executable`, which is `accelerate`: beside it, as in an installation,
/// or else where Bazel builds it, seen from //launch. Where neither is there it is the first of
/// them, which does not exist.
std::string companion_path(const std::string& executable, absl::string_view name);

/// "2.6.0" for `libtorch_cpu.so`'s file; empty if unknown.
std::string libtorch_version(const std::string& path);

/// Whether `program`, which comes with `executable`, loads the LibTorch and the C++ ABI that its
/// installation was built with, as share/accelerate-cpp/release.json says, before the dynamic
/// linker misses symbols. OK where there is no such file, as in a build by Bazel, and where the
/// version that would be loaded cannot be found out. Errors: FailedPrecondition with both versions,
/// ABIs and the file.
absl::Status check_libtorch(const std::string& executable, const std::string& program);

/// The compiler that made this program: "GCC 14.2.0, C++20".
std::string compiler_text();

/// "optimised, assertions on, address sanitizer".
std::string build_options_text();

/// "Linux-6.1.0-x86_64-with-glibc2.41".
std::string platform_text();

/// The running program's file.
std::string executable_path();

/// The processor's name, and how many of them this process may use.
std::string cpu_text();

/// The size of main memory; 0: unknown.
double memory_bytes();

/// All devices that `launch` may count (settings::installed_devices) and some that it does not, and
/// NVIDIA's names by `root`/proc: "2 x NVIDIA H200", "4 x AMD GPU"; empty for a machine without.
std::vector<std::string> device_texts(const std::string& root = "/");

}  // namespace accelerate::launcher::commands
