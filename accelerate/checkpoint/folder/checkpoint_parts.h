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
#include "accelerate/base/enums.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/comm/random.h"
#include "accelerate/files/deferred_copy.h"
#include "accelerate/files/formats/manifest.h"
#include "accelerate/files/stored_tensors.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

class ShardPlaces;
struct ReadModelOptions;

namespace internal {
struct ShardedObject;

/// The name of a file of a stored object's folder in its checkpoint; `folder` is empty for an
/// object that is a checkpoint by itself.
std::string in_folder(const std::string& folder, const std::string& name);
}  // namespace internal

struct CheckpointPart {
  /// Without the extension; may be in a folder, "optimizer_0/metadata".
  std::string name;
  StateDict state;
  /// True for a part that is a safetensors file even without tensors.
  bool is_model = false;
  /// True for a part that only steps of prepared optimizers change; they wait for its readers.
  bool is_optimizer = false;
  /// True for a rank's part of tensors that are divided: the manifest has one checksum for the file
  /// and none for its tensors, so that it does not grow with their number times that of ranks.
  bool is_shard = false;
};

/// Writes the parts durably and returns their entries for the manifest. `on_progress` gets the
/// number of bytes written, on any thread. Errors: absl::Status naming the file.
absl::StatusOr<std::map<std::string, ManifestFile>> write_parts(
    FileSystem& files, const std::string& folder, const std::vector<CheckpointPart>& parts,
    const std::function<void(int64_t)>& on_progress = {});

/// Copies the tensors of parts into buffers on the host, which are used again for parts of the same
/// names and shapes. Threads: one at a time; what copy() gave is written before the next call.
class SnapshotBuffers {
 public:
  /// Copies with `threads` threads. Optimizer states on the host are left to the returned copy,
  /// which is null if there are none.
  std::shared_ptr<internal::DeferredCopy> copy(std::vector<CheckpointPart>& parts, int threads);
  void clear() { buffers_.clear(); }

 private:
  std::map<std::pair<std::string, std::string>, at::Tensor> buffers_;
};

/// The files of one complete checkpoint. It verifies all that it reads.
/// Errors: CheckpointError naming the file, and the tensor if it is one that is damaged.
class CheckpointReader {
 public:
  /// Errors: c10::ValueError for the checkpoint of a run with shapes alone, unless the current
  ///         Runtime is one as well.
  CheckpointReader(FileSystem& files, std::string folder, Manifest manifest);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  /// The path of NAME.safetensors or NAME.json; nothing where there is neither.
  std::optional<std::string> find(const std::string& name) const;

  /// The part of that name, its tensors on `device`. Errors: also if there is none.
  StateDict read(const std::string& name, c10::Device device = c10::kCPU) const;

  /// The tensors of NAME.safetensors. Errors: also if there is no such file.
  StoredTensors open(const std::string& name) const;

  /// Whether ranks have divided it: there is NAME/metadata.json, or metadata.json for the name "".
  bool is_divided(const std::string& name) const;
  /// Its tensors.
  StoredTensors open_divided(const std::string& name) const;

 private:
  std::string read_text(const std::string& name) const;

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
///   divided among ranks    pytorch_model_fsdp_{i}/, optimizer_{i}/: see sharded_parts.h
///   each data share's      dl_state_dict_share{share}, by the first of its ranks on a disk
///   each rank's own        random_states_{rank}, replica_state_rank{rank} unless it is empty, and,
///                          in the middle of an accumulation window, gradients_rank{rank} and
///                          shard_gradients_rank{rank}
///
/// The second object of a kind is model_1, dl_state_dict_1_share{share}, ...
///
/// In the mesh that saved them, ranks go on with their own random numbers. In another one a rank
/// continues those of the first saved rank of its share of the data, because ranks of one share
/// draw alike and others differently. Where ranks of a share have parts of tensors, their own
/// streams follow from these states (operators/random_streams.h). A technique that has generators
/// besides keeps their states in Technique::state_dict().
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
  /// The rank's device.
  c10::Device device = c10::kCPU;
  /// For a save, by rank: the first rank that writes to its disk.
  std::vector<int64_t> disks = {};
  /// In what form a save has models that are divided.
  StateDictType state_dict_type = StateDictType::kShardedStateDict;
  /// The ranks along pp, where models are in stages; null: each rank has all stages.
  ProcessGroupPtr stages = nullptr;

  /// Whether ranks have divided some of the models, or train tensors in place of parameters.
  bool divides() const;
  /// Whether models are divided and are to be saved whole.
  bool gathers() const { return divides() && state_dict_type == StateDictType::kFullStateDict; }
  /// Whether ranks ask others something to save their parts.
  bool is_collective() const { return stages != nullptr || gathers(); }

