/// A rank's training as the parts of a checkpoint, and back.
///
///   what all ranks have alike     model, optimizer, scheduler, custom_checkpoint_{i}, scaler
///   what is a rank's own          random_states_{rank}, dl_state_dict_rank{rank}, where there is
///                                 one replica_state_rank{rank}, and, in the middle of an
///                                 accumulation window, gradients_rank{rank}
///
/// The second object of a kind is model_1, dl_state_dict_1_rank{rank}, ...
/// Threads: the rank's thread. All is local.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/comm/rng_state.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {

/// What a checkpoint is made of, for as long as one is saved or loaded.
struct TrainingParts {
  Runtime& runtime;
  TrainingState& training;
  GradientState& gradient_state;
  const std::vector<CheckpointedObject>& custom_objects;

  /// How many there are of each kind.
  std::map<std::string, int64_t> counts() const;

  /// The prepared models, and their tensors.
  Modules models() const;
  std::vector<NamedTensors> weights() const;

  /// `weights` with what else all ranks have alike.
  std::vector<CheckpointPart> shared(std::vector<NamedTensors> weights) const;
  std::vector<CheckpointPart> own() const;

  /// Steps of the optimizers, also of those that are prepared later, wait for it.
  void add_reader(const std::shared_ptr<OptimizerStateReader>& reader) const;

  /// Whether the checkpoint has as many objects as there are, before any is loaded.
  /// Errors: c10::ValueError if it is of other objects, as for the functions below; CheckpointError
  ///         naming what it lacks, or is damaged.
  void check(const CheckpointReader& reader, const Modules& models) const;
  void load_models(const CheckpointReader& reader, const Modules& models, bool strict) const;
  void load(const CheckpointReader& reader) const;

 private:
  void load_own(const CheckpointReader& reader) const;
  void load_rng(const RngState& saved, bool is_own) const;
};

/// "model", "model_1", ...
std::string indexed(const std::string& name, size_t index);

}  // namespace accelerate::internal
