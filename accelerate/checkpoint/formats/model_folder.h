/// The weights in a folder, replaced by others so that there are always the old ones or the new.
///
/// A save may be interrupted anywhere, by anything: the folder then holds the old weights or the
/// new ones, complete, for whoever reads it by find_weight_files. All new files are written aside
/// and synced; then
///   one file:     it takes its name, which comes before any index there;
///   other shards: they take their names, then the index its own, then an old single file goes;
///   shards called as the old ones: the index names the new files aside, which is the moment that
///     counts; then they take their names one by one (whoever misses one under its first name finds
///     it under the other), and the index is written again.
/// What is left of earlier saves is removed last.
///
/// Errors:  the FileSystem's; the old weights stay unless the new ones were committed before.
/// Threads: any; one at a time for a folder, and nobody reads it meanwhile.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "accelerate/checkpoint/formats/shard_plan.h"
#include "accelerate/platform/file_system.h"

namespace accelerate::internal {

/// Writes a file with some of the tensors the plan was made for, and syncs it.
using WriteShard =
    std::function<absl::Status(const std::string& path, const std::vector<size_t>& tensors)>;

/// Local. `names` are those of the plan's tensors. The folder is made where there is none.
absl::Status replace_weights(FileSystem& files, const std::string& directory, const ShardPlan& plan,
                             const std::vector<std::string>& names, const WriteShard& write);

}  // namespace accelerate::internal
