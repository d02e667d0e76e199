/// Which files a checkpoint of a model consists of, from what a user names.
///
/// That is a file with weights, an index (`*.index.json`), or a folder with `model.safetensors`,
/// else one `*.safetensors.index.json`, else `pytorch_model.bin`, else one other `*.index.json`.
///
/// Errors:  absl::Status: NotFound for what is not there or names nothing that could be loaded,
///          InvalidArgument for a folder with several candidates, DataLoss for an index that is
///          damaged or does not fit its files. They name the path.
/// Threads: any.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

struct WeightFile {
  std::string path;
  /// What the index says is in it, in order; empty without an index.
  std::vector<std::string> tensors;
};

struct WeightFiles {
  /// By name.
  std::vector<WeightFile> files;
  bool has_index = false;
  std::string index_path;
};

/// Local. Every file of the result exists.
absl::StatusOr<WeightFiles> find_weight_files(FileSystem& files, const std::string& checkpoint);

/// Whether a file holds just what the index says. `in_file`: the tensors that it has.
absl::Status check_weight_file(const WeightFile& file, const std::vector<std::string>& in_file);

}  // namespace accelerate
