#include "accelerate/optim/optimizer_state_dict.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/document.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/optimizer_archive.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/json_values.h"

namespace accelerate {
namespace {

using internal::field_of;
using internal::json_member;
using nlohmann::ordered_json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

// ---- How the options and state of an optimizer of LibTorch or of this library are saved.

// The parameter that a state belongs to.
struct StateOwner {
  const at::Tensor& parameter;
  // The number of elements of all parameters of its group.
  int64_t group_numel;
  // Whether moments are float32 at least, whatever the parameter is.
  bool wide_moments = false;
};

// What a tensor of a state must be.
struct StateTensorRule {
  std::vector<int64_t> sizes;
  // Absent: any.
  std::optional<at::ScalarType> dtype;
  // Whether it lies in memory as the parameter does.
  bool like_parameter = false;
  bool required = false;
};

// Returns the tensor of a saved state's field, converted as the rule demands; undefined if the
// state has none.
using TakeTensor = std::function<at::Tensor(const std::string& field, const StateTensorRule& rule)>;

using TensorVisitor = std::function<void(const char* field, const at::Tensor& tensor)>;

class OptimizerKind {
 public:
  explicit OptimizerKind(const char* name) : name_(name) {}
  virtual ~OptimizerKind() = default;

  const char* name() const { return name_; }

  virtual ordered_json options(const OptimizerOptions& options) const = 0;
  virtual std::unique_ptr<OptimizerOptions> read_options(const ordered_json& values,
                                                         const std::string& where) const = 0;
  // Both are of this kind.
  virtual void assign(OptimizerOptions& options, OptimizerOptions& from) const = 0;

  // Appends the tensors, named `prefix` + field, and returns the rest.
  virtual ordered_json state(const OptimizerParamState& state, const std::string& prefix,
                             NamedTensors& tensors) const = 0;
  virtual std::unique_ptr<OptimizerParamState> read_state(const ordered_json& values,
                                                          const std::string& where,
                                                          const StateOwner& owner,
                                                          const TakeTensor& take) const = 0;

  // All tensors but those in lists.
  virtual void visit_tensors(const OptimizerParamState& state,
                             const TensorVisitor& visit) const = 0;

 private:
  const char* const name_;
};

// The fields of LibTorch's options and states; the optimizers of this library list theirs.
ACCELERATE_ARGUMENTS(torch::optim::AdamOptions, lr, betas, eps, weight_decay, amsgrad)
ACCELERATE_ARGUMENTS(torch::optim::AdamWOptions, lr, betas, eps, weight_decay, amsgrad)
ACCELERATE_ARGUMENTS(torch::optim::AdamParamState, step, exp_avg, exp_avg_sq, max_exp_avg_sq)
ACCELERATE_ARGUMENTS(torch::optim::AdamWParamState, step, exp_avg, exp_avg_sq, max_exp_avg_sq)
ACCELERATE_ARGUMENTS(torch::optim::SGDOptions, lr, momentum, dampening, weight_decay, nesterov)
ACCELERATE_ARGUMENTS(torch::optim::SGDParamState, momentum_buffer)
ACCELERATE_ARGUMENTS(torch::optim::AdagradOptions, lr, lr_decay, weight_decay,
                     initial_accumulator_value, eps)
ACCELERATE_ARGUMENTS(torch::optim::AdagradParamState, step, sum)
ACCELERATE_ARGUMENTS(torch::optim::RMSpropOptions, lr, momentum, alpha, eps, centered, weight_decay)
ACCELERATE_ARGUMENTS(torch::optim::RMSpropParamState, step, square_avg, momentum_buffer, grad_avg)
ACCELERATE_ARGUMENTS(torch::optim::LBFGSOptions, lr, max_iter, max_eval, tolerance_grad,
                     tolerance_change, history_size, line_search_fn)
ACCELERATE_ARGUMENTS(torch::optim::LBFGSParamState, func_evals, n_iter, d, t, old_dirs, old_stps,
                     ro, H_diag, prev_flat_grad, prev_loss, al)

// What the tensors of a state must be. Those of most optimizers are like their parameters.
StateTensorRule like_parameter(const StateOwner& owner, bool required) {
  const at::ScalarType dtype = owner.parameter.scalar_type();
  return {.sizes = owner.parameter.sizes().vec(),
          .dtype = owner.wide_moments ? c10::promoteTypes(dtype, at::kFloat) : dtype,
          .like_parameter = true,
          .required = required};
}

template <typename State>
StateTensorRule rule_of(std::type_identity<State>, const std::string& field,
                        const StateOwner& owner) {
  constexpr std::array kOptional = {"max_exp_avg_sq", "momentum_buffer", "grad_avg"};
  const bool is_momentum = std::is_same_v<State, torch::optim::SGDParamState>;
  return like_parameter(owner, std::ranges::count(kOptional, field) == 0 || is_momentum);
}

StateTensorRule rule_of(std::type_identity<optim::AdaLomoParamState>, const std::string& field,
                        const StateOwner& owner) {
  const bool is_factored = owner.parameter.dim() >= 2;
  StateTensorRule rule = like_parameter(owner, (field != "exp_avg_sq") == is_factored);
  rule.dtype = c10::promoteTypes(owner.parameter.scalar_type(), at::kFloat);
  if (field == "exp_avg_sq") return rule;
  rule.like_parameter = false;
  if (is_factored) rule.sizes.erase(rule.sizes.end() - (field == "exp_avg_sq_row" ? 1 : 2));
  return rule;
}

StateTensorRule rule_of(std::type_identity<torch::optim::LBFGSParamState>, const std::string& field,
                        const StateOwner& owner) {
  const bool is_scalar = field == "H_diag" || field.starts_with("ro.") || field.starts_with("al.");
  StateTensorRule rule;
  if (!is_scalar) rule.sizes = {owner.group_numel};
  rule.required = field.find('.') != std::string::npos && !field.starts_with("al.");
  return rule;
}

// A user can put options of any class into a group.
template <typename To, typename From>
To& as(From& from, const char* kind) {
  auto* to = dynamic_cast<To*>(&from);
  TORCH_CHECK_VALUE(to != nullptr, "an optimizer of type ", kind,
                    " has options or state of another type");
  return *to;
}

template <typename T>
concept TensorList = std::same_as<typename T::value_type, at::Tensor>;

struct StateWriter {
  const std::string& prefix;
  NamedTensors& tensors;
  ordered_json values = ordered_json::object();

