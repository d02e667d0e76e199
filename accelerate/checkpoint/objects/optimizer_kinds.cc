#include "accelerate/checkpoint/objects/optimizer_kinds.h"

#include <array>
#include <deque>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "absl/strings/str_cat.h"
#include "accelerate/optim/adalomo.h"
#include "accelerate/optim/adam.h"
#include "accelerate/optim/lamb.h"
#include "accelerate/optim/lion.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/schedule_free_adamw.h"
#include "accelerate/optim/sgd.h"
#include "accelerate/values/fields.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

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

// LOMO keeps nothing.
struct NoState : OptimizerParamState {};
ACCELERATE_ARGUMENTS(NoState)

// What the tensors of a state must be. Those of most optimizers are like their parameters.
at::ScalarType moment_dtype(const StateOwner& owner) {
  const at::ScalarType dtype = owner.parameter.scalar_type();
  return owner.wide_moments ? c10::promoteTypes(dtype, at::kFloat) : dtype;
}

StateTensorRule like_parameter(const StateOwner& owner, bool required) {
  return {.sizes = owner.parameter.sizes().vec(),
          .dtype = moment_dtype(owner),
          .like_parameter = true,
          .required = required};
}

template <typename State>
StateTensorRule rule_of(std::type_identity<State>, const std::string& field,
                        const StateOwner& owner) {
  constexpr std::array kOptional = {"max_exp_avg_sq", "momentum_buffer", "grad_avg"};
  const bool is_momentum = std::is_same_v<State, torch::optim::SGDParamState>;
  bool required = true;
  for (const char* optional : kOptional) required = required && field != optional;
  return like_parameter(owner, required || is_momentum);
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

struct StateWriter {
  const std::string& prefix;
  NamedTensors& tensors;
  ordered_json values = ordered_json::object();

  void add(const std::string& field, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const std::string name = prefix + field;
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "an optimizer's \"", name, "\" is ",
                      tensor.layout(), ", which a checkpoint cannot hold");
    tensors.emplace_back(name, tensor.detach());
  }
  void operator()(const char* field, const at::Tensor& tensor) { add(field, tensor); }
  template <typename List>
  void add_list(const char* field, const List& list) {
    values[field] = list.size();
    for (size_t i = 0; i < list.size(); ++i) add(absl::StrCat(field, ".", i), list[i]);
  }
  void operator()(const char* field, const std::deque<at::Tensor>& list) { add_list(field, list); }
  void operator()(const char* field, const std::optional<std::vector<at::Tensor>>& list) {
    if (list) return add_list(field, *list);
    values[field] = nullptr;
  }
  template <typename T>
  void operator()(const char* field, const T& value) {
    values[field] = to_json_value(value);
  }
};

struct StateReader {
  const ordered_json& values;
  const std::string& where;
  // That of a field by its full name.
  const std::function<at::Tensor(const std::string& field)>& take;

  void operator()(const char* field, at::Tensor& tensor) const { tensor = take(field); }
  template <typename List>
  void read_list(const char* field, List& list) const {
    // More than any history holds, and than a hostile file may make us allocate.
    constexpr int64_t kMax = 1 << 20;
    const auto size = field_of<int64_t>(values, field, where);
    TORCH_CHECK_VALUE(size >= 0 && size <= kMax, where, ": \"", field, "\" is ", size,
                      ", which is no length of a list");
    for (int64_t i = 0; i < size; ++i) list.push_back(take(absl::StrCat(field, ".", i)));
  }
  void operator()(const char* field, std::deque<at::Tensor>& list) const {
    list.clear();
    read_list(field, list);
  }
  void operator()(const char* field, std::optional<std::vector<at::Tensor>>& list) const {
    list.reset();
    if (!json_member(values, field, where).is_null()) read_list(field, list.emplace());
  }
  template <typename T>
  void operator()(const char* field, T& value) const {
    read_field(values, field, where, value);
  }
};

template <typename Options, typename State>
class KindOf final : public OptimizerKind {
 public:
  explicit KindOf(const char* name) : name_(name) {}

