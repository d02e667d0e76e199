#include "accelerate/checkpoint/folder/training_parts.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/checkpoint/folder/save_model.h"
#include "accelerate/checkpoint/objects/gradient_state_dict.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/checkpoint/objects/optimizer_state_dict.h"
#include "accelerate/checkpoint/objects/replica_state_dict.h"
#include "accelerate/checkpoint/objects/rng_state_dict.h"
#include "accelerate/checkpoint/objects/scheduler_state_dict.h"
#include "accelerate/checkpoint/objects/training_state_dict.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/rank_endings.h"
#include "accelerate/comm/rng_state.h"
#include "accelerate/state/logger.h"
#include "accelerate/values/exception_text.h"
#include "accelerate/values/spelled_numbers.h"

namespace accelerate::internal {
namespace {

constexpr char kModel[] = "model";
constexpr char kOptimizer[] = "optimizer";
constexpr char kScheduler[] = "scheduler";
constexpr char kLoader[] = "dl_state_dict";
constexpr char kCustom[] = "custom_checkpoint";
constexpr char kScaler[] = "scaler";
constexpr char kRandomStates[] = "random_states";
constexpr char kGradients[] = "gradients";
constexpr char kReplica[] = "replica_state";

// Those that still have a handle, in the order in which they were prepared.
template <typename T>
std::vector<std::shared_ptr<T>> alive(const std::vector<std::weak_ptr<T>>& known) {
  std::vector<std::shared_ptr<T>> objects;
  for (const std::weak_ptr<T>& each : known) {
    if (auto object = each.lock()) objects.push_back(std::move(object));
  }
  return objects;
}

std::string of_rank(const std::string& name, int rank) { return absl::StrCat(name, "_rank", rank); }

// Of an object of which the checkpoint has as many as there are.
void check_count(const CheckpointReader& reader, const std::string& kind, size_t prepared) {
  const auto& counts = reader.manifest().counts;
  const auto saved = counts.find(kind);
  const size_t number = saved == counts.end() ? 0 : static_cast<size_t>(saved->second);
  TORCH_CHECK_VALUE(prepared <= number, "load_state: ", prepared, " of kind \"", kind,
                    "\" are prepared, but the checkpoint ", reader.folder(), " has ", number);
}

// The first one whose files are there: 0, or another one on a node that has a disk of its own.
int first_rank(const CheckpointReader& reader) {
  const auto world_size = static_cast<int>(reader.manifest().world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    if (reader.find(absl::StrCat(kRandomStates, "_", rank))) return rank;
  }
  return 0;
}

}  // namespace

std::string indexed(const std::string& name, size_t index) {
  return index == 0 ? name : absl::StrCat(name, "_", index);
}

std::map<std::string, int64_t> TrainingParts::counts() const {
  const auto count = [](const auto& objects) { return static_cast<int64_t>(objects.size()); };
  return {{kModel, count(training.models)},
          {kOptimizer, count(alive(training.optimizers))},
          {kScheduler, count(alive(training.schedulers))},
          {kLoader, count(alive(training.loaders))},
          {kCustom, count(custom_objects)}};
}

Modules TrainingParts::models() const {
  Modules models;
  for (const auto& model : training.models) models.push_back(model->module());
  return models;
}

std::vector<NamedTensors> TrainingParts::weights() const {
  std::vector<NamedTensors> weights;
  for (const auto& model : training.models) weights.push_back(module_state_dict(*model->module()));
  return weights;
}

std::vector<CheckpointPart> TrainingParts::shared(std::vector<NamedTensors> weights) const {
  std::vector<CheckpointPart> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    parts.push_back({.name = indexed(kModel, i),
                     .state = {.tensors = clean_state_dict_for_safetensors(weights[i])},
                     .is_model = true});
  }
  size_t index = 0;
  for (const auto& optimizer : alive(training.optimizers)) {
    parts.push_back({.name = indexed(kOptimizer, index++),
                     .state = accelerated_optimizer_state_dict(*optimizer),
                     .is_optimizer = true});
  }
  index = 0;
  for (const auto& scheduler : alive(training.schedulers)) {
    parts.push_back({indexed(kScheduler, index++), scheduler_state_dict(*scheduler)});
  }
  if (training.scaler) {
    parts.push_back({kScaler, {.values = training.scaler->state_dict()}});
  }
  for (size_t i = 0; i < custom_objects.size(); ++i) {
    StateDict state = custom_objects[i].state_dict();
    state.values = wrap_numbers(std::move(state.values));
    parts.push_back({absl::StrCat(kCustom, "_", i), std::move(state)});
  }
  return parts;
}

