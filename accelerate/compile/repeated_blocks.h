/// Which modules of a model are compiled one by one: the equal blocks in its lists.
///
/// Threads: pure functions.
/// Mirrors: accelerate utils/other.py, is_repeated_blocks, has_repeated_blocks.
#pragma once

#include <string>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// Whether the module is a ModuleList with modules of one class alone, and at least one.
bool is_repeated_blocks(const torch::nn::Module& module);

/// Whether the module, or one below it, is such a list.
bool has_repeated_blocks(const torch::nn::Module& module);

/// The names of the modules that become regions where a model calls them by accelerate::block():
/// the blocks of such lists, and what has none below it beside them; "" is the model itself. In the
/// order of the children.
std::vector<std::string> region_names(const torch::nn::Module& module);

}  // namespace accelerate
