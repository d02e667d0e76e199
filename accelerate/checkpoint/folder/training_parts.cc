// A rank's training as the parts of a checkpoint.
#include "accelerate/checkpoint/folder/checkpoint_parts.h"

#include <algorithm>
#include <iterator>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/constants.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/checkpoint/folder/sharded_parts.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/checkpoint/objects/training_state_dict.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/random.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/state/logger.h"
#include "accelerate/values/json_values.h"
#include "accelerate/values/texts.h"

namespace accelerate::internal {
namespace {

constexpr char kLoader[] = "dl_state_dict";
constexpr char kCustom[] = "custom_checkpoint";
constexpr char kGradients[] = "gradients";
constexpr char kShardGradients[] = "shard_gradients";
constexpr char kReplica[] = "replica_state";
// In how many parts a model is divided, and which one a rank has.
constexpr char kNumParts[] = "parts";
constexpr char kPart[] = "part";
// What tells the cuts of one layout from another's, with a rank's part and with its gradients;
// absent where rows alone are divided.
constexpr char kCuts[] = "cuts";
constexpr char kSameLayoutOnly[] =
    ", which loads into the same layout only; save as SHARDED_STATE_DICT to load into any other";

// "model", "model_1", ...
std::string indexed(const std::string& name, size_t index) {
  return index == 0 ? name : absl::StrCat(name, "_", index);
}

// The part of a rank's own object, and of a data share's.
std::string of_rank(const std::string& name, size_t index, int rank) {
  return absl::StrCat(indexed(name, index), "_rank", rank);
}
std::string of_share(const std::string& name, size_t index, int share) {
  return absl::StrCat(indexed(name, index), "_share", share);
}

int64_t count_of(const std::map<std::string, int64_t>& counts, const std::string& kind) {
  const auto found = counts.find(kind);
  return found == counts.end() ? 0 : found->second;
}

// The first of these parts that the checkpoint has, if any.
std::optional<StateDict> read_first(const CheckpointReader& reader,
                                    const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (reader.find(name)) return reader.read(name);
  }
  return std::nullopt;
}

bool is_stateful(const LoaderCore& loader) {
  return loader.shard_options()->use_stateful_dataloader;
}

std::string random_states_of(int rank) { return absl::StrCat(kRngStateName, "_", rank); }

// The first rank whose files exist: 0, or another rank on a node that has a disk of its own.
int first_rank(const CheckpointReader& reader) {
  const auto world_size = static_cast<int>(reader.manifest().world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    if (reader.find(random_states_of(rank))) return rank;
  }
  return 0;
}

// False where nodes have disks of their own, and so other ranks' files.
bool has_all_ranks(const CheckpointReader& reader) {
  const auto world_size = static_cast<int>(reader.manifest().world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    if (!reader.find(random_states_of(rank))) return false;
  }
  return true;
}

// What all nodes know of a checkpoint, as a state to derive others from.
RngState state_of_id(const Manifest& manifest) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(manifest.id.size())}, at::kByte);
  std::ranges::copy(manifest.id, bytes.mutable_data_ptr<uint8_t>());
  return {.states = {{"torch", bytes}}};
}

// -1: nothing but rows is divided.
int64_t number_of(const std::string& cuts) {
  return cuts.empty() ? -1 : static_cast<int64_t>(crc32c(cuts));
}

// "8 ranks (dp_replicate 2 x tp 4)".
std::string arrangement(int64_t ranks, const std::string& mesh) {
  const std::string axes = mesh.empty() ? "" : absl::StrCat(" (", mesh, ")");
  return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks", axes);
}

}  // namespace

int TrainingParts::share() const {
  const int rank = runtime.topology().rank;
  return mesh != nullptr ? mesh->coordinate(rank, MeshAxis::kDp) : rank;
}

int TrainingParts::first_of_share() const {
  if (mesh == nullptr) return runtime.topology().rank;
  int rank = first_on_disk;
  while (mesh->coordinate(rank, MeshAxis::kDp) != share()) ++rank;
  return rank;
}

std::string TrainingParts::mesh_text() const {
  const bool has_several_ranks_a_share =
      mesh != nullptr && mesh->size(MeshAxis::kDp) < mesh->num_ranks();
  return has_several_ranks_a_share ? mesh->to_string() : "";
}

