#include "accelerate/checkpoint/objects/optimizer_state_dict.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/checkpoint/objects/optimizer_kinds.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/json_values.h"

namespace accelerate {
namespace {

using internal::field_of;
using internal::json_excerpt;
using internal::json_member;
using internal::OptimizerKind;
using nlohmann::ordered_json;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

constexpr char kArchive[] = "archive";

std::string type_of(const Optimizer& optimizer, const OptimizerKind* kind) {
  return kind != nullptr ? kind->name() : c10::demangle(typeid(optimizer).name());
}

std::string state_prefix(int64_t parameter) { return absl::StrCat("state.", parameter, "."); }

// The parameters' numbers: one that comes twice has the first.
class Numbering {
 public:
  explicit Numbering(const Optimizer& optimizer) {
    int64_t next = 0;
    for (const OptimizerParamGroup& group : optimizer.param_groups()) {
      std::vector<int64_t>& numbers = groups_.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        const auto [found, is_new] = numbers_.emplace(parameter.unsafeGetTensorImpl(), next++);
        numbers.push_back(found->second);
      }
    }
  }
  const std::vector<std::vector<int64_t>>& groups() const { return groups_; }

 private:
  std::unordered_map<const at::TensorImpl*, int64_t> numbers_;
  std::vector<std::vector<int64_t>> groups_;
};

using Names = std::vector<std::vector<std::string>>;  // by group

// Absent unless each parameter has one of its own.
std::optional<Names> names_of(const Optimizer& optimizer, const NamedTensors& parameters) {
  std::unordered_map<const at::TensorImpl*, const std::string*> known;
  for (const auto& [name, parameter] : parameters) {
    known.emplace(parameter.unsafeGetTensorImpl(), &name);
  }
  Names names;
  std::unordered_map<std::string, const at::TensorImpl*> seen;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<std::string>& of_group = names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found == known.end() || !seen.emplace(*found->second, found->first).second) {
        return std::nullopt;
      }
      of_group.push_back(*found->second);
    }
  }
  return seen.empty() ? std::nullopt : std::optional(std::move(names));
}

struct SavedGroup {
  const ordered_json* values;
  std::string where;
  std::vector<int64_t> params;
  std::vector<std::string> names;  // empty: it has none
};

template <typename T>
std::vector<T> list_of(const ordered_json& values, const char* name, const std::string& where) {
  const ordered_json& list = json_member(values, name, where);
  TORCH_CHECK_VALUE(list.is_array(), where, ": \"", name, "\" is ", json_excerpt(list),
                    ", which is not a list");
  std::vector<T> result;
  for (const ordered_json& item : list) {
    TORCH_CHECK_VALUE(internal::json_to(item, result.emplace_back()), where, ": \"", name,
                      "\" has an item ", json_excerpt(item), ", which is of another type");
  }
  return result;
}

