/// Where LibTorch's libraries are, and of which version: for programs that do not link them.
///
/// Looked for: where the dynamic linker looks, then in the folders that `LIBTORCH`, `VIRTUAL_ENV`,
/// `CONDA_PREFIX` and `CMAKE_PREFIX_PATH` name, and in those of the system's Python packages.
/// Threads: only while the process has one.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "launch/commands/probe.h"

namespace accelerate::launch::commands {

/// Loads one of LibTorch's libraries, "libtorch_cuda.so", from the first place that has it. Without
/// one the error is the dynamic linker's. `environment` holds `NAME=value` words.
LibraryProbe probe_torch_library(const std::string& library,
                                 absl::Span<const std::string> environment);

/// "2.6.0" for `libtorch_cpu.so`'s file; empty if nothing beside it says so.
std::string libtorch_version(const std::string& path);

}  // namespace accelerate::launch::commands