  void operator()(const std::string& field, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const std::string name = prefix + field;
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "an optimizer's \"", name, "\" is ",
                      tensor.layout(), ", which a checkpoint cannot hold");
    tensors.emplace_back(name, tensor.detach());
  }
  template <TensorList List>
  void operator()(const std::string& field, const List& list) {
    values[field] = list.size();
    for (size_t i = 0; i < list.size(); ++i) (*this)(absl::StrCat(field, ".", i), list[i]);
  }
  void operator()(const std::string& field, const std::optional<std::vector<at::Tensor>>& list) {
    if (list) return (*this)(field, *list);
    values[field] = nullptr;
  }
  template <typename T>
  void operator()(const std::string& field, const T& value) {
    values[field] = internal::to_json_value(value);
  }
};

struct StateReader {
  const ordered_json& values;
  const std::string& where;
  // That of a field by its full name.
  const std::function<at::Tensor(const std::string& field)>& take;

  void operator()(const char* field, at::Tensor& tensor) const { tensor = take(field); }
  template <TensorList List>
  void operator()(const char* field, List& list) const {
    // More than any history holds, and than a hostile file may make us allocate.
    constexpr int64_t kMax = 1 << 20;
    const auto size = field_of<int64_t>(values, field, where);
    TORCH_CHECK_VALUE(size >= 0 && size <= kMax, where, ": \"", field, "\" is ", size,
                      ", which is not a length of a list");
    list.clear();
    for (int64_t i = 0; i < size; ++i) list.push_back(take(absl::StrCat(field, ".", i)));
  }
  void operator()(const char* field, std::optional<std::vector<at::Tensor>>& list) const {
    list.reset();
    if (!json_member(values, field, where).is_null()) (*this)(field, list.emplace());
  }
  template <typename T>
  void operator()(const char* field, T& value) const {
    internal::read_field(values, field, where, value);
  }
};

template <typename Options, typename State>
class KindOf final : public OptimizerKind {
 public:
  using OptimizerKind::OptimizerKind;

  ordered_json options(const OptimizerOptions& options) const override {
    ordered_json values = ordered_json::object();
    visit_fields(as<const Options>(options, name()), [&](const char* field, const auto& value) {
      values[field] = internal::to_json_value(value);
    });
    return values;
  }

