/// The compilers of regions by the names of DynamoBackend, and the registry of them.
///
/// What each name does is in accelerate/base/compile_backends.h. INDUCTOR looks for packages
/// (packages/package.h) of a region on CPUs; a device may have a compiler of its own. A program may
/// register what this library lacks, before it makes an Accelerator:
///
///     register_compile_backend(DynamoBackend::kTvm, [](const TorchDynamoPlugin& plugin) {
///       return std::make_unique<TvmRegions>(plugin);
///     });
///
/// Errors:  c10::ValueError for a name without a compiler, naming the nearest that has one.
/// Threads: any; registration comes before the first look-up of its name.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <c10/core/DeviceType.h>

#include "accelerate/base/enums.h"
#include "accelerate/compile/region_program.h"

namespace accelerate {

struct RegionPackage;
struct TorchDynamoPlugin;

class CompileBackend {
 public:
  virtual ~CompileBackend() = default;
  /// Whether regions are recorded; if not, they are only counted.
  virtual bool records() const { return true; }
  /// The region's code; null: there is none, and the region runs as it is. Must not take long: a
  /// training step waits for it.
  virtual std::unique_ptr<const RegionCode> compile(
      std::shared_ptr<const RegionProgram> program) = 0;
  /// Why the last compile() gave null: what to say once.
  virtual std::string advice() const { return ""; }
};

/// Runs the program operator by operator.
std::unique_ptr<const RegionCode> interpreted(std::shared_ptr<const RegionProgram> program);

/// Runs the package of the program's text, whose files were checked, by LibTorch's runner of
/// AOTInductor. The code checks nothing: tensors of another size give results of the recorded size,
/// tensors of another dtype give garbage. So what it gets must be as it was recorded, which the
/// caller's guards (region_key.h) make sure of; parameters that come and go must be in memory.
/// Errors:  c10::Error for code that cannot be loaded, or gives less than the package says.
/// Threads: any; calls of one half wait for each other.
std::unique_ptr<const RegionCode> load_package(const RegionPackage& package,
                                               std::shared_ptr<const RegionProgram> program);

using CompileBackendFactory =
    std::function<std::unique_ptr<CompileBackend>(const TorchDynamoPlugin& plugin)>;

using RegionCompiler =
    std::function<std::unique_ptr<const RegionCode>(std::shared_ptr<const RegionProgram>)>;

/// What INDUCTOR makes of regions on devices of a type, in place of what the type had.
/// Process-wide.
void register_region_compiler(c10::DeviceType type, RegionCompiler compiler);

/// In place of what the name had. Process-wide.
void register_compile_backend(DynamoBackend backend, CompileBackendFactory factory);

/// That the name has a compiler.
void check_compile_backend(DynamoBackend backend);

/// The compiler of a resolved plug-in.
std::unique_ptr<CompileBackend> make_compile_backend(const TorchDynamoPlugin& plugin);

}  // namespace accelerate