std::vector<int64_t> TrainingParts::share_ranks() const {
  if (mesh_text().empty()) return {};
  // Rank 0 is the first one along every axis.
  const std::vector<int> ranks = mesh->group(0, MeshAxis::kDp);
  return {ranks.begin(), ranks.end()};
}

std::optional<int> TrainingParts::predecessor(const CheckpointReader& reader) const {
  const Manifest& manifest = reader.manifest();
  auto rank = static_cast<int64_t>(share());
  if (is_arranged_as(manifest)) {
    rank = runtime.topology().rank;
  } else if (!mesh_text().empty() && !has_all_ranks(reader)) {
    // The ranks of a share must draw alike, and some of them may lack the files.
    return std::nullopt;
  } else if (!manifest.mesh.empty()) {
    if (rank >= static_cast<int64_t>(manifest.share_ranks.size())) return std::nullopt;
    rank = manifest.share_ranks[static_cast<size_t>(rank)];
  }
  if (!reader.find(random_states_of(static_cast<int>(rank)))) return std::nullopt;
  return static_cast<int>(rank);
}

bool TrainingParts::has_same_shards(const CheckpointReader& reader) const {
  const int rank = runtime.topology().rank;
  for (size_t i = 0; i < training.models.size(); ++i) {
    const int64_t own_cuts = number_of(cuts_of(*training.models[i]));
    for (const char* kind : {kGradients, kShardGradients}) {
      const std::string name = of_rank(kind, i, rank);
      if (!reader.find(name)) continue;
      const std::string values = reader.open(name).values();
      const int64_t cuts =
          values.empty() ? -1 : parse_state_values(values, name).value(kCuts, int64_t{-1});
      if (cuts != own_cuts) return false;
    }
    if (!reader.find(of_rank(kShardGradients, i, rank))) continue;
    if (!training.models[i]->is_divided()) return false;
    const std::string folder = sharded_folder(kFsdpModelName, i);
    const int64_t parts = ShardPlaces({training.models[i]}).num_row_parts();
    if (!reader.is_divided(folder) || reader.open_divided(folder).num_parts() != parts) {
      return false;
    }
  }
  return true;
}

bool TrainingParts::is_arranged_as(const Manifest& manifest) const {
  return manifest.world_size == runtime.topology().world_size && manifest.mesh == mesh_text();
}

std::map<std::string, int64_t> TrainingParts::counts() const {
  const auto count = [](const auto& objects) { return static_cast<int64_t>(objects.size()); };
  return {{kSafeModelName, count(training.models)},
          {kOptimizerName, count(alive(training.optimizers))},
          {kSchedulerName, count(alive(training.schedulers))},
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
  for (const auto& model : training.models) weights.push_back(trained_state_dict(*model));
  return weights;
}

std::vector<CheckpointPart> TrainingParts::collect(const std::vector<NamedTensors>& weights,
                                                   bool writes_shared) const {
  const ShardPlaces shards(training.models);
  std::vector<CheckpointPart> parts;
  if (writes_shared) parts = shared(weights, shards);
  std::ranges::move(divided(weights, shards, writes_shared), std::back_inserter(parts));
  std::ranges::move(own(), std::back_inserter(parts));
  return parts;
}

std::vector<CheckpointPart> TrainingParts::shared(const std::vector<NamedTensors>& weights,
                                                  const ShardPlaces& shards) const {
  std::vector<CheckpointPart> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (shards.any(weights[i])) continue;
    parts.push_back({.name = indexed(kSafeModelName, i),
                     .state = {.tensors = clean_state_dict_for_safetensors(weights[i])},
                     .is_model = true});
  }
  size_t index = 0;
  const NamedTensors parameters = trained_parameters(training.models);
  for (const auto& optimizer : alive(training.optimizers)) {
    const std::string name = indexed(kOptimizerName, index++);
    if (trains_shards(*optimizer, shards)) continue;
    parts.push_back({.name = name,
                     .state = optimizer->state_dict({.parameters = parameters}),
                     .is_optimizer = true});
  }
  index = 0;
  for (const auto& scheduler : alive(training.schedulers)) {
    parts.push_back({indexed(kSchedulerName, index++), scheduler_state_dict(*scheduler)});
  }
  if (training.precision.scaler()) {
    parts.push_back({kScalerName, {.values = training.precision.scaler()->state_dict()}});
  }
  for (size_t i = 0; i < custom_objects.size(); ++i) {
    StateDict state = custom_objects[i].state_dict();
    state.values = wrap_numbers(std::move(state.values));
    parts.push_back({absl::StrCat(kCustom, "_", i), std::move(state)});
  }
  return parts;
}

