#include "accelerate/checkpoint/objects/sharded_state_dict.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/operations.h"
#include "accelerate/files/box_view.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/values_elsewhere.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using internal::agree_on_values;
using nlohmann::ordered_json;

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// The number of the parameter of "state.3.exp_avg".
std::optional<int64_t> number_of(absl::string_view name) {
  constexpr absl::string_view kState = "state.";
  if (!name.starts_with(kState)) return std::nullopt;
  name.remove_prefix(kState.size());
  int64_t number = 0;
  if (!absl::SimpleAtoi(name.substr(0, name.find('.')), &number)) return std::nullopt;
  return number;
}

// The trained tensors by the numbers that a saved state has for them: by name where it has names
// and these are known, else by position.
std::map<int64_t, at::Tensor> by_saved_number(const ordered_json& values,
                                              const internal::SharedOptimizer& optimizer,
                                              const NamedTensors& parameters) {
  std::map<int64_t, at::Tensor> by_number;
  const std::vector<at::Tensor> own = optimizer.parameters();
  for (size_t i = 0; i < own.size(); ++i) by_number[static_cast<int64_t>(i)] = own[i];
  std::unordered_map<std::string, at::Tensor> by_name(parameters.begin(), parameters.end());
  const auto groups = values.find("param_groups");
  if (groups == values.end() || !groups->is_array()) return by_number;
  std::map<int64_t, at::Tensor> named;
  for (const ordered_json& group : *groups) {
    if (!group.is_object() || !group.contains("params") || !group.contains("param_names")) {
      return by_number;
    }
    const ordered_json &numbers = group["params"], &names = group["param_names"];
    if (!numbers.is_array() || !names.is_array() || numbers.size() != names.size()) {
      return by_number;
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!numbers[i].is_number_integer() || !names[i].is_string()) return by_number;
      const auto found = by_name.find(names[i].get<std::string>());
      if (found != by_name.end()) named[numbers[i].get<int64_t>()] = found->second;
    }
  }
  return named;
}

// Where to read a tensor that is not in memory between uses.
void add_elsewhere(const std::string& name, const ValuesElsewhere& values, PartsOfModel& parts) {
  if (values.home.defined()) {
    const at::Tensor home = values.home.detach();
    parts.parts.push_back({name, whole_box(home.sizes().vec()), home});
  } else {
    parts.unchangeable.emplace_back(name, values.read);
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor one = internal::without_flags(a).contiguous();
  const at::Tensor other = internal::without_flags(b).contiguous();
  return one.nbytes() == other.nbytes() &&
         (one.nbytes() == 0 ||
          std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0);
}

// A tensor of a model's state as this rank trains it: a shard in place of a parameter that is
// sharded, the home of one that is on the host. One in a file stays the module's, without values.
struct TrainedTensor {
  std::string name;
  at::Tensor tensor;
  std::optional<ValuesElsewhere> elsewhere;
};

std::vector<TrainedTensor> trained_tensors(const ModelState& model) {
  // By the memory of the module's tensors.
  std::unordered_map<const void*, at::Tensor> shards;
  for (const TrainedParameter& each : model.trained()) {
    if (!each.trained.is_same(each.parameter)) {
      shards.emplace(storage_of(each.parameter), each.trained);
    }
  }
  std::vector<TrainedTensor> all;
  for (auto& [name, tensor] : module_state_dict(*model.module())) {
    TrainedTensor& own = all.emplace_back(TrainedTensor{name, tensor, std::nullopt});
    const auto shard = shards.find(storage_of(tensor));
    if (shard != shards.end()) own.tensor = shard->second.detach();
    own.elsewhere = find_values_elsewhere(tensor);
    if (own.elsewhere && own.elsewhere->home.defined()) own.tensor = own.elsewhere->home.detach();
  }
  return all;
}

PlacedPart place_of(const ModelPlacements& placements, const TrainedParameter& parameter) {
  const RankRoles& roles = *placements.roles;
  PlacedPart part{.mesh = placements.layout->mesh(), .rank = placements.rank};
  TensorPlacement& placement = part.placement;
  if (parameter.placement != nullptr) {
    placement = *parameter.placement;
  } else if (parameter.shards != nullptr && parameter.shards == roles.shards) {
    placement.rows = roles.shard_axes;
  }
  std::erase_if(placement.cuts, [&](const Cut& cut) { return part.mesh.size(cut.axis) == 1; });
  placement.rows = part.mesh.several(placement.rows);
  if (part.mesh.size(MeshAxis::kPp) == 1) placement.stages.clear();
  // The layout has the shape of a quantised parameter, of which the codes are divided.
  if (part.is_by_rows()) placement.shape = parameter.parameter.sizes().vec();
  part.axes = part.is_by_rows() ? placement.rows : roles.norm_axes;
  part.group = part.is_by_rows() ? parameter.shards : roles.norm;
  return part;
}

// The place of a state that has another shape than its parameter: where that has stages, all ranks
// of these have it alike.
std::optional<PlacedPart> undivided_place(const PlacedPart& of_parameter,
                                          const std::vector<int64_t>& shape) {
  if (of_parameter.placement.stages.empty()) return std::nullopt;
  PlacedPart place = of_parameter;
  place.placement.shape = shape;
  place.placement.cuts.clear();
  place.placement.rows = {};
  return place;
}

// The sizes of what a rank with these boxes has.
std::vector<int64_t> sizes_of(const std::vector<PlacedBox>& boxes) {
  std::vector<int64_t> sizes;
  for (const PlacedBox& box : boxes) {
    sizes.resize(box.part.offsets.size());
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      sizes[dim] = std::max(sizes[dim], box.part.offsets[dim] + box.part.lengths[dim]);
    }
  }
  return sizes;
}

