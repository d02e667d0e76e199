/// What stands for values that were not computed: see shapes.h.
///
/// Threads: as the function's.
#pragma once

#include <functional>
#include <string>

namespace accelerate::simulator {

/// The number that the host gets when `operation` gives it a value that was not computed. Where the
/// tensor holds integers, what is not finite counts as 0.
using UnknownValue = std::function<double(const std::string& operation)>;

}  // namespace accelerate::simulator