CheckpointPart TrainingParts::whole_part(const ShardedObject& object, const std::string& name,
                                         bool is_wanted) const {
  CheckpointPart part{.name = name,
                      .state = {.values = object.state.values},
                      .is_model = object.root == kSafeModelName};
  for (size_t i = 0; i < object.state.tensors.size(); ++i) {
    const auto& [tensor_name, tensor] = object.state.tensors[i];
    part.state.tensors.emplace_back(
        tensor_name,
        object.places[i] ? gather_whole(*object.places[i], tensor, device, is_wanted) : tensor);
  }
  return part;
}

bool TrainingParts::divides() const {
  return std::ranges::any_of(training.models,
                             [](const auto& model) { return model->is_divided(); });
}

std::vector<CheckpointPart> TrainingParts::divided(const std::vector<NamedTensors>& weights,
                                                   const ShardPlaces& shards,
                                                   bool writes_shared) const {
  std::vector<CheckpointPart> parts;
  if (!divides()) return parts;
  const int rank = runtime.topology().rank;
  const RankShardPlan plan(disks, rank, shards);
  const auto add = [&](const ShardedObject& object, const std::string& whole_name) {
    if (gathers()) {
      CheckpointPart whole = whole_part(object, whole_name, writes_shared);
      if (writes_shared) parts.push_back(std::move(whole));
      return;
    }
    std::ranges::move(sharded_parts(object, plan, writes_shared), std::back_inserter(parts));
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!shards.any(weights[i])) continue;
    ShardedObject model = model_object(weights[i], shards);
    if (state_dict_type == StateDictType::kLocalStateDict) {
      parts.push_back(own_part(std::move(model), of_rank(kFsdpModelName, i, rank), shards));
      continue;
    }
    model.folder = sharded_folder(kFsdpModelName, i);
    add(model, indexed(kSafeModelName, i));
  }
  size_t index = 0;
  const NamedTensors parameters = trained_parameters(training.models);
  for (const auto& optimizer : alive(training.optimizers)) {
    const size_t position = index++;
    if (!trains_shards(*optimizer, shards)) continue;
    ShardedObject object = optimizer_object(*optimizer, parameters, shards);
    object.folder = sharded_folder(kOptimizerName, position);
    add(object, indexed(kOptimizerName, position));
  }
  return parts;
}

ShardedObject TrainingParts::model_object(const NamedTensors& weights,
                                          const ShardPlaces& shards) const {
  ShardedObject model{.root = kSafeModelName,
                      .state = {.tensors = clean_state_dict_for_safetensors(weights)}};
  for (const auto& [name, tensor] : model.state.tensors) {
    const ShardPlaces::Entry* entry = shards.find(tensor);
    model.places.push_back(entry ? std::optional(entry->place) : std::nullopt);
  }
  const auto dtypes = dtypes_of_stages(stages, shards, model.state.tensors);
  for (size_t i = 0; i < dtypes.size(); ++i) {
    at::Tensor& tensor = model.state.tensors[i].second;
    // This rank has no elements of it.
    if (tensor.scalar_type() == dtypes[i]) continue;
    tensor = at::empty({0}, tensor.options().dtype(dtypes[i]));
  }
  return model;
}

ShardedObject TrainingParts::optimizer_object(SharedOptimizer& optimizer,
                                              const NamedTensors& parameters,
                                              const ShardPlaces& shards) const {
  PlacedState placed =
      state_of_stages(stages, optimizer, shards, optimizer.state_dict({.parameters = parameters}));
  return {
      .root = kOptimizerName, .state = std::move(placed.state), .places = std::move(placed.places)};
}