int64_t numel_of(const std::vector<PlacedBox>& boxes) {
  int64_t numel = 0;
  for (const PlacedBox& box : boxes) numel += box.part.numel();
  return numel;
}

// The place of a tensor of an optimizer's state whose whole has this shape; absent for one that all
// ranks have alike.
std::optional<PlacedPart> place_of_state(const std::vector<at::Tensor>& parameters,
                                         const ShardPlaces& places, const std::string& name,
                                         const std::vector<int64_t>& shape) {
  const std::optional<int64_t> number = number_of(name);
  TORCH_INTERNAL_ASSERT(number && *number < static_cast<int64_t>(parameters.size()),
                        "an optimizer has no \"", name, "\"");
  const ShardPlaces::Entry* const entry = places.find(parameters[static_cast<size_t>(*number)]);
  if (entry == nullptr) return std::nullopt;
  return entry->place.shape() == shape ? std::optional(entry->place)
                                       : undivided_place(entry->place, shape);
}

// ---- Stages.

constexpr char kStates[] = "state";

// What a rank has of an optimizer's state, without the values of its tensors.
struct DescribedState {
  std::vector<std::string> names = {};
  std::vector<at::ScalarType> dtypes = {};
  // The shapes of whole tensors.
  std::vector<std::vector<int64_t>> shapes = {};
  // JSON text of the states' values by the numbers of their parameters; empty: none.
  std::string states = {};
};

auto tree_members(DescribedState& state) {
  return std::tie(state.names, state.dtypes, state.shapes, state.states);
}

DescribedState describe(const PlacedState& placed) {
  DescribedState described;
  for (size_t i = 0; i < placed.places.size(); ++i) {
    const auto& [name, tensor] = placed.state.tensors[i];
    const std::optional<PlacedPart>& place = placed.places[i];
    described.names.push_back(name);
    described.dtypes.push_back(tensor.scalar_type());
    described.shapes.push_back(place ? place->shape() : tensor.sizes().vec());
  }
  const auto states = placed.state.values.find(kStates);
  if (states != placed.state.values.end()) described.states = states->dump();
  return described;
}