  std::unique_ptr<OptimizerOptions> read_options(const ordered_json& values,
                                                 const std::string& where) const override {
    auto options = std::make_unique<Options>(0);
    visit_fields(*options, [&](const char* field, auto& value) {
      internal::read_field(values, field, where, value);
    });
    return options;
  }

  void assign(OptimizerOptions& options, OptimizerOptions& from) const override {
    as<Options>(options, name()) = std::move(as<Options>(from, name()));
  }

  ordered_json state(const OptimizerParamState& state, const std::string& prefix,
                     NamedTensors& tensors) const override {
    StateWriter writer{prefix, tensors};
    visit_fields(as<const State>(state, name()), writer);
    return std::move(writer.values);
  }

  std::unique_ptr<OptimizerParamState> read_state(const ordered_json& values,
                                                  const std::string& where, const StateOwner& owner,
                                                  const TakeTensor& take) const override {
    TORCH_CHECK_VALUE(values.is_object(), where, " is ", excerpt_of(values),
                      ", which is not an object");
    auto state = std::make_unique<State>();
    const std::function<at::Tensor(const std::string&)> take_field = [&](const std::string& field) {
      return take(field, rule_of(std::type_identity<State>(), field, owner));
    };
    visit_fields(*state, StateReader{values, where, take_field});
    return state;
  }

  void visit_tensors(const OptimizerParamState& state, const TensorVisitor& visit) const override {
    visit_fields(as<const State>(state, name()), [&](const char* field, const auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        if (value.defined()) visit(field, value);
      }
    });
  }
};

// The kind if `type` is exactly one of these classes: a derived class may add fields of its own.
template <typename Options, typename State, typename... Classes>
const OptimizerKind* kind_if(const char* name, const std::type_info& type) {
  static const KindOf<Options, State> kind(name);
  return ((type == typeid(Classes)) || ...) ? &kind : nullptr;
}

// Null for any other class.
const OptimizerKind* find_optimizer_kind(const Optimizer& optimizer) {
  using namespace torch::optim;
  const std::type_info& type = typeid(optimizer);
  for (const OptimizerKind* kind : {
           kind_if<AdamOptions, AdamParamState, torch::optim::Adam, optim::Adam>("Adam", type),
           kind_if<AdamWOptions, AdamWParamState, torch::optim::AdamW, optim::AdamW>("AdamW", type),
           kind_if<SGDOptions, SGDParamState, torch::optim::SGD, optim::SGD>("SGD", type),
           kind_if<AdagradOptions, AdagradParamState, torch::optim::Adagrad, optim::Adagrad>(
               "Adagrad", type),
           kind_if<RMSpropOptions, RMSpropParamState, RMSprop>("RMSprop", type),
           kind_if<LBFGSOptions, LBFGSParamState, LBFGS>("LBFGS", type),
           kind_if<optim::LionOptions, optim::LionParamState, optim::Lion>("Lion", type),
           kind_if<optim::LambOptions, optim::LambParamState, optim::Lamb>("Lamb", type),
           kind_if<optim::ScheduleFreeAdamWOptions, optim::ScheduleFreeAdamWParamState,
                   optim::ScheduleFreeAdamW>("ScheduleFreeAdamW", type),
           kind_if<optim::LomoOptions, optim::LomoParamState, optim::Lomo>("Lomo", type),
           kind_if<optim::AdaLomoOptions, optim::AdaLomoParamState, optim::AdaLomo>("AdaLomo",
                                                                                    type),
       }) {
    if (kind != nullptr) return kind;
  }
  return nullptr;
}

// ---- The state dict.

constexpr char kArchive[] = "archive";

std::string type_of(const Optimizer& optimizer, const OptimizerKind* kind) {
  return kind != nullptr ? kind->name() : c10::demangle(typeid(optimizer).name());
}

std::string state_prefix(int64_t parameter) { return absl::StrCat("state.", parameter, "."); }

// The parameters' numbers, by group: one that comes twice has the first.
std::vector<std::vector<int64_t>> numbers_of(const Optimizer& optimizer) {
  std::vector<std::vector<int64_t>> groups;
  std::unordered_map<const at::TensorImpl*, int64_t> numbers;
  int64_t next = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<int64_t>& of_group = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      of_group.push_back(numbers.emplace(parameter.unsafeGetTensorImpl(), next++).first->second);
    }
  }
  return groups;
}

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
  TORCH_CHECK_VALUE(list.is_array(), where, ": \"", name, "\" is ", excerpt_of(list),
                    ", which is not a list");
  std::vector<T> result;
  for (const ordered_json& item : list) {
    TORCH_CHECK_VALUE(internal::json_to(item, result.emplace_back()), where, ": \"", name,
                      "\" has an item ", excerpt_of(item), ", which is of another type");
  }
  return result;
}

