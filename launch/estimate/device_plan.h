/// Where the parts of an architecture go: its modules and tensors as a tree that device maps are
/// planned on.
///
/// Errors:  none.
/// Threads: pure functions.
#pragma once

#include "accelerate/device_map/module_tree.h"
#include "launch/estimate/architecture.h"

namespace accelerate::launcher::estimate {

/// The class of modules that are never divided; others are of the class "Module".
inline constexpr char kNoSplitClass[] = "NoSplit";

/// Tensors are parameters, in the order of their names, in which numbers count as numbers.
ModuleTree module_tree(const Architecture& architecture);

}  // namespace accelerate::launcher::estimate