// The tensors of all ranks in the order of these: this rank's own, and empty ones.
PlacedState with_others(PlacedState own, const std::vector<DescribedState>& ranks,
                        const internal::SharedOptimizer& optimizer, const ShardPlaces& places) {
  std::unordered_map<std::string, size_t> own_tensors;
  for (size_t i = 0; i < own.places.size(); ++i) own_tensors[own.state.tensors[i].first] = i;
  const std::vector<at::Tensor> parameters = optimizer.parameters();
  std::unordered_set<std::string> seen;
  PlacedState all = {.state = {.values = std::move(own.state.values)}};
  ordered_json states = ordered_json::object();
  for (const DescribedState& rank : ranks) {
    for (size_t i = 0; i < rank.names.size(); ++i) {
      const std::string& name = rank.names[i];
      if (!seen.insert(name).second) continue;
      if (const auto found = own_tensors.find(name); found != own_tensors.end()) {
        all.state.tensors.push_back(own.state.tensors[found->second]);
        all.places.push_back(std::move(own.places[found->second]));
      } else {
        all.state.tensors.emplace_back(name,
                                       at::empty({0}, at::TensorOptions().dtype(rank.dtypes[i])));
        all.places.push_back(place_of_state(parameters, places, name, rank.shapes[i]));
      }
    }
    if (rank.states.empty()) continue;
    const ordered_json of_rank = ordered_json::parse(rank.states);
    for (const auto& [number, values] : of_rank.items()) {
      if (!states.contains(number)) states[number] = values;
    }
  }
  if (all.state.values.contains(kStates)) all.state.values[kStates] = std::move(states);
  return all;
}

}  // namespace

std::string cuts_of(const ModelState& model) {
  if (!model.placements().is_cut) return "";
  const ModelLayout& layout = *model.placements().layout;
  return layout.mesh().size(layout.cuts()) > 1 ? layout.text() : "";
}

ShardPlaces::ShardPlaces(const std::vector<std::shared_ptr<ModelState>>& models) {
  for (const auto& model : models) {
    if (!model->is_divided()) continue;
    const ModelPlacements& placements = model->placements();
    for (const TrainedParameter& each : model->trained()) add(placements, each);
    cuts_ += cuts_of(*model);
    const auto add_placed = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
      const auto placed = placements.by_name.find(name);
      if (find(tensor) != nullptr || placed == placements.by_name.end()) return;
      const TensorPlacement* const placement = placed->second.placement;
      if (placement->cuts.empty() && placement->stages.empty()) return;
      add(placements,
          {.name = name, .parameter = tensor, .trained = tensor, .placement = placement},
          /*copies_differ=*/is_buffer);
    };
    // What the technique that divides rows leaves as it is may be cut all the same.
    for (const auto& item : model->module()->named_parameters()) {
      add_placed(item.key(), item.value(), /*is_buffer=*/false);
    }
    // Those of other stages do not change here.
    for (const auto& item : model->module()->named_buffers()) {
      if (item.value().defined()) add_placed(item.key(), item.value(), /*is_buffer=*/true);
    }
  }
}

void ShardPlaces::add(const ModelPlacements& placements, const TrainedParameter& parameter,
                      bool copies_differ) {
  Entry entry{.shard = parameter.trained, .place = place_of(placements, parameter)};
  entry.place.copies_differ = copies_differ;
  mesh_ = entry.place.mesh;
  rank_ = entry.place.rank;
  const TensorPlacement& placement = entry.place.placement;
  axes_ |= placement.cut_axes();
  if (!rows_ || mesh_.size(placement.rows) > mesh_.size(*rows_)) rows_ = placement.rows;
  by_storage_[storage_of(parameter.parameter)] = entry;
  by_storage_[storage_of(parameter.trained)] = std::move(entry);
}

const ShardPlaces::Entry* ShardPlaces::find(const at::Tensor& tensor) const {
  const auto found = by_storage_.find(storage_of(tensor));
  return found == by_storage_.end() ? nullptr : &found->second;
}

bool ShardPlaces::any(const NamedTensors& tensors) const {
  return std::ranges::any_of(tensors,
                             [&](const auto& each) { return find(each.second) != nullptr; });
}