  const char* name() const override { return name_; }

  ordered_json options(const OptimizerOptions& options) const override {
    ordered_json values = ordered_json::object();
    visit_fields(
        as<const Options>(options, name_),
        [&values](const char* field, const auto& value) { values[field] = to_json_value(value); });
    return values;
  }

  std::unique_ptr<OptimizerOptions> read_options(const ordered_json& values,
                                                 const std::string& where) const override {
    auto options = std::make_unique<Options>(0);
    visit_fields(*options,
                 [&](const char* field, auto& value) { read_field(values, field, where, value); });
    return options;
  }

  void assign(OptimizerOptions& options, OptimizerOptions& from) const override {
    as<Options>(options, name_) = std::move(as<Options>(from, name_));
  }

  ordered_json state(const OptimizerParamState& state, const std::string& prefix,
                     NamedTensors& tensors) const override {
    StateWriter writer{prefix, tensors};
    visit_fields(as<const State>(state, name_), writer);
    return std::move(writer.values);
  }

  std::unique_ptr<OptimizerParamState> read_state(const ordered_json& values,
                                                  const std::string& where, const StateOwner& owner,
                                                  const TakeTensor& take) const override {
    TORCH_CHECK_VALUE(values.is_object(), where, " is ", json_excerpt(values),
                      ", which is no object");
    auto state = std::make_unique<State>();
    const std::function<at::Tensor(const std::string&)> take_field = [&](const std::string& field) {
      return take(field, rule_of(std::type_identity<State>(), field, owner));
    };
    visit_fields(*state, StateReader{values, where, take_field});
    return state;
  }

 private:
  const char* name_;
};

using namespace torch::optim;
const KindOf<AdamOptions, AdamParamState> kAdam("Adam");
const KindOf<AdamWOptions, AdamWParamState> kAdamW("AdamW");
const KindOf<SGDOptions, SGDParamState> kSgd("SGD");
const KindOf<AdagradOptions, AdagradParamState> kAdagrad("Adagrad");
const KindOf<RMSpropOptions, RMSpropParamState> kRmsprop("RMSprop");
const KindOf<LBFGSOptions, LBFGSParamState> kLbfgs("LBFGS");
const KindOf<optim::LionOptions, optim::LionParamState> kLion("Lion");
const KindOf<optim::LambOptions, optim::LambParamState> kLamb("Lamb");
const KindOf<optim::ScheduleFreeAdamWOptions, optim::ScheduleFreeAdamWParamState> kScheduleFree(
    "ScheduleFreeAdamW");
const KindOf<optim::LomoOptions, NoState> kLomo("Lomo");
const KindOf<optim::AdaLomoOptions, optim::AdaLomoParamState> kAdaLomo("AdaLomo");

}  // namespace

const OptimizerKind* find_optimizer_kind(const torch::optim::Optimizer& optimizer) {
  const std::pair<std::type_index, const OptimizerKind*> kinds[] = {
      {typeid(torch::optim::Adam), &kAdam},
      {typeid(optim::Adam), &kAdam},
      {typeid(torch::optim::AdamW), &kAdamW},
      {typeid(optim::AdamW), &kAdamW},
      {typeid(torch::optim::SGD), &kSgd},
      {typeid(optim::SGD), &kSgd},
      {typeid(torch::optim::Adagrad), &kAdagrad},
      {typeid(torch::optim::RMSprop), &kRmsprop},
      {typeid(torch::optim::LBFGS), &kLbfgs},
      {typeid(optim::Lion), &kLion},
      {typeid(optim::Lamb), &kLamb},
      {typeid(optim::ScheduleFreeAdamW), &kScheduleFree},
      {typeid(optim::Lomo), &kLomo},
      {typeid(optim::AdaLomo), &kAdaLomo},
  };
  const std::type_index type = typeid(optimizer);
  for (const auto& [known, kind] : kinds) {
    if (known == type) return kind;
  }
  return nullptr;
}

}  // namespace accelerate::internal
