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
#include "accelerate/values/json_field.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// The fields of options and states: those of this library list theirs themselves.
template <typename T>
struct Fields {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    T::for_each_field(self, fn);
  }
};

struct AdamFields {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("betas", self.betas());
    fn("eps", self.eps());
    fn("weight_decay", self.weight_decay());
    fn("amsgrad", self.amsgrad());
  }
};
template <>
struct Fields<torch::optim::AdamOptions> : AdamFields {};
template <>
struct Fields<torch::optim::AdamWOptions> : AdamFields {};

struct AdamStateFields {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("step", self.step());
    fn("exp_avg", self.exp_avg());
    fn("exp_avg_sq", self.exp_avg_sq());
    fn("max_exp_avg_sq", self.max_exp_avg_sq());
  }
};
template <>
struct Fields<torch::optim::AdamParamState> : AdamStateFields {};
template <>
struct Fields<torch::optim::AdamWParamState> : AdamStateFields {};

template <>
struct Fields<torch::optim::SGDOptions> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("momentum", self.momentum());
    fn("dampening", self.dampening());
    fn("weight_decay", self.weight_decay());
    fn("nesterov", self.nesterov());
  }
};
template <>
struct Fields<torch::optim::SGDParamState> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("momentum_buffer", self.momentum_buffer());
  }
};

template <>
struct Fields<torch::optim::AdagradOptions> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("lr_decay", self.lr_decay());
    fn("weight_decay", self.weight_decay());
    fn("initial_accumulator_value", self.initial_accumulator_value());
    fn("eps", self.eps());
  }
};
template <>
struct Fields<torch::optim::AdagradParamState> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("step", self.step());
    fn("sum", self.sum());
  }
};

template <>
struct Fields<torch::optim::RMSpropOptions> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("momentum", self.momentum());
    fn("alpha", self.alpha());
    fn("eps", self.eps());
    fn("centered", self.centered());
    fn("weight_decay", self.weight_decay());
  }
};
template <>
struct Fields<torch::optim::RMSpropParamState> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("step", self.step());
    fn("square_avg", self.square_avg());
    fn("momentum_buffer", self.momentum_buffer());
    fn("grad_avg", self.grad_avg());
  }
};

template <>
struct Fields<torch::optim::LBFGSOptions> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("max_iter", self.max_iter());
    fn("max_eval", self.max_eval());
    fn("tolerance_grad", self.tolerance_grad());
    fn("tolerance_change", self.tolerance_change());
    fn("history_size", self.history_size());
    fn("line_search_fn", self.line_search_fn());
  }
};
template <>
struct Fields<torch::optim::LBFGSParamState> {
  template <typename Self, typename Fn>
  static void visit(Self& self, Fn&& fn) {
    fn("func_evals", self.func_evals());
    fn("n_iter", self.n_iter());
    fn("d", self.d());
    fn("t", self.t());
    fn("old_dirs", self.old_dirs());
    fn("old_stps", self.old_stps());
    fn("ro", self.ro());
    fn("H_diag", self.H_diag());
    fn("prev_flat_grad", self.prev_flat_grad());
    fn("prev_loss", self.prev_loss());
    fn("al", self.al());
  }
};

// LOMO keeps nothing.
struct NoState : OptimizerParamState {};
template <>
struct Fields<NoState> {
  template <typename Self, typename Fn>
  static void visit(Self&, Fn&&) {}
};

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
    Fields<Options>::visit(
        as<const Options>(options, name_),
        [&values](const char* field, const auto& value) { values[field] = to_json_value(value); });
    return values;
  }

  std::unique_ptr<OptimizerOptions> read_options(const ordered_json& values,
                                                 const std::string& where) const override {
    auto options = std::make_unique<Options>(0);
    Fields<Options>::visit(
        *options, [&](const char* field, auto& value) { read_field(values, field, where, value); });
    return options;
  }

  void assign(OptimizerOptions& options, OptimizerOptions& from) const override {
    as<Options>(options, name_) = std::move(as<Options>(from, name_));
  }

  ordered_json state(const OptimizerParamState& state, const std::string& prefix,
                     NamedTensors& tensors) const override {
    StateWriter writer{prefix, tensors};
    Fields<State>::visit(as<const State>(state, name_), writer);
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
    Fields<State>::visit(*state, StateReader{values, where, take_field});
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