at::Tensor gather_whole(const PlacedPart& place, const at::Tensor& part, c10::Device device,
                        bool is_wanted) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t>& shape = place.shape();
  const int64_t numel = c10::multiply_integers(shape);
  const auto on_host = [](const at::Tensor& tensor) {
    return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  if (place.group == nullptr || numel == 0) {
    return is_wanted ? on_host(part.detach().reshape(shape)) : at::Tensor();
  }
  // What each rank has, in the order of the group.
  std::vector<std::vector<PlacedBox>> boxes;
  int64_t most = 0;
  for (const int rank : place.mesh.group(place.rank, place.axes)) {
    boxes.push_back(boxes_of(place.placement, place.mesh, rank));
    most = std::max(most, numel_of(boxes.back()));
  }
  const at::Tensor padded = at::zeros({most}, at::TensorOptions(device).dtype(part.scalar_type()));
  padded.narrow(0, 0, part.numel()).copy_(part.detach().reshape({-1}));
  const at::Tensor all = gather_tensor(place.group, padded);
  if (!is_wanted) return {};
  // Rows follow each other without gaps: all but the last ranks have as many.
  if (place.is_by_rows()) return on_host(all.narrow(0, 0, numel).view(shape));
  at::Tensor whole = at::empty(shape, all.options().device(at::kCPU));
  // Where ranks have the same boxes, the first one's values remain.
  for (size_t i = boxes.size(); i-- > 0;) {
    const at::Tensor flat = all.narrow(0, static_cast<int64_t>(i) * most, numel_of(boxes[i]));
    for (const PlacedBox& box : boxes[i]) {
      box_view(whole, box.whole).copy_(box_view(flat.view(sizes_of(boxes[i])), box.part));
    }
  }
  return whole;
}

NamedTensors trained_state_dict(const ModelState& model) {
  NamedTensors tensors;
  // Tied ones are read once, and are one here, too.
  std::unordered_map<const void*, at::Tensor> read;
  for (TrainedTensor& each : trained_tensors(model)) {
    if (each.elsewhere && !each.elsewhere->home.defined()) {
      at::Tensor& values = read[storage_of(each.tensor)];
      if (!values.defined()) values = each.elsewhere->read();
      each.tensor = values.detach();
    }
    tensors.emplace_back(std::move(each.name), std::move(each.tensor));
  }
  return tensors;
}

NamedTensors trained_parameters(const std::vector<std::shared_ptr<ModelState>>& models) {
  NamedTensors all;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::string prefix = i == 0 ? "" : absl::StrCat("model_", i, ".");
    for (TrainedParameter& each : models[i]->trained()) {
      all.emplace_back(prefix + each.name, std::move(each.trained));
    }
    // Optimizers have those of other stages, too, which sharding leaves as they are.
    const ModelPlacements& placements = models[i]->placements();
    for (const auto& item : models[i]->module()->named_parameters()) {
      const auto placed = placements.by_name.find(item.key());
      if (placed == placements.by_name.end() || models[i]->find_divided(item.value())) continue;
      const TensorPlacement& placement = *placed->second.placement;
      if (part_number(placement, placements.layout->mesh(), placements.rank) >= 0) continue;
      all.emplace_back(prefix + item.key(), item.value());
    }
  }
  return all;
}

bool trains_shards(const internal::SharedOptimizer& optimizer, const ShardPlaces& places) {
  return std::ranges::any_of(optimizer.parameters(), [&](const at::Tensor& parameter) {
    return places.find(parameter) != nullptr;
  });
}

std::vector<std::optional<PlacedPart>> places_of_state(const internal::SharedOptimizer& optimizer,
                                                       const ShardPlaces& places,
                                                       const NamedTensors& state) {
  const std::vector<at::Tensor> parameters = optimizer.parameters();
  std::vector<std::optional<PlacedPart>> result;
  for (const auto& [name, tensor] : state) {
    const std::optional<int64_t> number = number_of(name);
    TORCH_CHECK_VALUE(number && *number < static_cast<int64_t>(parameters.size()),
                      "an optimizer of a class of its own, which saves itself, cannot be saved "
                      "with parameters that are divided among ranks (\"",
                      name, "\")");
    const at::Tensor& parameter = parameters[static_cast<size_t>(*number)];
    const ShardPlaces::Entry* entry = places.find(parameter);
    const bool is_divided = entry != nullptr && tensor.sizes() == parameter.sizes();
    TORCH_CHECK_VALUE(
        is_divided || entry == nullptr || entry->place.is_by_rows() || tensor.numel() <= 1,
        "the state \"", name, "\" of an optimizer has sizes ", tensor.sizes(),
        ", and its parameter \"", entry->place.placement.name, "\" ", parameter.sizes(),
        ": with parameters that are cut along an axis of the ranks, only states of their sizes can "
        "be saved");
    result.push_back(is_divided         ? std::optional(entry->place)
                     : entry != nullptr ? undivided_place(entry->place, tensor.sizes().vec())
                                        : std::nullopt);
  }
  return result;
}

