/// Which LibTorch the installed files are for. Programs that come with `accelerate` name another
/// one before the dynamic linker misses symbols in it.
///
/// Threads: while the process has one: it forks.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace accelerate::launcher::commands {

/// Whether `program`, which comes with `executable`, loads the LibTorch and the C++ ABI that its
/// installation was built with, as share/accelerate-cpp/release.json says. OK where there is no
/// such file, as in a build by Bazel, and where the version that would be loaded cannot be found
/// out. Errors: FailedPrecondition with both versions, ABIs and the file.
absl::Status check_libtorch(const std::string& executable, const std::string& program);

}  // namespace accelerate::launcher::commands