std::vector<SavedGroup> saved_groups(const ordered_json& values, const std::string& where) {
  const ordered_json& list = json_member(values, "param_groups", where);
  TORCH_CHECK_VALUE(list.is_array(), where, ": \"param_groups\" is ", json_excerpt(list),
                    ", which is not a list");
  std::vector<SavedGroup> groups;
  for (const ordered_json& item : list) {
    SavedGroup group{.values = &item,
                     .where = absl::StrCat("param_groups[", groups.size(), "] of ", where)};
    group.params = list_of<int64_t>(item, "params", group.where);
    if (item.contains("param_names")) {
      group.names = list_of<std::string>(item, "param_names", group.where);
      TORCH_CHECK_VALUE(group.names.size() == group.params.size(), group.where, " has ",
                        group.params.size(), " params and ", group.names.size(), " param_names");
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// What the optimizer's groups and parameters are called in the saved state.
struct Match {
  std::vector<size_t> groups;
  std::vector<std::vector<int64_t>> params;
};

Match match_by_place(const std::vector<SavedGroup>& saved) {
  Match match;
  for (const SavedGroup& group : saved) {
    match.groups.push_back(match.groups.size());
    match.params.push_back(group.params);
  }
  return match;
}

Match match_by_name(const std::vector<SavedGroup>& saved, const Names& names,
                    const std::string& where) {
  std::unordered_map<std::string, std::pair<size_t, int64_t>> places;
  std::vector<size_t> empty;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].params.empty()) empty.push_back(i);
    for (size_t j = 0; j < saved[i].names.size(); ++j) {
      TORCH_CHECK_VALUE(places.emplace(saved[i].names[j], std::pair(i, saved[i].params[j])).second,
                        where, " has two parameters named \"", saved[i].names[j], "\"");
    }
  }
  Match match;
  size_t next_empty = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    std::optional<size_t> group;
    std::vector<int64_t>& params = match.params.emplace_back();
    for (const std::string& name : names[i]) {
      const auto found = places.find(name);
      TORCH_CHECK_VALUE(found != places.end(), where, " has no parameter \"", name,
                        "\", which is in the optimizer's group ", i);
      TORCH_CHECK_VALUE(group.value_or(found->second.first) == found->second.first,
                        "the optimizer's group ", i, " has parameter \"", name, "\", which ", where,
                        " has in another group than those before it");
      group = found->second.first;
      params.push_back(found->second.second);
    }
    if (!group && next_empty < empty.size()) group = empty[next_empty++];
    TORCH_CHECK_VALUE(group.has_value() && saved[*group].params.size() == params.size(),
                      "loaded state dict contains a parameter group that doesn't match the size of "
                      "optimizer's group: group ",
                      i, " of the optimizer has ", params.size(), " parameters");
    match.groups.push_back(*group);
  }
  return match;
}

Match match_groups(const Optimizer& optimizer, const std::vector<SavedGroup>& saved,
                   const std::string& where, const OptimizerStateDictOptions& options) {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  TORCH_CHECK_VALUE(saved.size() == groups.size(),
                    "loaded state dict has a different number of parameter groups: ", saved.size(),
                    ", the optimizer has ", groups.size());
  bool has_names = true;
  for (const SavedGroup& group : saved) {
    has_names = has_names && group.names.size() == group.params.size();
  }
  const std::optional<Names> names = names_of(optimizer, options.parameters);
  if (names && has_names) return match_by_name(saved, *names, where);
  for (size_t i = 0; i < groups.size(); ++i) {
    TORCH_CHECK_VALUE(saved[i].params.size() == groups[i].params().size(),
                      "loaded state dict contains a parameter group that doesn't match the size of "
                      "optimizer's group: group ",
                      i, " has ", saved[i].params.size(), " parameters, the optimizer's has ",
                      groups[i].params().size());
  }
  return match_by_place(saved);
}

// The tensors of a state dict, until they are taken.
class Tensors {
 public:
  Tensors(NamedTensors tensors, const std::string& where) {
    for (auto& [name, tensor] : tensors) {
      TORCH_CHECK_VALUE(tensor.defined(), where, ": \"", name, "\" is undefined");
      TORCH_CHECK_VALUE(tensors_.emplace(name, std::move(tensor)).second, where, " has two \"",
                        name, "\"");
    }
  }
  at::Tensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {};
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }
  void check_all_taken(const std::string& where) const {
    TORCH_CHECK_VALUE(tensors_.empty(), where, " has \"", tensors_.begin()->first,
                      "\", which belongs to no state");
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

void check_rule(const at::Tensor& tensor, const internal::StateTensorRule& rule,
                const std::string& name, const std::string& where) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, where, ": \"", name, "\" is ",
                    tensor.layout());
  TORCH_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(rule.sizes), where, ": \"", name,
                    "\" has shape ", tensor.sizes(), ", which for its parameter would be ",
                    at::IntArrayRef(rule.sizes));
  const bool is_number = tensor.is_floating_point() || tensor.is_complex();
  TORCH_CHECK_VALUE(!rule.dtype || (is_number && c10::canCast(tensor.scalar_type(), *rule.dtype)),
                    where, ": \"", name, "\" is of dtype ", tensor.scalar_type(),
                    ", which for its parameter would be ", *rule.dtype);
}