std::vector<at::ScalarType> dtypes_of_stages(const ProcessGroupPtr& stages,
                                             const ShardPlaces& places,
                                             const NamedTensors& tensors) {
  std::vector<at::ScalarType> dtypes;
  for (const auto& [name, tensor] : tensors) dtypes.push_back(tensor.scalar_type());
  if (stages == nullptr) return dtypes;
  std::vector<bool> is_known(dtypes.size());
  const auto all = agree_on_values(stages, "dtypes of stages", [&] {
    std::vector<at::ScalarType> own = dtypes;
    for (size_t i = 0; i < own.size(); ++i) {
      const ShardPlaces::Entry* const entry = places.find(tensors[i].second);
      if (entry != nullptr && !entry->place.is_here()) own[i] = at::ScalarType::Undefined;
    }
    return own;
  });
  for (const std::vector<at::ScalarType>& rank : all) {
    TORCH_INTERNAL_ASSERT(rank.size() == dtypes.size(), "stages have ", rank.size(), " and ",
                          dtypes.size(), " tensors of one model");
    for (size_t i = 0; i < rank.size(); ++i) {
      if (is_known[i] || rank[i] == at::ScalarType::Undefined) continue;
      dtypes[i] = rank[i];
      is_known[i] = true;
    }
  }
  return dtypes;
}

PlacedState state_of_stages(const ProcessGroupPtr& stages,
                            const internal::SharedOptimizer& optimizer, const ShardPlaces& places,
                            StateDict own) {
  PlacedState placed = {.state = std::move(own)};
  const auto find_places = [&] {
    placed.places = places_of_state(optimizer, places, placed.state.tensors);
  };
  if (stages == nullptr) {
    find_places();
    return placed;
  }
  const auto ranks = agree_on_values(stages, "states of stages", [&] {
    find_places();
    return describe(placed);
  });
  return with_others(std::move(placed), ranks, optimizer, places);
}

PartsOfModel parts_of_model(const StoredTensors& stored, const torch::nn::Module& module,
                            const ShardPlaces& places, const ReadModelOptions& options) {
  const std::vector<internal::ModuleSlot> slots = internal::module_slots(module);
  const auto find_cut = [&places](const at::Tensor& tensor) {
    const ShardPlaces::Entry* entry = places.find(tensor);
    return entry != nullptr && !entry->place.is_by_rows() ? entry : nullptr;
  };
  const auto whole_sizes = [&find_cut](const at::Tensor& tensor) {
    const ShardPlaces::Entry* cut = find_cut(tensor);
    return cut != nullptr ? cut->place.shape() : tensor.sizes().vec();
  };
  internal::StateDictMatch match(module, slots,
                                 {.wanted = options.wanted, .whole_sizes = whole_sizes});
  PartsOfModel all;
  std::vector<StoredTensors::Part>& parts = all.parts;
  for (const auto& [name, tensor] : stored.tensors()) {
    const auto found =
        match.find(name, tensor.shape, internal::value_or_throw(scalar_type_of(tensor.dtype)));
    if (!found) continue;
    TORCH_CHECK_VALUE(!found->is_converted, "\"", name,
                      "\" is quantised in the model, and there are its values: load them before "
                      "the model is quantised");
    const at::Tensor own = slots[found->position].tensor.detach();
    TORCH_CHECK_VALUE(whole_sizes(own) == tensor.shape, "\"", name, "\" has ", own.sizes(),
                      " bytes in the model and ", at::IntArrayRef(tensor.shape),
                      " there: it was quantised elsewhere; load it with load_and_quantize_model");
    const std::optional<ValuesElsewhere> elsewhere = find_values_elsewhere(own);
    const ShardPlaces::Entry* entry = places.find(own);
    if (elsewhere) {
      add_elsewhere(name, *elsewhere, all);
    } else if (entry == nullptr) {
      parts.push_back({name, whole_box(tensor.shape), own});
    } else {
      for (const PlacedBox& box : entry->place.boxes()) {
        parts.push_back({name, box.whole, entry->place.view(entry->shard.detach(), box.part)});
      }
    }
  }
  match.finish(options.strict);
  return all;
}

