/// The states of models and optimizers of whose parameters ranks have parts: what each rank has of
/// them, and where that belongs, which is asked of the models' placements.
///
/// Threads: the rank's thread. All is local but gather_whole, and what says so.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/checkpoint/objects/placed_part.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/files/stored_tensors.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// The layout of a model of which more than rows is divided, the same on every rank; empty for
/// others.
std::string cuts_of(const ModelState& model);

/// What this rank trains of those of the models that ranks have divided.
class ShardPlaces {
 public:
  explicit ShardPlaces(const std::vector<std::shared_ptr<ModelState>>& models);

  struct Entry {
    at::Tensor shard;
    PlacedPart place;
  };
  /// That of a shard, of its parameter, or of a tensor that shares memory with one of them; null
  /// for others.
  const Entry* find(const at::Tensor& tensor) const;
  /// Whether one of the tensors is a shard.
  bool any(const NamedTensors& tensors) const;

  /// How ranks are arranged; one rank where there are no shards.
  const Mesh& mesh() const { return mesh_; }
  /// The axes along which ranks divide rows; of models that differ in it, the most. Absent: there
  /// are no shards.
  const std::optional<AxisSet>& rows() const { return rows_; }
  /// In how many parts rows are divided, where there are shards.
  int64_t num_row_parts() const { return mesh_.size(rows_.value_or(AxisSet())); }
  /// In how many parts ranks have the models, and which one this rank has; -1 where there are no
  /// shards.
  int64_t num_parts() const { return mesh_.size(axes_); }
  int64_t part() const { return rows_ ? mesh_.coordinate(rank_, axes_) : -1; }
  /// cuts_of the models, one behind the other.
  const std::string& cuts() const { return cuts_; }

 private:
  void add(const ModelPlacements& placements, const TrainedParameter& parameter,
           bool copies_differ = false);

  std::map<const void*, Entry> by_storage_;  // only looked up
  Mesh mesh_ = Mesh(MeshSizes());
  int rank_ = 0;
  AxisSet axes_;  // along which ranks have different parts
  std::optional<AxisSet> rows_;
  std::string cuts_;
};

/// The whole tensor that ranks have parts of, on the host of those that want it; undefined on the
/// others. No rank has more than this tensor on `device` meanwhile. Collective over the group of
/// `place`.
at::Tensor gather_whole(const PlacedPart& place, const at::Tensor& part, c10::Device device,
                        bool is_wanted);

/// As module_state_dict, with this rank's shards in place of parameters that are sharded, and, of
/// tensors that are on the host or in files between uses, those. The latter may be mapped files,
/// which are not to be written to. Errors: CheckpointError naming a file that cannot be read.
NamedTensors trained_state_dict(const ModelState& model);

/// The names by which the states of optimizers are saved: those of the models' parameters, of the
/// second model with "model_1." before them, and so on; the tensors are what optimizers train.
NamedTensors trained_parameters(const std::vector<std::shared_ptr<ModelState>>& models);

/// Whether an optimizer trains shards.
bool trains_shards(const internal::SharedOptimizer& optimizer, const ShardPlaces& places);

/// For each tensor of an optimizer's state its place; absent for one that all ranks have alike.
/// Errors: c10::ValueError for the state of a class that saves itself, and for a tensor of another
///         shape than its parameter's, where ranks divide more of that than rows.
std::vector<std::optional<PlacedPart>> places_of_state(const internal::SharedOptimizer& optimizer,
                                                       const ShardPlaces& places,
                                                       const NamedTensors& state);

// ---- What the ranks along pp tell each other before they save models and optimizers of which they
// have stages. Every rank knows which tensors a model has. It knows neither in which dtypes other
// ranks keep the tensors of their stages, nor which states their optimizers have for these.
// `stages` are the ranks along pp; null: this rank has all stages. Collective over `stages`.
// Errors: those of internal::agree, on all of these ranks.

/// In which dtype the first rank keeps each tensor that has elements of it. All ranks have the same
/// names.
std::vector<at::ScalarType> dtypes_of_stages(const ProcessGroupPtr& stages,
                                             const ShardPlaces& places,
                                             const NamedTensors& tensors);

/// The state of an optimizer, with the place of each tensor as places_of_state gives it.
struct PlacedState {
  StateDict state = {};
  std::vector<std::optional<PlacedPart>> places = {};
};

/// The state of this rank's optimizer, with what other ranks have of theirs: the values, and the
/// names and places of the tensors, which are empty here. All ranks get the same names in the same
/// order.
/// Errors: also those of places_of_state.
PlacedState state_of_stages(const ProcessGroupPtr& stages,
                            const internal::SharedOptimizer& optimizer, const ShardPlaces& places,
                            StateDict own);

struct ReadModelOptions {
  /// Whether missing and unexpected names are errors.
  bool strict = true;
  /// The module's tensors that are read; the others keep what they have. Null: all.
  std::function<bool(const std::string& name)> wanted = nullptr;
};

struct PartsOfModel {
  std::vector<StoredTensors::Part> parts;
  /// Tensors whose values are in files, which do not change, and their values there.
  std::vector<std::pair<std::string, std::function<at::Tensor()>>> unchangeable = {};
};

/// What to read of a stored model for a rank: boxes of tensors, into its shards and whole tensors.
/// Errors: as for StateDictMatch::finish.
PartsOfModel parts_of_model(const StoredTensors& stored, const torch::nn::Module& module,
                            const ShardPlaces& places, const ReadModelOptions& options);

/// Reads them, the unchangeable ones to compare them.
/// Errors: c10::ValueError naming a tensor that would have to change, before anything else is read.
void read_parts(StoredTensors& stored, const PartsOfModel& parts);

/// Reads a rank's own part of a model, which it saved as it is, into the same part.
/// Errors: c10::ValueError for names and sizes that are not the model's, and as read_parts.
void read_own_part(StoredTensors& stored, const ModelState& model);

/// The state of an optimizer as this rank has it, on `device`: reads its boxes. What is stored for
/// parameters of other stages is left out. `values`: what is stored besides tensors.
/// Errors: c10::ValueError for values that are not those of an optimizer.
StateDict read_optimizer_state(StoredTensors& stored, nlohmann::ordered_json values,
                               const internal::SharedOptimizer& optimizer,
                               const NamedTensors& parameters, const ShardPlaces& places,
                               c10::Device device);

}  // namespace accelerate