struct NewState {
  at::TensorImpl* key;
  std::unique_ptr<OptimizerParamState> state;
};

class StateLoader {
 public:
  StateLoader(const OptimizerKind& kind, const ordered_json& values, NamedTensors tensors,
              const std::string& where, bool wide_moments)
      : kind_(kind), where_(where), tensors_(std::move(tensors), where), wide_(wide_moments) {
    const ordered_json& states = json_member(values, "state", where);
    TORCH_CHECK_VALUE(states.is_object(), where, ": \"state\" is ", json_excerpt(states),
                      ", which is not an object");
    for (const auto& [number, state] : states.items()) saved_.emplace(number, &state);
  }

  std::vector<NewState> load(const Optimizer& optimizer, const Match& match) {
    std::vector<NewState> states;
    std::unordered_map<const at::TensorImpl*, int64_t> loaded;
    for (size_t i = 0; i < match.params.size(); ++i) {
      const std::vector<at::Tensor>& params = optimizer.param_groups()[i].params();
      int64_t numel = 0;
      for (const at::Tensor& parameter : params) numel += parameter.numel();
      for (size_t j = 0; j < params.size(); ++j) {
        const int64_t number = match.params[i][j];
        at::TensorImpl* const key = params[j].unsafeGetTensorImpl();
        const auto before = loaded.find(key);
        if (before != loaded.end() && before->second == number) continue;
        auto state = load_one(number, {params[j], numel, wide_});
        if (state == nullptr) continue;
        TORCH_CHECK_VALUE(before == loaded.end(), where_, " has states ", before->second, " and ",
                          number, " for what is one parameter of the optimizer");
        loaded.emplace(key, number);
        states.push_back({key, std::move(state)});
      }
    }
    TORCH_CHECK_VALUE(saved_.empty(), where_, ": \"state\" has \"", saved_.begin()->first,
                      "\", which is not a parameter of a group");
    tensors_.check_all_taken(where_);
    return states;
  }

 private:
  std::unique_ptr<OptimizerParamState> load_one(int64_t number, const internal::StateOwner& owner) {
    const auto found = saved_.find(std::to_string(number));
    if (found == saved_.end()) return nullptr;
    const ordered_json& values = *found->second;
    saved_.erase(found);
    const std::string prefix = state_prefix(number);
    return kind_.read_state(
        values, absl::StrCat("state[", number, "] of ", where_), owner,
        [&](const std::string& field, const internal::StateTensorRule& rule) {
          const std::string name = prefix + field;
          at::Tensor tensor = tensors_.take(name);
          TORCH_CHECK_VALUE(tensor.defined() || !rule.required, where_, " has no \"", name, "\"");
          if (!tensor.defined()) return tensor;
          check_rule(tensor, rule, name, where_);
          const at::ScalarType dtype = rule.dtype.value_or(tensor.scalar_type());
          return internal::take_over(std::move(tensor), owner.parameter, dtype,
                                     rule.like_parameter);
        });
  }

  const OptimizerKind& kind_;
  const std::string& where_;
  Tensors tensors_;
  bool wide_;
  std::map<std::string, const ordered_json*> saved_;
};

void load_archive(Optimizer& optimizer, NamedTensors tensors, const std::string& where) {
  Tensors by_name(std::move(tensors), where);
  const at::Tensor archive = by_name.take(kArchive);
  TORCH_CHECK_VALUE(archive.defined(), where, " has no \"", kArchive, "\"");
  TORCH_CHECK_VALUE(archive.scalar_type() == at::kByte && archive.dim() == 1, where, ": \"",
                    kArchive, "\" is not a vector of bytes");
  by_name.check_all_taken(where);
  internal::load_optimizer_archive(optimizer, archive.cpu().contiguous());
}