void TrainingParts::add_reader(const std::shared_ptr<OptimizerStateReader>& reader) const {
  std::erase_if(training.readers, [](const auto& each) { return each.expired(); });
  training.readers.push_back(reader);
  for (const auto& optimizer : alive(training.optimizers)) optimizer->readers = training.readers;
}

std::vector<CheckpointPart> TrainingParts::own() const {
  const int rank = runtime.topology().rank;
  std::vector<CheckpointPart> parts;
  StateDict random = rng_state_dict(capture_rng_state({}, runtime));
  random.values = training_state_dict(training, gradient_state).values;
  parts.push_back({absl::StrCat(kRandomStates, "_", rank), std::move(random)});
  size_t index = 0;
  for (const auto& loader : alive(training.loaders)) {
    parts.push_back({of_rank(indexed(kLoader, index++), rank), {.values = loader->state_dict()}});
  }
  for (size_t i = 0; i < training.models.size(); ++i) {
    StateDict state = replica_state_dict(*training.models[i]);
    if (state.tensors.empty() && state.values.empty()) continue;
    parts.push_back({of_rank(indexed(kReplica, i), rank), std::move(state)});
  }
  if (!is_inside_window(gradient_state)) return parts;
  for (size_t i = 0; i < training.models.size(); ++i) {
    StateDict state = gradient_state_dict(*training.models[i]->module());
    if (state.tensors.empty()) continue;
    parts.push_back({of_rank(indexed(kGradients, i), rank), std::move(state)});
  }
  return parts;
}

void TrainingParts::check(const CheckpointReader& reader, const Modules& models) const {
  check_count(reader, kModel, models.size());
  check_count(reader, kOptimizer, alive(training.optimizers).size());
  check_count(reader, kScheduler, alive(training.schedulers).size());
  const auto customs = reader.manifest().counts.find(kCustom);
  const int64_t saved = customs == reader.manifest().counts.end() ? 0 : customs->second;
  TORCH_CHECK_VALUE(saved == static_cast<int64_t>(custom_objects.size()), "load_state: ", saved,
                    " custom objects are in the checkpoint ", reader.folder(), ", but ",
                    custom_objects.size(), " are registered");
}

void TrainingParts::load_models(const CheckpointReader& reader, const Modules& models,
                                bool strict) const {
  for (size_t i = 0; i < models.size(); ++i) {
    StateDictMatch match(*models[i]);
    reader.read_into(
        indexed(kModel, i),
        [&](const std::string& name, at::IntArrayRef sizes) { return match.find(name, sizes); },
        [&] {
          try {
            match.finish(strict);
          } catch (const CheckpointError& other) {
            // Another model, and no damage.
            TORCH_CHECK_VALUE(false, "the checkpoint ", reader.folder(), ", ", indexed(kModel, i),
                              ": ", exception_text(other));
          }
        });
  }
}

