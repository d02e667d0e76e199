/// A warning about operating systems on which training is known to hang.
///
/// Mirrors: accelerate utils/other.py, check_os_kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// Warns, on rank 0, if this machine runs a Linux kernel before 5.5. Local.
void check_os_kernel(const Runtime& runtime = Runtime::current());

namespace internal {
/// The warning for a system by its names from uname; absent for other systems and for unknown
/// releases.
std::optional<std::string> kernel_warning(std::string_view system, std::string_view release);
}  // namespace internal

}  // namespace accelerate