CheckpointPart TrainingParts::own_part(ShardedObject object, const std::string& name,
                                       const ShardPlaces& shards) const {
  object.state.values[kNumParts] = shards.num_parts();
  object.state.values[kPart] = shards.part();
  if (!shards.cuts().empty()) object.state.values[kCuts] = number_of(shards.cuts());
  return {.name = name,
          .state = std::move(object.state),
          .is_model = object.root == kSafeModelName,
          .is_shard = true};
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
  parts.push_back({random_states_of(rank), std::move(random)});
  const bool writes_positions = first_of_share() == rank;
  size_t index = 0;
  for (const auto& loader : alive(training.loaders)) {
    const std::string name = of_share(kLoader, index++, loader->share());
    if (writes_positions && is_stateful(*loader)) {
      parts.push_back({name, {.values = loader->state_dict()}});
    }
  }
  for (size_t i = 0; i < training.models.size(); ++i) {
    StateDict state = replica_state_dict(*training.models[i]);
    if (state.tensors.empty() && state.values.empty()) continue;
    parts.push_back({of_rank(kReplica, i, rank), std::move(state)});
  }
  if (!is_inside_window(gradient_state)) return parts;
  for (size_t i = 0; i < training.models.size(); ++i) {
    const std::string cuts = cuts_of(*training.models[i]);
    const auto add = [&](const char* kind, StateDict state) {
      if (state.tensors.empty()) return;
      if (!cuts.empty()) state.values[kCuts] = number_of(cuts);
      parts.push_back({of_rank(kind, i, rank), std::move(state)});
    };
    add(kGradients, gradient_state_dict(*training.models[i]->module()));
    add(kShardGradients, shard_gradient_state_dict(*training.models[i]));
  }
  return parts;
}

void TrainingParts::check(const CheckpointReader& reader, const Modules& models) const {
  const auto& saved = reader.manifest().counts;
  auto prepared = counts();
  prepared[kSafeModelName] = static_cast<int64_t>(models.size());
  for (const char* kind : {kSafeModelName, kOptimizerName, kSchedulerName}) {
    TORCH_CHECK_VALUE(prepared[kind] <= count_of(saved, kind), "load_state: ", prepared[kind],
                      " of kind \"", kind, "\" are prepared, but the checkpoint ", reader.folder(),
                      " has ", count_of(saved, kind));
  }
  TORCH_CHECK_VALUE(count_of(saved, kCustom) == prepared[kCustom],
                    "load_state: ", count_of(saved, kCustom),
                    " custom objects are in the checkpoint ", reader.folder(), ", but ",
                    prepared[kCustom], " are registered");
}

void TrainingParts::load_models(const CheckpointReader& reader, const Modules& models,
                                bool strict) const {
  const ShardPlaces shards(training.models);
  for (size_t i = 0; i < models.size(); ++i) {
    if (load_own_part(reader, i, *models[i], shards)) continue;
    const std::string folder = sharded_folder(kFsdpModelName, i);
    const bool is_divided = reader.is_divided(folder);
    const std::string name = is_divided ? folder : indexed(kSafeModelName, i);
    StoredTensors stored = is_divided ? reader.open_divided(name) : reader.open(name);
    read_model(stored, absl::StrCat("the checkpoint ", reader.folder(), ", ", name), *models[i],
               shards, {.strict = strict});
  }
}

void TrainingParts::read_model(StoredTensors& stored, const std::string& what,
                               const torch::nn::Module& module, const ShardPlaces& shards,
                               const ReadModelOptions& options) const {
  PartsOfModel parts;
  try {
    parts = parts_of_model(stored, module, shards, options);
  } catch (const CheckpointError& other) {
    // The checkpoint is of another model; it is not damaged.
    TORCH_CHECK_VALUE(false, what, ": ", exception_text(other));
  }
  try {
    read_parts(stored, parts);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, what, ": ", error.what_without_backtrace());
  }
  // What was only compared was not verified as a part of its file.
  if (!parts.unchangeable.empty()) stored.verify_share(/*rank=*/0, /*ranks=*/1);
  verify_share(stored, shards.any(module_state_dict(module)));
}

bool TrainingParts::load_own_part(const CheckpointReader& reader, size_t index,
                                  const torch::nn::Module& module,
                                  const ShardPlaces& shards) const {
  const auto is_of_rank = [&](int rank) {
    return reader.find(of_rank(kFsdpModelName, index, rank)).has_value();
  };
  const int rank = runtime.topology().rank;
  if (!is_of_rank(rank) && !is_of_rank(0)) return false;
  const std::string what =
      absl::StrCat("the checkpoint ", reader.folder(), " has each of ",
                   reader.manifest().world_size, " ranks' part of the model (LOCAL_STATE_DICT)");
  TORCH_CHECK_VALUE(is_of_rank(rank) && is_arranged_as(reader.manifest()), what, kSameLayoutOnly);
  StoredTensors stored = reader.open(of_rank(kFsdpModelName, index, rank));
  nlohmann::ordered_json values = parse_state_values(stored.values(), what);
  check_own_part(values, what, shards);
  for (const auto& model : training.models) {
    if (model->module().get() == &module) read_own_part(stored, *model);
  }
  return true;
}