std::vector<SavedGroup> saved_groups(const ordered_json& values, const std::string& where) {
  const ordered_json& list = json_member(values, "param_groups", where);
  TORCH_CHECK_VALUE(list.is_array(), where, ": \"param_groups\" is ", excerpt_of(list),
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

[[noreturn]] void refuse_size(size_t group, size_t parameters) {
  TORCH_CHECK_VALUE(false,
                    "loaded state dict contains a parameter group that doesn't match the size of "
                    "optimizer's group: group ",
                    group, " of the optimizer has ", parameters, " parameters");
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
      if (found == places.end()) {
        const bool has_size = std::ranges::any_of(
            saved, [&](const SavedGroup& group) { return group.params.size() == names[i].size(); });
        if (!has_size) refuse_size(i, names[i].size());
        TORCH_CHECK_VALUE(false, where, " has no parameter \"", name,
                          "\", which is in the optimizer's group ", i);
      }
      TORCH_CHECK_VALUE(group.value_or(found->second.first) == found->second.first,
                        "the optimizer's group ", i, " has parameter \"", name, "\", which ", where,
                        " has in another group than those before it");
      group = found->second.first;
      params.push_back(found->second.second);
    }
    if (!group && next_empty < empty.size()) group = empty[next_empty++];
    if (!group || saved[*group].params.size() != params.size()) refuse_size(i, params.size());
    match.groups.push_back(*group);
  }
  return match;
}

bool has_one_of(const std::vector<SavedGroup>& saved, const Names& names) {
  std::unordered_set<std::string> own;
  for (const std::vector<std::string>& each : names) own.insert(each.begin(), each.end());
  return std::ranges::any_of(saved, [&](const SavedGroup& group) {
    return std::ranges::any_of(group.names,
                               [&](const std::string& name) { return own.contains(name); });
  });
}

Match match_groups(const Optimizer& optimizer, const std::vector<SavedGroup>& saved,
                   const std::string& where, const OptimizerStateDictOptions& options) {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  TORCH_CHECK_VALUE(saved.size() == groups.size(),
                    "loaded state dict has a different number of parameter groups: ", saved.size(),
                    ", the optimizer has ", groups.size());
  const bool has_names = std::ranges::all_of(
      saved, [](const SavedGroup& group) { return group.names.size() == group.params.size(); });
  const std::optional<Names> names = names_of(optimizer, options.parameters);
  // Where all names are others, as of a model in another wrapper, the order counts as in PyTorch.
  if (names && has_names && has_one_of(saved, *names)) return match_by_name(saved, *names, where);
  Match match;
  for (size_t i = 0; i < groups.size(); ++i) {
    TORCH_CHECK_VALUE(saved[i].params.size() == groups[i].params().size(),
                      "loaded state dict contains a parameter group that doesn't match the size of "
                      "optimizer's group: group ",
                      i, " has ", saved[i].params.size(), " parameters, the optimizer's has ",
                      groups[i].params().size());
    match.groups.push_back(i);
    match.params.push_back(saved[i].params);
  }
  return match;
}

internal::UntakenTensors untaken(NamedTensors tensors, const std::string& where) {
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), where, ": \"", name, "\" is undefined");
  }
  return {std::move(tensors), where};
}