void TrainingParts::load(const CheckpointReader& reader) const {
  const Logger log = get_logger("accelerate.checkpoint", {}, runtime);
  const int rank = runtime.topology().rank;
  const auto optimizers = alive(training.optimizers);
  const auto schedulers = alive(training.schedulers);
  const auto loaders = alive(training.loaders);
  // What schedulers do to the learning rate is overwritten by what it is.
  for (size_t i = 0; i < schedulers.size(); ++i) {
    load_scheduler_state_dict(*schedulers[i], reader.read(indexed(kScheduler, i)));
  }
  for (size_t i = 0; i < optimizers.size(); ++i) {
    load_accelerated_optimizer_state_dict(*optimizers[i], reader.read(indexed(kOptimizer, i)));
  }
  if (training.scaler && reader.find(kScaler)) {
    training.scaler->load_state_dict(reader.read(kScaler).values);
  } else if (training.scaler) {
    log.warning(absl::StrCat("the checkpoint ", reader.folder(),
                             " was not saved in fp16: the scale of the loss begins anew"));
  }
  // Of a rank that did not save, rank 0's place in the data is its own.
  for (size_t i = 0; i < loaders.size(); ++i) {
    const std::string own = of_rank(indexed(kLoader, i), rank);
    const std::string first = of_rank(indexed(kLoader, i), first_rank(reader));
    const std::string name =
        reader.manifest().world_size == runtime.topology().world_size && reader.find(own) ? own
                                                                                          : first;
    if (reader.find(name)) {
      loaders[i]->load_state_dict(reader.read(name).values);
    } else {
      log.warning(absl::StrCat("the checkpoint ", reader.folder(), " does not know loader ", i,
                               ", which begins anew"));
    }
  }
  for (size_t i = 0; i < custom_objects.size(); ++i) {
    StateDict state = reader.read(absl::StrCat(kCustom, "_", i));
    state.values = unwrap_numbers(std::move(state.values));
    custom_objects[i].load_state_dict(state);
  }
  load_own(reader);
}

void TrainingParts::load_own(const CheckpointReader& reader) const {
  const Logger log = get_logger("accelerate.checkpoint", {}, runtime);
  const int rank = runtime.topology().rank;
  const bool same_ranks = reader.manifest().world_size == runtime.topology().world_size;
  const std::string own = absl::StrCat(kRandomStates, "_", rank);
  const bool is_known = reader.find(own).has_value();
  const StateDict state =
      reader.read(is_known ? own : absl::StrCat(kRandomStates, "_", first_rank(reader)));
  if (!is_known) {
    log.warning(
        absl::StrCat("the checkpoint ", reader.folder(), " is of ", reader.manifest().world_size,
                     " ranks: random numbers of this one follow from rank 0's"),
        {.main_process_only = false});
  }
  load_training_state_dict(training, gradient_state, {.values = state.values});
  for (size_t i = 0; i < training.models.size(); ++i) {
    const std::string replica = indexed(kReplica, i);
    const bool has_own = reader.find(of_rank(replica, rank)).has_value();
    const std::string first = of_rank(replica, first_rank(reader));
    if (has_own || reader.find(first)) {
      load_replica_state_dict(*training.models[i],
                              reader.read(has_own ? of_rank(replica, rank) : first),
                              {.same_ranks = same_ranks});
    }
    // Without a file there were none.
    const std::string gradients = of_rank(indexed(kGradients, i), rank);
    load_gradient_state_dict(*training.models[i]->module(), same_ranks && reader.find(gradients)
                                                                ? reader.read(gradients)
                                                                : StateDict());
  }
  load_rng(rng_state_of(state), is_known);
  if (same_ranks || !is_inside_window(gradient_state)) return;
  log.warning(absl::StrCat("the checkpoint ", reader.folder(), " is of ",
                           reader.manifest().world_size,
                           " ranks, which were accumulating gradients: the window begins anew"));
  // Without the others' gradients there is no window to go on with.
  gradient_state.restart();
}

void TrainingParts::load_rng(const RngState& saved, bool is_own) const {
  RngState state = capture_rng_state({}, runtime);
  const RngState derived = derive_rng_state(saved, runtime.topology().rank, {}, runtime);
  for (auto& [name, bytes] : state.states) {
    const auto found = saved.states.find(name);
    bytes = is_own && found != saved.states.end() ? found->second : derived.states.at(name);
  }
  restore_rng_state(state, {}, runtime);
}

}  // namespace accelerate::internal
