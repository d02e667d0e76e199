/// The contents of a checkpoint: its files as values, and a rank's training as such values.
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

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "accelerate/checkpoint/formats/manifest.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/checkpoint/tensor_files/deferred_copy.h"
#include "accelerate/comm/random.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct CheckpointPart {
  /// Without the extension.
  std::string name;
  StateDict state;
  /// True for a part that is a safetensors file even without tensors.
  bool is_model = false;
  /// True for a part that only steps of prepared optimizers change; they wait for its readers.
  bool is_optimizer = false;
};

/// Writes the parts durably and returns their entries for the manifest. `on_progress` gets the
/// number of bytes written, on any thread. Errors: absl::Status naming the file.
absl::StatusOr<std::map<std::string, ManifestFile>> write_parts(
    FileSystem& files, const std::string& folder, const std::vector<CheckpointPart>& parts,
    const std::function<void(int64_t)>& on_progress = {});

/// Copies the tensors of parts into buffers on the host, which are used again for parts of the same
/// names and shapes. Threads: one at a time; what take() gave is written before the next call.
class SnapshotBuffers {
 public:
  /// Copies with `threads` threads. Optimizer states on the host are left to the returned copy,
  /// which is null if there are none.
  std::shared_ptr<internal::DeferredCopy> take(std::vector<CheckpointPart>& parts, int threads);
  void clear() { buffers_.clear(); }

 private:
  std::map<std::pair<std::string, std::string>, at::Tensor> buffers_;
};

/// The files of one complete checkpoint. It verifies all that it reads.
/// Errors: CheckpointError naming the file, and the tensor if it is one that is damaged.
class CheckpointReader {
 public:
  CheckpointReader(FileSystem& files, std::string folder, Manifest manifest)
      : files_(files), folder_(std::move(folder)), manifest_(std::move(manifest)) {}

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  /// The path of NAME.safetensors or NAME.json; nothing where there is neither.
  std::optional<std::string> find(const std::string& name) const;

  /// The part of that name, its tensors on `device`. Errors: also if there is none.
  StateDict read(const std::string& name, c10::Device device = c10::kCPU) const;

  /// Reads tensors of the file of that name into the tensors that `destination` returns; it skips
  /// those for which that is undefined. All destinations are asked for before `begin_reading`,
  /// which may throw, and reading begins after it.
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

namespace accelerate::internal {

/// A rank's training as the parts of a checkpoint, and back; it exists while one is saved or
/// loaded.
///
///   equal on all ranks     model, optimizer, scheduler, custom_checkpoint_{i}, scaler
///   each data share's      dl_state_dict_share{share}, by the first of its ranks on a disk
///   each rank's own        random_states_{rank}, replica_state_rank{rank} unless it is empty, and,
///                          in the middle of an accumulation window, gradients_rank{rank}
///
/// The second object of a kind is model_1, dl_state_dict_1_share{share}, ...
/// Threads: the rank's thread. All is local.
struct TrainingParts {
  Runtime& runtime;
  TrainingState& training;
  GradientState& gradient_state;
  const std::vector<CheckpointedObject>& custom_objects;
  /// How the ranks are arranged; null: each has a share of the data of its own.
  const Mesh* mesh = nullptr;
  /// The first rank that writes to this rank's disk.
  int first_on_disk = 0;

  /// The number of objects of each kind.
  std::map<std::string, int64_t> counts() const;

  /// Manifest::mesh and share_ranks.
  std::string mesh_text() const;
  std::vector<int64_t> share_ranks() const;

  /// The prepared models, and their tensors.
  Modules models() const;
  std::vector<NamedTensors> weights() const;

  /// `weights` and the other parts that are equal on all ranks; own() is the rest.
  std::vector<CheckpointPart> shared(std::vector<NamedTensors> weights) const;
  std::vector<CheckpointPart> own() const;

  /// Makes the steps of all optimizers, including those prepared later, wait for the reader.
  void add_reader(const std::shared_ptr<OptimizerStateReader>& reader) const;

  /// Checks the numbers of objects, before any is loaded.
  /// Errors: as for the functions below c10::ValueError if the checkpoint is of other objects, and
  ///         CheckpointError naming the part that it lacks or that is damaged.
  void check(const CheckpointReader& reader, const Modules& models) const;
  void load_models(const CheckpointReader& reader, const Modules& models, bool strict) const;
  /// Optimizer states are read to `device` first.
  void load(const CheckpointReader& reader, c10::Device device) const;

 private:
  // This rank's share of the data.
  int share() const;
  // The first rank that writes to this rank's disk and has this rank's share.
  int first_of_share() const;
  bool is_arranged_as(const Manifest& manifest) const;
  // The rank whose random states and scales this rank takes over, if there was such a rank and its
  // files can be read by all ranks that must agree with this one.
  std::optional<int> predecessor(const CheckpointReader& reader) const;
  void load_position(const CheckpointReader& reader, LoaderCore& loader, size_t index) const;
  void load_own(const CheckpointReader& reader) const;
  // `derived_from` serves generators of which there is no state in `saved`.
  void load_rng(const RngState& saved, const RngState& derived_from) const;
};

}  // namespace accelerate::internal
