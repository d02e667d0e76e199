/// The files of a checkpoint that is being loaded.
///
/// Errors:  as load_checkpoint_in_model's.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "accelerate/big_model/load_plan.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/files/torch_file.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// A file of a checkpoint. A pickled one is in memory from its first use until close().
class OpenFile {
 public:
  /// Errors: c10::ValueError for a file of another framework than PyTorch.
  OpenFile(FileSystem& files, std::string path);

  /// Everything that has a name.
  std::vector<StoredTensor> list();
  /// Into tensors of the same sizes, of any device and dtype.
  void read_into(const NamedTensors& destinations);
  /// Elements from number `first` on, into a vector on the CPU of the tensor's dtype.
  absl::Status read_elements(const std::string& name, int64_t first, const at::Tensor& out);
  /// Errors: also for a tensor that cannot be read.
  NamedTensors read_all();
  /// Throws for a tensor that cannot be read.
  void check_all_readable();
  void close() { pickled_.reset(); }

 private:
  const TorchStateDict& pickled();
  const at::Tensor& find(const std::string& name);

  FileSystem& files_;
  const std::string path_;
  std::optional<SafetensorsFile> safetensors_;
  std::optional<TorchStateDict> pickled_;
};

struct OpenCheckpoint {
  std::vector<OpenFile> files;
  std::vector<StoredTensor> tensors;
  std::optional<size_t> last = {};  // of the files, by file_of

  /// One pickled file at a time is in memory.
  OpenFile& file_of(const StoredTensor& stored);
  /// A copy of a tensor that is there, and can be read.
  at::Tensor read(const std::string& name);
};

OpenCheckpoint open_checkpoint(FileSystem& files, const std::string& checkpoint);

}  // namespace accelerate::internal