  /// The number of objects of each kind.
  std::map<std::string, int64_t> counts() const;

  /// Manifest::mesh and share_ranks.
  std::string mesh_text() const;
  std::vector<int64_t> share_ranks() const;

  /// The prepared models, and their tensors: this rank's shards of what is divided.
  Modules models() const;
  std::vector<NamedTensors> weights() const;

  /// All parts that this rank writes: its own, its shards of what is divided, and, with
  /// `writes_shared`, those that are equal on all ranks. Collective where is_collective().
  std::vector<CheckpointPart> collect(const std::vector<NamedTensors>& weights,
                                      bool writes_shared) const;

  /// Makes the steps of all optimizers, including those prepared later, wait for the reader.
  void add_reader(const std::shared_ptr<OptimizerStateReader>& reader) const;

  /// Checks the numbers of objects, before any is loaded.
  /// Errors: as for the functions below c10::ValueError if the checkpoint is of other objects, and
  ///         CheckpointError naming the part that it lacks or that is damaged.
  void check(const CheckpointReader& reader, const Modules& models) const;
  void load_models(const CheckpointReader& reader, const Modules& models, bool strict) const;
  /// Optimizer states are read to `device` first.
  void load(const CheckpointReader& reader, c10::Device device) const;

  // ---- One object by itself. Collective: whole_part, and those that say so.

  /// What ranks have of a model with these weights, and of an optimizer that trains these
  /// parameters; without a folder. Collective over `stages`.
  ShardedObject model_object(const NamedTensors& weights, const ShardPlaces& shards) const;
  ShardedObject optimizer_object(SharedOptimizer& optimizer, const NamedTensors& parameters,
                                 const ShardPlaces& shards) const;
  /// The object with whole tensors, which those ranks get that want it.
  CheckpointPart whole_part(const ShardedObject& object, const std::string& name,
                            bool is_wanted) const;
  /// What this rank has of it, for the same rank of the same layout.
  /// `shards`: of all models, as for check_own_part.
  CheckpointPart own_part(ShardedObject object, const std::string& name,
                          const ShardPlaces& shards) const;
  /// Takes what own_part added out of a part's values. Errors: c10::ValueError, which begins with
  /// `what`, for a part that is not this rank's.
  void check_own_part(nlohmann::ordered_json& values, const std::string& what,
                      const ShardPlaces& shards) const;

  /// Reads this rank's part of a stored model or optimizer. `what` and `path` say what is stored.
  void read_model(StoredTensors& stored, const std::string& what, const torch::nn::Module& module,
                  const ShardPlaces& shards, const ReadModelOptions& options) const;
  void read_optimizer(StoredTensors& stored, const std::string& path, SharedOptimizer& optimizer,
                      const NamedTensors& parameters, const ShardPlaces& shards,
                      c10::Device device) const;

 private:
  // The parts that are equal on all ranks, a rank's own, and those that are divided.
  std::vector<CheckpointPart> shared(const std::vector<NamedTensors>& weights,
                                     const ShardPlaces& shards) const;
  std::vector<CheckpointPart> own() const;
  std::vector<CheckpointPart> divided(const std::vector<NamedTensors>& weights,
                                      const ShardPlaces& shards, bool writes_shared) const;
  // This rank's part of a model as it is, if the checkpoint has that.
  bool load_own_part(const CheckpointReader& reader, size_t index, const torch::nn::Module& module,
                     const ShardPlaces& shards) const;
  void load_optimizer(const CheckpointReader& reader, size_t index, SharedOptimizer& optimizer,
                      const ShardPlaces& shards, c10::Device device) const;
  // Where what this rank read was divided otherwise than its models are.
  void verify_share(StoredTensors& stored, bool reads_shards) const;
  // This rank's share of the data.
  int share() const;
  // The first rank that writes to this rank's disk and has this rank's share.
  int first_of_share() const;
  bool is_arranged_as(const Manifest& manifest) const;
  // Whether the gradients that this rank saved, if there are any, are of tensors that are cut as
  // its own are, and divided in as many parts.
  bool has_same_shards(const CheckpointReader& reader) const;
  // The rank whose random states and scales this rank takes over, if there was such a rank and its
  // files can be read by all ranks that must agree with this one.
  std::optional<int> predecessor(const CheckpointReader& reader) const;
  void load_position(const CheckpointReader& reader, LoaderCore& loader, size_t index) const;
  void load_own(const CheckpointReader& reader) const;
  // `derived_from` serves generators of which there is no state in `saved`.
  void load_rng(const RngState& saved, const RngState& derived_from) const;
};

}  // namespace accelerate::internal
