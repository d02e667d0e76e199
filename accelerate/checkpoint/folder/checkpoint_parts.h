/// The files of a checkpoint as values: what is written into its folder, and read from there.
///
/// A StateDict with tensors is NAME.safetensors, with its JSON under the metadata key "values"; one
/// without is NAME.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/checkpoint/formats/manifest.h"
#include "accelerate/checkpoint/tensor_files/deferred_copy.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct CheckpointPart {
  /// Without the extension.
  std::string name;
  StateDict state;
  /// Is a safetensors file also without tensors.
  bool is_model = false;
  /// Changes in steps of prepared optimizers alone, which wait for who reads it.
  bool is_optimizer = false;
};

/// Writes them durably, and returns what a manifest says of them. `on_progress` is told of bytes
/// written, from any thread. Errors: absl::Status naming the file.
absl::StatusOr<std::map<std::string, ManifestFile>> write_parts(
    FileSystem& files, const std::string& folder, const std::vector<CheckpointPart>& parts,
    const std::function<void(int64_t)>& on_progress = {});

/// Copies the tensors of parts into buffers on the host, which are used again for parts of the same
/// names and shapes. Threads: one at a time; what take() gave is written before the next call.
class SnapshotBuffers {
 public:
  /// Copies with so many threads. What optimizers keep on the host is left to what it returns; null
  /// where there is nothing.
  std::shared_ptr<internal::DeferredCopy> take(std::vector<CheckpointPart>& parts, int threads);
  void clear() { buffers_.clear(); }

 private:
  std::map<std::pair<std::string, std::string>, at::Tensor> buffers_;
};

/// The files of one complete checkpoint. What it reads it verifies.
/// Errors: CheckpointError naming the file, and the tensor if it is one that is damaged.
class CheckpointReader {
 public:
  CheckpointReader(FileSystem& files, std::string folder, Manifest manifest)
      : files_(files), folder_(std::move(folder)), manifest_(std::move(manifest)) {}

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  /// The path of NAME.safetensors or NAME.json; nothing where there is neither.
  std::optional<std::string> find(const std::string& name) const;

  /// The part of that name. Errors: also where there is none.
  StateDict read(const std::string& name) const;

  /// Reads tensors of the file of that name into others. `destination` is asked for each first: an
  /// undefined one is passed over. Then `begin_reading`, which may throw.
  void read_into(const std::string& name,
                 const std::function<at::Tensor(const std::string& tensor, at::IntArrayRef sizes)>&
                     destination,
                 const std::function<void()>& begin_reading) const;

 private:
  FileSystem& files_;
  const std::string folder_;
  const Manifest manifest_;
};

}  // namespace accelerate
