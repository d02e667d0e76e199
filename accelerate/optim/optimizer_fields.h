/// What LibTorch asks of an optimizer's options and parameter states (copying, archives, a learning
/// rate), derived from one list of their fields:
///
///     struct LionOptions : internal::OptionsOf<LionOptions> {
///       TORCH_ARG(double, lr) = 1e-4;
///     };
///     ACCELERATE_ARGUMENTS(LionOptions, lr)
///
/// Errors: c10::Error naming the field that an archive does not have.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include "accelerate/base/fields.h"
#include "accelerate/optim/schedulers/cyclic.h"

namespace accelerate::internal {

template <typename T>
void write_fields(torch::serialize::OutputArchive& archive, const T& value) {
  visit_fields(value, [&archive](const char* name, const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, at::Tensor>) {
      if (!field.defined()) return;
    }
    archive.write(name, c10::IValue(field));
  });
}

template <typename T>
void read_fields(torch::serialize::InputArchive& archive, T& value) {
  visit_fields(value, [&archive](const char* name, auto& field) {
    using Field = std::decay_t<decltype(field)>;
    c10::IValue read;
    if (archive.try_read(name, read)) {
      field = read.to<Field>();
    } else {
      TORCH_CHECK((std::is_same_v<Field, at::Tensor>), "an optimizer's archive has no \"", name,
                  "\"");
    }
  });
}

/// What goes to archives by the list of its fields.
template <typename Derived, typename Base>
struct ArchivedByFields : Base {
  void serialize(torch::serialize::InputArchive& archive) override {
    read_fields(archive, static_cast<Derived&>(*this));
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    write_fields(archive, static_cast<const Derived&>(*this));
  }
};

template <typename Derived>
struct OptionsOf : ArchivedByFields<Derived, torch::optim::OptimizerCloneableOptions<Derived>> {
  double get_lr() const override { return static_cast<const Derived&>(*this).lr(); }
  void set_lr(const double lr) override { static_cast<Derived&>(*this).lr(lr); }
};

/// With betas, of which schedules may cycle the first one.
template <typename Derived>
struct BetasOptionsOf : OptionsOf<Derived>, optim::HasBetas {
  const Betas& betas_value() const override { return static_cast<const Derived&>(*this).betas(); }
  void set_betas_value(const Betas& betas) override { static_cast<Derived&>(*this).betas(betas); }
};

template <typename Derived>
using ParamStateOf = ArchivedByFields<Derived, torch::optim::OptimizerCloneableParamState<Derived>>;

/// The optimizer's last groups get the options that `groups`, of which they were made, have.
/// LibTorch 2.6 leaves it at that; 2.15 merges them with the defaults: for its own types, a value
/// that a new object has too counts as not given, and for a type that it does not know the defaults
/// are taken.
inline void restore_options(torch::optim::Optimizer& optimizer,
                            std::span<const torch::optim::OptimizerParamGroup> groups) {
  size_t index = optimizer.param_groups().size() - groups.size();
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    torch::optim::OptimizerParamGroup& made = optimizer.param_groups()[index++];
    if (group.has_options()) made.set_options(group.options().clone());
  }
}

/// The base of an optimizer whose Options and State list their fields. `Options::check()` throws
/// c10::ValueError for options that make no sense.
template <typename Options, typename State, typename Base = torch::optim::Optimizer>
class OptimizerOf : public Base {
 public:
  explicit OptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                       Options defaults = {})
      : Base(param_groups, std::make_unique<Options>(defaults)) {
    defaults.check();
    restore_options(*this, param_groups);
  }
  explicit OptimizerOf(std::vector<at::Tensor> parameters, Options defaults = {})
      : OptimizerOf({torch::optim::OptimizerParamGroup(std::move(parameters))},
                    std::move(defaults)) {}

  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    Base::add_param_group(group);
    restore_options(*this, {&group, 1});
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
};

/// The parameter's state, which is made where there is none.
template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// The checks of LibTorch's optimizers. Errors: c10::ValueError.
inline void check_rates(double lr, const std::tuple<double, double>& betas, double weight_decay) {
  TORCH_CHECK_VALUE(lr >= 0, "Invalid learning rate: ", lr);
  const auto [beta1, beta2] = betas;
  TORCH_CHECK_VALUE(0 <= beta1 && beta1 < 1, "Invalid beta parameter at index 0: ", beta1);
  TORCH_CHECK_VALUE(0 <= beta2 && beta2 < 1, "Invalid beta parameter at index 1: ", beta2);
  TORCH_CHECK_VALUE(weight_decay >= 0, "Invalid weight_decay value: ", weight_decay);
}

}  // namespace accelerate::internal