void TrainingParts::check_own_part(nlohmann::ordered_json& values, const std::string& what,
                                   const ShardPlaces& shards) const {
  TORCH_CHECK_VALUE(values.value(kNumParts, int64_t{0}) == shards.num_parts() &&
                        values.value(kPart, int64_t{-1}) == shards.part() &&
                        values.value(kCuts, int64_t{-1}) == number_of(shards.cuts()),
                    what, " in ", values.value(kNumParts, int64_t{0}), " parts", kSameLayoutOnly);
  for (const char* key : {kNumParts, kPart, kCuts}) values.erase(key);
}

void TrainingParts::verify_share(StoredTensors& stored, bool reads_shards) const {
  if (!reads_shards) return;
  for (const auto& model : training.models) {
    if (!model->is_divided()) continue;
    const ShardPlaces places({model});
    if (places.cuts().empty() && stored.is_in_row_parts(places.num_row_parts())) continue;
    const Topology& topology = runtime.topology();
    return stored.verify_share(topology.rank, topology.world_size);
  }
}

void TrainingParts::load_optimizer(const CheckpointReader& reader, size_t index,
                                   SharedOptimizer& optimizer, const ShardPlaces& shards,
                                   c10::Device device) const {
  const std::string folder = sharded_folder(kOptimizerName, index);
  const std::string name = indexed(kOptimizerName, index);
  const NamedTensors parameters = trained_parameters(training.models);
  const bool is_divided = reader.is_divided(folder);
  const std::optional<std::string> path = reader.find(name);
  // A state without tensors, or none.
  if (!is_divided && (!path || path->ends_with(".json"))) {
    return optimizer.load_state_dict(reader.read(name), {.parameters = parameters});
  }
  StoredTensors stored = is_divided ? reader.open_divided(folder) : reader.open(name);
  read_optimizer(stored, join_path(reader.folder(), is_divided ? folder : name), optimizer,
                 parameters, shards, device);
}

void TrainingParts::read_optimizer(StoredTensors& stored, const std::string& path,
                                   SharedOptimizer& optimizer, const NamedTensors& parameters,
                                   const ShardPlaces& shards, c10::Device device) const {
  StateDict state = read_optimizer_state(stored, parse_state_values(stored.values(), path),
                                         optimizer, parameters, shards, device);
  verify_share(stored, trains_shards(optimizer, shards));
  optimizer.load_state_dict(std::move(state), {.parameters = parameters});
}

void TrainingParts::load(const CheckpointReader& reader, c10::Device device) const {
  const Logger log = get_logger("accelerate.checkpoint", {}, runtime);
  const auto optimizers = alive(training.optimizers);
  const auto schedulers = alive(training.schedulers);
  const auto loaders = alive(training.loaders);
  const ShardPlaces shards(training.models);
  // Schedulers go first: the learning rate is part of the optimizer's state.
  for (size_t i = 0; i < schedulers.size(); ++i) {
    load_scheduler_state_dict(*schedulers[i], reader.read(indexed(kSchedulerName, i)));
  }
  for (size_t i = 0; i < optimizers.size(); ++i) {
    load_optimizer(reader, i, *optimizers[i], shards, device);
  }
  if (training.precision.scaler() && reader.find(kScalerName)) {
    training.precision.scaler()->load_state_dict(reader.read(kScalerName).values);
  } else if (training.precision.scaler()) {
    log.warning(absl::StrCat("the checkpoint ", reader.folder(),
                             " was not saved in fp16: the loss scale begins anew"));
  }
  for (size_t i = 0; i < loaders.size(); ++i) {
    if (is_stateful(*loaders[i])) load_position(reader, *loaders[i], i);
  }
  for (size_t i = 0; i < custom_objects.size(); ++i) {
    StateDict state = reader.read(absl::StrCat(kCustom, "_", i));
    state.values = unwrap_numbers(std::move(state.values));
    custom_objects[i].load_state_dict(state);
  }
  load_own(reader);
}

