/// The names of modules' classes.
///
/// Threads: pure functions.
#pragma once

#include <string>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// The module's name for its class: `Linear` for torch::nn::LinearImpl, `Block` for
/// examples::BlockImpl.
std::string module_class_name(const torch::nn::Module& module);

}  // namespace accelerate
