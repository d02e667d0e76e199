/// Runs the package of a compiled region (packages/package.h) by LibTorch's runner of AOTInductor.
///
/// The code checks nothing: tensors of another size give results of the recorded size, tensors of
/// another dtype give garbage. So what it gets must be as it was recorded, which the caller's
/// guards (region_key.h) make sure of; parameters that come and go must be in memory.
///
/// Errors:  c10::Error for code that cannot be loaded, or gives less than the package says.
/// Threads: any; calls of one half wait for each other.
#pragma once

#include <memory>

#include "accelerate/compile/packages/package.h"
#include "accelerate/compile/region_program.h"

namespace accelerate {

/// `package` is that of the program's text, and its files were checked.
std::unique_ptr<const RegionCode> load_package(const RegionPackage& package,
                                               std::shared_ptr<const RegionProgram> program);

}  // namespace accelerate