void check_rule(const at::Tensor& tensor, const StateTensorRule& rule, const std::string& name,
                const std::string& where) {
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

using NewStates = std::vector<std::pair<at::TensorImpl*, std::unique_ptr<OptimizerParamState>>>;

NewStates load_states(const OptimizerKind& kind, const Optimizer& optimizer, const Match& match,
                      const ordered_json& values, NamedTensors named, const std::string& where,
                      bool wide_moments) {
  internal::UntakenTensors tensors = untaken(std::move(named), where);
  const ordered_json& all = json_member(values, "state", where);
  TORCH_CHECK_VALUE(all.is_object(), where, ": \"state\" is ", excerpt_of(all),
                    ", which is not an object");
  std::map<std::string, const ordered_json*> saved;
  for (const auto& [number, state] : all.items()) saved.emplace(number, &state);
  const auto load_one = [&](int64_t number,
                            const StateOwner& owner) -> std::unique_ptr<OptimizerParamState> {
    const auto one = saved.extract(std::to_string(number));
    if (!one) return nullptr;
    const std::string prefix = state_prefix(number);
    return kind.read_state(*one.mapped(), absl::StrCat("state[", number, "] of ", where), owner,
                           [&](const std::string& field, const StateTensorRule& rule) {
                             const std::string name = prefix + field;
                             at::Tensor tensor = tensors.take(name);
                             TORCH_CHECK_VALUE(tensor.defined() || !rule.required, where,
                                               " has no \"", name, "\"");
                             if (!tensor.defined()) return tensor;
                             check_rule(tensor, rule, name, where);
                             const at::ScalarType dtype = rule.dtype.value_or(tensor.scalar_type());
                             return internal::conform_to_parameter(
                                 std::move(tensor), owner.parameter, dtype, rule.like_parameter);
                           });
  };
  NewStates states;
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
      auto state = load_one(number, {params[j], numel, wide_moments});
      if (state == nullptr) continue;
      TORCH_CHECK_VALUE(before == loaded.end(), where, " has states ", before->second, " and ",
                        number, " for what is one parameter of the optimizer");
      loaded.emplace(key, number);
      states.emplace_back(key, std::move(state));
    }
  }
  TORCH_CHECK_VALUE(saved.empty(), where, ": \"state\" has \"", saved.begin()->first,
                    "\", which is not a parameter of a group");
  tensors.check_all_taken("belongs to no state");
  return states;
}

void load_archive(Optimizer& optimizer, NamedTensors tensors, const std::string& where) {
  internal::UntakenTensors by_name = untaken(std::move(tensors), where);
  const at::Tensor archive = by_name.take(kArchive);
  TORCH_CHECK_VALUE(archive.defined(), where, " has no \"", kArchive, "\"");
  TORCH_CHECK_VALUE(archive.scalar_type() == at::kByte && archive.dim() == 1, where, ": \"",
                    kArchive, "\" is not a vector of bytes");
  by_name.check_all_taken("belongs to no state");
  internal::load_optimizer_archive(optimizer, archive.cpu().contiguous());
}

}  // namespace

bool knows_state_of(const Optimizer& optimizer) {
  return find_optimizer_kind(optimizer) != nullptr;
}

void visit_state_tensors(
    const Optimizer& optimizer, const at::Tensor& parameter,
    const std::function<void(const char* field, const at::Tensor& tensor)>& visit) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || found->second == nullptr) return;
  if (const OptimizerKind* kind = find_optimizer_kind(optimizer)) {
    kind->visit_tensors(*found->second, visit);
  }
}

StateDict optimizer_state_dict(const Optimizer& optimizer,
                               const OptimizerStateDictOptions& options) {
  const OptimizerKind* kind = find_optimizer_kind(optimizer);
  const std::vector<std::vector<int64_t>> numbers = numbers_of(optimizer);
  const std::optional<Names> names = names_of(optimizer, options.parameters);
  StateDict result;
  ordered_json::object_t states;
  std::unordered_set<int64_t> seen;
  auto groups = ordered_json::array();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const OptimizerParamGroup& group = optimizer.param_groups()[i];
    ordered_json values = kind != nullptr ? kind->options(group.options()) : ordered_json::object();
    values["params"] = numbers[i];
    if (names) values["param_names"] = (*names)[i];
    groups.push_back(std::move(values));
    if (kind == nullptr) continue;
    for (size_t j = 0; j < group.params().size(); ++j) {
      const auto found = optimizer.state().find(group.params()[j].unsafeGetTensorImpl());
      const int64_t number = numbers[i][j];
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
  const OptimizerKind* kind = find_optimizer_kind(optimizer);
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
  NewStates states = load_states(*kind, optimizer, match, values, std::move(state.tensors), where,
                                 options.wide_moments);
  optimizer.state().clear();
  for (auto& [key, loaded] : states) optimizer.state()[key] = std::move(loaded);
  for (size_t i = 0; i < group_options.size(); ++i) {
    kind->assign(optimizer.param_groups()[i].options(), *group_options[i]);
  }
}

}  // namespace accelerate