// Share 0's position is that of all shares; without even batches the others may have ended before
// it. Only a stream that shards itself has a position for each share.
void TrainingParts::load_position(const CheckpointReader& reader, LoaderCore& loader,
                                  size_t index) const {
  std::vector<std::string> names;
  if (loader.mode() == LoaderMode::kSelfShard) {
    names.push_back(of_share(kLoader, index, loader.share()));
  }
  for (int share = 0; share < reader.manifest().world_size; ++share) {
    names.push_back(of_share(kLoader, index, share));
  }
  if (const std::optional<StateDict> state = read_first(reader, names)) {
    loader.load_state_dict(state->values);
    return;
  }
  // Older versions named positions after ranks.
  const std::string older = of_rank(kLoader, index, first_rank(reader));
  const std::string reason =
      reader.find(older) ? absl::StrCat("is of an older version: ", older, ".json is not read, and")
                         : std::string("has no position in the data, and");
  get_logger("accelerate.checkpoint", {}, runtime)
      .warning(absl::StrCat("the checkpoint ", reader.folder(), " ", reason, " loader ", index,
                            " begins anew"));
}

void TrainingParts::load_own(const CheckpointReader& reader) const {
  const Logger log = get_logger("accelerate.checkpoint", {}, runtime);
  const int rank = runtime.topology().rank;
  const Manifest& manifest = reader.manifest();
  const std::string saved_on = arrangement(manifest.world_size, manifest.mesh);
  const bool same_ranks = is_arranged_as(manifest);
  const bool keeps_gradients = same_ranks && has_same_shards(reader);
  const std::optional<int> known = predecessor(reader);
  const int source = known.value_or(first_rank(reader));
  const StateDict state = reader.read(random_states_of(source));
  load_training_state_dict(training, gradient_state, {.values = state.values});
  for (size_t i = 0; i < training.models.size(); ++i) {
    // Without a file there were no gradients.
    const auto gradients = [&](const char* name) {
      auto state = keeps_gradients ? read_first(reader, {of_rank(name, i, rank)}) : std::nullopt;
      if (state && state->values.contains(kCuts)) state->values.erase(kCuts);
      if (state && state->values.empty()) state->values = nullptr;
      return std::move(state).value_or(StateDict());
    };
    load_gradient_state_dict(*training.models[i]->module(), gradients(kGradients));
    load_shard_gradient_state_dict(*training.models[i], gradients(kShardGradients));
    // After the gradients, since techniques keep account of what they have reduced of these.
    if (const auto replica = read_first(
            reader, {of_rank(kReplica, i, source), of_rank(kReplica, i, first_rank(reader))})) {
      load_replica_state_dict(*training.models[i], *replica,
                              {.same_ranks = same_ranks, .known = training.techniques});
    }
  }
  const RngState random = rng_state_of(state);
  if (known) {
    load_rng(random, random);
  } else {
    // Nodes with disks of their own have no rank's file in common.
    const bool is_everywhere = mesh_text().empty() || has_all_ranks(reader);
    load_rng({}, is_everywhere ? random : state_of_id(manifest));
    const std::string origin =
        is_everywhere ? absl::StrCat("rank ", source, "'s") : "the checkpoint's id";
    log.warning(absl::StrCat("the checkpoint ", reader.folder(), " is of ", saved_on,
                             is_everywhere ? "" : " on several disks", ": random numbers of share ",
                             share(), " of the data follow from ", origin),
                {.main_process_only = false});
  }
  if (keeps_gradients || !is_inside_window(gradient_state)) return;
  const std::string here =
      same_ranks ? std::string("this job divides its models otherwise")
                 : absl::StrCat("this job is of ",
                                arrangement(runtime.topology().world_size, mesh_text()));
  log.warning(absl::StrCat("the checkpoint ", reader.folder(), " is of ", saved_on,
                           ", which were accumulating gradients, and ", here,
                           ": the window begins anew"));
  // The window cannot continue without the gradients of the missing ranks.
  gradient_state.restart();
}

void TrainingParts::load_rng(const RngState& saved, const RngState& derived_from) const {
  RngState state = derive_rng_state(derived_from, share(), {}, runtime);
  for (auto& [name, bytes] : state.states) {
    const auto found = saved.states.find(name);
    if (found != saved.states.end()) bytes = found->second;
  }
  restore_rng_state(state, {}, runtime);
}

}  // namespace accelerate::internal
