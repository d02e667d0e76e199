/// What this build and this machine can do, by name: one table that answers for what is a package
/// to install in Python.
///
/// Local; answers do not change while a program runs, but for tools that are looked up.
/// Threads: any.
/// Mirrors: the is_..._available() checks of packages, torchao_required, deepspeed_required.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// What a feature's name is in Python.
enum class FeatureKind {
  kPackage,  ///< a package for which there is nothing to import in C++
  kEngine,   ///< an engine with a native replacement here
  kTracker,  ///< a service that records experiments
  kLibrary,  ///< a system library that is looked up at run time
  kBuild,    ///< part of LibTorch, or of this project
};

struct Feature {
  std::string name;
  FeatureKind kind;
  bool available = false;
  /// What takes its place here, or why nothing does.
  std::string note;
};

/// The compiler's view of this build.
struct BuildInfo {
  std::string version;           ///< of this project
  std::string libtorch_version;  ///< as compiled against
  std::string compiler;
  std::string flags;  ///< "optimised", "assertions", sanitizers
  /// Sorted by name.
  std::vector<Feature> features;
};

/// A simulated rank gets the same answers on every machine: what would be looked up is missing.
BuildInfo build_info(const Runtime& runtime = Runtime::current());

/// Errors: c10::ValueError listing the known names for an unknown one.
bool is_feature_available(std::string_view name, const Runtime& runtime = Runtime::current());

/// Errors: c10::NotImplementedError naming the feature and why it is missing; as above.
void require_feature(std::string_view name, const Runtime& runtime = Runtime::current());

}  // namespace accelerate
