/// Probes that may crash or hang their process, so they run in a child
/// (accelerate/platform/child.h).
///
/// The child has 10 s, and its output goes nowhere but to the caller.
/// Threads: only while the process has one: it forks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace accelerate::launch::commands {

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

/// What a program writes to standard output. `argv[0]` is looked for in PATH. Unset if it cannot be
/// run or does not exit with 0.
std::optional<std::string> output_of(const std::vector<std::string>& argv);

// Where LibTorch's libraries are, and of which version, for programs that do not link them. They
// are looked for where the dynamic linker looks, then in the folders that `LIBTORCH`,
// `VIRTUAL_ENV`, `CONDA_PREFIX` and `CMAKE_PREFIX_PATH` name, and in those of the system's Python
// packages.

/// Loads one of LibTorch's libraries, "libtorch_cuda.so", from the first place that has it. Without
/// one the error is the dynamic linker's. `environment` holds `NAME=value` words.
LibraryProbe probe_torch_library(const std::string& library,
                                 absl::Span<const std::string> environment);

/// "2.6.0" for `libtorch_cpu.so`'s file; empty if unknown.
std::string libtorch_version(const std::string& path);

}  // namespace accelerate::launch::commands