void read_parts(StoredTensors& stored, const PartsOfModel& parts) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, read] : parts.unchangeable) {
    const at::Tensor own = read();
    // One at a time, since there may be more of them than memory.
    const at::Tensor values = internal::fresh_tensor(own.sizes(), own.options());
    stored.read({{name, whole_box(own.sizes().vec()), values}});
    TORCH_CHECK_VALUE(same_bits(own, values), "\"", name,
                      "\" has other values there than in the file where the device map has put it, "
                      "and what is in files does not change: load the checkpoint with "
                      "load_checkpoint_and_dispatch into another offload_folder");
  }
  stored.read(parts.parts);
}

void read_own_part(StoredTensors& stored, const ModelState& model) {
  std::map<std::string, TrainedTensor> own;
  for (TrainedTensor& each : trained_tensors(model)) own.emplace(each.name, std::move(each));
  PartsOfModel all;
  for (const auto& [name, tensor] : stored.tensors()) {
    const auto found = own.find(name);
    TORCH_CHECK_VALUE(found != own.end(), "this rank's part of the model has a tensor \"", name,
                      "\", which the model does not have");
    TORCH_CHECK_VALUE(found->second.tensor.sizes() == at::IntArrayRef(tensor.shape), "\"", name,
                      "\" has sizes ", at::IntArrayRef(tensor.shape),
                      " in this rank's part of the model, and ", found->second.tensor.sizes(),
                      " here");
    if (found->second.elsewhere) {
      add_elsewhere(name, *found->second.elsewhere, all);
    } else {
      all.parts.push_back({name, whole_box(tensor.shape), found->second.tensor});
    }
    own.erase(found);
  }
  read_parts(stored, all);
}

StateDict read_optimizer_state(StoredTensors& stored, ordered_json values,
                               const internal::SharedOptimizer& optimizer,
                               const NamedTensors& parameters, const ShardPlaces& places,
                               c10::Device device) {
  const auto by_number = by_saved_number(values, optimizer, parameters);
  std::set<int64_t> of_other_stages;
  for (const auto& [number, parameter] : by_number) {
    const ShardPlaces::Entry* const entry = places.find(parameter);
    if (entry != nullptr && !entry->place.is_here()) of_other_stages.insert(number);
  }
  if (const auto states = values.find("state"); states != values.end() && states->is_object()) {
    for (const int64_t number : of_other_stages) states->erase(std::to_string(number));
  }
  StateDict state{.values = std::move(values)};
  std::vector<StoredTensors::Part> parts;
  for (const auto& [name, tensor] : stored.tensors()) {
    if (of_other_stages.contains(number_of(name).value_or(-1))) continue;
    const auto dtype = at::TensorOptions(internal::value_or_throw(scalar_type_of(tensor.dtype)));
    const std::optional<int64_t> number = number_of(name);
    const auto parameter = by_number.find(number.value_or(-1));
    const ShardPlaces::Entry* entry =
        parameter == by_number.end() ? nullptr : places.find(parameter->second);
    // A moment has the shape of its parameter.
    if (entry != nullptr && entry->place.shape() == tensor.shape) {
      // The state of shards on the host, or on a disk, has no place on the device.
      const c10::Device place = entry->shard.is_cpu() ? entry->shard.device() : device;
      const at::Tensor own = internal::fresh_tensor(entry->shard.sizes(), dtype.device(place));
      for (const PlacedBox& box : entry->place.boxes()) {
        parts.push_back({name, box.whole, entry->place.view(own, box.part)});
      }
      state.tensors.emplace_back(name, own);
      continue;
    }
    state.tensors.emplace_back(name, internal::fresh_tensor(tensor.shape, dtype.device(device)));
    parts.push_back({name, whole_box(tensor.shape), state.tensors.back().second});
  }
  stored.read(parts);
  return state;
}

}  // namespace accelerate