void load(Optimizer& optimizer, StateDict state, const OptimizerStateDictOptions& options,
          bool wide_moments) {
  const OptimizerKind* kind = internal::find_optimizer_kind(optimizer);
  const std::string type = type_of(optimizer, kind);
  const std::string where = absl::StrCat("the state of an optimizer of type ", type);
  const ordered_json values = internal::read_numbers(std::move(state.values));
  const auto saved_type = field_of<std::string>(values, "type", where);
  TORCH_CHECK_VALUE(saved_type == type, "the state is of an optimizer of type ", saved_type,
                    ", this one is of type ", type);
  const std::vector<SavedGroup> saved = saved_groups(values, where);
  if (kind == nullptr) {
    match_groups(optimizer, saved, where, {});
    return load_archive(optimizer, std::move(state.tensors), where);
  }
  const Match match = match_groups(optimizer, saved, where, options);
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> group_options;
  for (const size_t group : match.groups) {
    group_options.push_back(kind->read_options(*saved[group].values, saved[group].where));
  }
  std::vector<NewState> states =
      StateLoader(*kind, values, std::move(state.tensors), where, wide_moments)
          .load(optimizer, match);
  optimizer.state().clear();
  for (NewState& loaded : states) optimizer.state()[loaded.key] = std::move(loaded.state);
  for (size_t i = 0; i < group_options.size(); ++i) {
    kind->assign(optimizer.param_groups()[i].options(), *group_options[i]);
  }
}

}  // namespace

StateDict optimizer_state_dict(const Optimizer& optimizer,
                               const OptimizerStateDictOptions& options) {
  const OptimizerKind* kind = internal::find_optimizer_kind(optimizer);
  const Numbering numbering(optimizer);
  const std::optional<Names> names = names_of(optimizer, options.parameters);
  StateDict result;
  ordered_json::object_t states;
  std::unordered_set<int64_t> seen;
  auto groups = ordered_json::array();
  for (size_t i = 0; i < numbering.groups().size(); ++i) {
    const OptimizerParamGroup& group = optimizer.param_groups()[i];
    ordered_json values = kind != nullptr ? kind->options(group.options()) : ordered_json::object();
    values["params"] = numbering.groups()[i];
    if (names) values["param_names"] = (*names)[i];
    groups.push_back(std::move(values));
    if (kind == nullptr) continue;
    for (size_t j = 0; j < group.params().size(); ++j) {
      const auto found = optimizer.state().find(group.params()[j].unsafeGetTensorImpl());
      const int64_t number = numbering.groups()[i][j];
      if (found == optimizer.state().end() || found->second == nullptr) continue;
      if (!seen.insert(number).second) continue;
      states.emplace_back(std::to_string(number),
                          kind->state(*found->second, state_prefix(number), result.tensors));
    }
  }
  result.values["type"] = type_of(optimizer, kind);
  if (kind != nullptr) {
    result.values["state"] = std::move(states);
  } else {
    result.tensors.emplace_back(kArchive, internal::optimizer_archive(optimizer));
  }
  result.values["param_groups"] = std::move(groups);
  result.values = internal::spell_numbers(std::move(result.values));
  return result;
}

void load_optimizer_state_dict(Optimizer& optimizer, StateDict state,
                               const OptimizerStateDictOptions& options) {
  load(optimizer, std::move(state), options, /*wide_moments=*/false);
}

StateDict accelerated_optimizer_state_dict(AcceleratedOptimizer::Shared& optimizer,
                                           const OptimizerStateDictOptions& options) {
  if (!optimizer.moments) return optimizer_state_dict(*optimizer.optimizer, options);
  optimizer.moments->unpack();
  StateDict state = optimizer_state_dict(*optimizer.optimizer, options);
  optimizer.moments->pack();
  return state;
}

void load_accelerated_optimizer_state_dict(AcceleratedOptimizer::Shared& optimizer, StateDict state,
                                           const OptimizerStateDictOptions& options) {
  load(*optimizer.optimizer, std::move(state), options, optimizer.moments != nullptr);
  if (optimizer.moments) optimizer.moments->pack();
}

}  // namespace accelerate
