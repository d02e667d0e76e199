/// Packages of compiled regions on disk: where they are, and the checks before their code is
/// loaded.
///
/// A region that is to be compiled is a file of its LibTorch release, of what is asked of the
/// compiler, and of its text. The file's SHA-256 is the region's id. The cache has a folder for
/// each:
///
///     CACHE/2.6.0/ID/region        the file
///     CACHE/2.6.0/ID/package.json  what tools/compile_regions.py made of it, and for which machine
///     CACHE/2.6.0/ID/forward.so    code, with forward.json where it calls LibTorch by name
///     CACHE/2.6.0/ID/backward.so
///
/// Code is loaded as it is and checks nothing. So a package counts only if all of it belongs to
/// this user or to root and nobody else can write it, if its files are in its folder and are those
/// that package.json has the SHA-256 of, and if the machine has the instructions that it was made
/// for.
///
/// Errors:  absl::Status, one line.
/// Threads: any; several processes may write the same region.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate {

namespace env {

/// The folder of packages. Default: accelerate-cpp/regions in XDG_CACHE_HOME or ~/.cache.
inline constexpr char kCompileCache[] = "ACCELERATE_COMPILE_CACHE";
/// "true": regions that have no package are written into the cache. `accelerate compile` sets it.
inline constexpr char kCompileRecord[] = "ACCELERATE_COMPILE_RECORD";

}  // namespace env

/// The folder that the variables name; `variable` gives one's value, empty where it is unset.
/// Errors: FailedPrecondition where no variable names a place.
absl::StatusOr<std::string> region_cache(
    const std::function<std::string(std::string_view)>& variable);

/// A region, and what is asked of its compiler.
struct RegionRequest {
  std::string libtorch;  ///< "2.6.0"
  std::string mode = "default";
  /// A JSON object.
  std::string options = "{}";
  /// See region_program.h.
  std::string text;
};

/// The file of a request, and its id.
std::string region_file(const RegionRequest& request);
std::string region_id(const RegionRequest& request);

/// Writes a request's file into the cache, unless it is there.
absl::Status write_region(const std::string& cache, const RegionRequest& request);

/// The machine that is to run a package.
struct RegionMachine {
  std::string name;                ///< "x86_64"
  std::set<std::string> features;  ///< of its CPU, as the kernel calls them
  int64_t user = 0;

  static RegionMachine current();
};

/// Where a tensor comes from that a half of a region gives.
struct PackageSource {
  enum class Kind : uint8_t {
    kNone,    ///< there is none
    kResult,  ///< of the half's code
    kInput,   ///< of the region
    kSaved,   ///< of the forward half
    kGrad,    ///< of a differentiable output
  };
  Kind kind = Kind::kNone;
  int index = 0;

  bool operator==(const PackageSource&) const = default;
};

struct RegionPackage {
  std::string folder;
  /// The region's inputs that the code of the forward half takes.
  std::vector<int> inputs;
  std::vector<PackageSource> outputs;
  /// What the backward half needs of the forward half. Its code takes these, then the gradients of
  /// the differentiable outputs.
  std::vector<PackageSource> saved;
  bool has_backward = false;
  std::vector<PackageSource> gradients;

  std::string forward_code() const { return folder + "/forward.so"; }
  std::string backward_code() const { return folder + "/backward.so"; }
};

/// The package of a request, whose files are as they should be. Errors: NotFound where there is
/// none; PermissionDenied where others could have written it; DataLoss for files that are cut off
/// or changed; FailedPrecondition for another release, region or machine; InvalidArgument for a
/// package.json that cannot be read, or names files elsewhere.
absl::StatusOr<RegionPackage> find_package(const std::string& cache, const RegionRequest& request,
                                           const RegionMachine& machine);

/// What a cache has of a region.
struct CachedRegion {
  std::string libtorch;
  std::string id;
  int64_t operators = 0;
  bool has_backward = false;
  /// The size of its package; 0: it has none, or one in the form of another version.
  int64_t bytes = 0;
};

/// By release and id; a cache that does not exist is empty.
absl::StatusOr<std::vector<CachedRegion>> list_regions(const std::string& cache);

/// Removes all regions with their packages, also those whose text was not written to its end, and
/// nothing else. Returns how many there were.
absl::StatusOr<int64_t> clear_regions(const std::string& cache);

}  // namespace accelerate
