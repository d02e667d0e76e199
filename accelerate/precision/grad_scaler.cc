#include "accelerate/precision/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/objects.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

void check_scaling(const LossScaling& scaling, double scale) {
  TORCH_CHECK_VALUE(scaling.hysteresis >= 1, "GradScaler: hysteresis must be at least 1, got ",
                    scaling.hysteresis);
  TORCH_CHECK_VALUE(scaling.is_static || (scaling.min_scale > 0 && scaling.min_scale <= scale),
                    "GradScaler: min_scale must be more than 0 and at most the scale, which is ",
                    scale, ", got ", scaling.min_scale);
}

int rank_in_job(const ProcessGroupPtr& group) {
  if (const Runtime* runtime = Runtime::find_current()) return runtime->topology().rank;
  return rank_of(group);
}

at::TensorOptions scalar_on(c10::Device device, at::ScalarType dtype) {
  return at::TensorOptions(device).dtype(dtype);
}

// Either may be undefined.
at::Tensor larger(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return at::maximum(a, b.to(a.device()));
}

template <typename T>
T field(const nlohmann::ordered_json& state_dict, const char* name) {
  const auto found = state_dict.find(name);
  TORCH_CHECK_VALUE(found != state_dict.end() && found->is_number(),
                    "GradScaler: the state has no ", name);
  return found->get<T>();
}

constexpr char kOurs[] = "accelerate";

void multiply_gradients(const torch::optim::Optimizer& optimizer, double factor) {
  at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined() || !seen.insert(gradient.unsafeGetTensorImpl()).second) continue;
      gradient.mul_(factor);
    }
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerKwargs& options, ProcessGroupPtr group,
                       const std::optional<LossScaling>& scaling)
    : options_(options),
      group_(std::move(group)),
      scaling_(scaling),
      initial_scale_(options.init_scale) {
  if (options.enabled) check(options);
  if (!scaling_) return;
  if (options.enabled) check_scaling(*scaling_, options.init_scale);
  hysteresis_left_ = scaling_->hysteresis;
  initial_growth_tracker_ = -1;
}

void GradScaler::check(const GradScalerKwargs& options) {
  TORCH_CHECK_VALUE(options.init_scale > 0, "GradScaler: the scale must be more than 0, got ",
                    options.init_scale);
  TORCH_CHECK_VALUE(options.growth_factor > 1,
                    "GradScaler: growth_factor must be more than 1, got ", options.growth_factor);
  TORCH_CHECK_VALUE(options.backoff_factor > 0 && options.backoff_factor < 1,
                    "GradScaler: backoff_factor must be between 0 and 1, got ",
                    options.backoff_factor);
  TORCH_CHECK_VALUE(options.growth_interval > 0,
                    "GradScaler: growth_interval must be more than 0, got ",
                    options.growth_interval);
}

void GradScaler::make_scale_on(c10::Device device) {
  if (scale_.defined()) return;
  scale_ = at::full({}, initial_scale_, scalar_on(device, at::kFloat));
  growth_tracker_ = at::full({}, initial_growth_tracker_, scalar_on(device, at::kInt));
}

at::Tensor GradScaler::scale_tensor(const at::Tensor& output) {
  make_scale_on(output.device());
  return at::mul(output, scale_.to(output.device()));
}

at::Tensor GradScaler::unscale_gradients(const torch::optim::Optimizer& optimizer) {
  // By device and dtype, so that the order is the same on all ranks.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>>
      gradients;
  const auto& groups = optimizer.param_groups();
  std::unordered_set<const at::TensorImpl*> seen;  // tied parameters come several times
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<at::Tensor>& parameters = groups[i].params();
    for (size_t j = 0; j < parameters.size(); ++j) {
      if (!parameters[j].grad().defined()) continue;
      // Multi-tensor operators do not write to views with flags, as the gradient of conj() is.
      at::Tensor gradient = internal::without_flags(parameters[j].grad());
      parameters[j].mutable_grad() = gradient;
      if (!seen.insert(gradient.unsafeGetTensorImpl()).second) continue;
      TORCH_CHECK_VALUE(gradient.scalar_type() != at::kHalf,
                        "GradScaler: the gradient of parameter ", j, " of parameter group ", i,
                        " (shape ", gradient.sizes(),
                        ") is fp16, so unscaling it would lose digits. Keep the model's parameters "
                        "in float32 and let mixed_precision=\"fp16\" do the casting");
      if (gradient.is_sparse()) gradient = gradient._values();
      gradient = internal::as_real(gradient);
      gradients[{gradient.device().type(), gradient.device().index(), gradient.scalar_type()}]
          .push_back(std::move(gradient));
    }
  }
  if (gradients.empty()) return {};
  at::NoGradGuard no_grad;
  make_scale_on(gradients.begin()->second.front().device());
  const at::Tensor inverse = at::reciprocal(scale_.to(at::kDouble)).to(at::kFloat);
  at::Tensor found_inf;
  for (auto& [place, tensors] : gradients) {
    const c10::Device device = tensors.front().device();
    at::Tensor found = at::zeros({}, scalar_on(device, at::kFloat));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, inverse.to(device));
    found_inf = larger(found_inf, found.to(scale_.device()));
  }
  return found_inf;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  const auto known = optimizers_.find(&optimizer);
  TORCH_CHECK_VALUE(known == optimizers_.end(),
                    known == optimizers_.end() || known->second.stage == Stage::kUnscaled
                        ? "GradScaler: unscale_() was called for this optimizer already since the "
                          "last update()"
                        : "GradScaler: unscale_() is called after step()");
  at::Tensor found_inf = unscale_gradients(optimizer);
  if (group_ != nullptr && group_->getSize() > 1) {
    // A rank without gradients takes part in the collective as well.
    if (!found_inf.defined()) {
      TORCH_CHECK_VALUE(scale_.defined(),
                        "GradScaler: unscale_() before anything was scaled: none of the "
                        "optimizer's parameters has a gradient; was backward() called?");
      found_inf = at::zeros({}, scale_.options());
    }
    found_inf = reduce_tensor(group_, found_inf.reshape({1}), Reduction::kMax).reshape({});
  }
  optimizers_[&optimizer] = {.stage = Stage::kUnscaled, .found_inf = std::move(found_inf)};
}

bool GradScaler::is_unscaled(const torch::optim::Optimizer& optimizer) const {
  return optimizers_.contains(&optimizer);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(optimizer, [&optimizer] { optimizer.step(); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void()>& update) {
  if (!is_enabled()) {
    update();
    return true;
  }
  if (!is_unscaled(optimizer)) unscale_(optimizer);
  OptimizerState& state = optimizers_.at(&optimizer);
  TORCH_CHECK_VALUE(state.stage != Stage::kStepped,
                    "GradScaler: step() was called for this optimizer already since the last "
                    "update()");
  TORCH_CHECK_VALUE(state.found_inf.defined(),
                    "GradScaler: none of the optimizer's parameters has a gradient; was backward() "
                    "called, and for a loss that depends on them?");
  state.stage = Stage::kStepped;
  if (state.found_inf.item<float>() != 0) return false;
  update();
  return true;
}

void GradScaler::renew(const torch::optim::Optimizer& optimizer) {
  const auto known = optimizers_.find(&optimizer);
  if (known == optimizers_.end()) return;
  found_inf_ = larger(found_inf_, known->second.found_inf);
  optimizers_.erase(known);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!is_enabled()) return;
  at::NoGradGuard no_grad;
  if (new_scale) {
    TORCH_CHECK_VALUE(*new_scale > 0, "GradScaler: the scale must be more than 0, got ",
                      *new_scale);
    initial_scale_ = *new_scale;
    if (scale_.defined()) scale_.fill_(*new_scale);
  } else {
    const at::Tensor found_inf = all_found_inf();
    TORCH_CHECK_VALUE(found_inf.defined(),
                      "GradScaler: update() before an optimizer with gradients was unscaled or "
                      "stepped");
    make_scale_on(found_inf.device());
    if (scaling_) {
      // An error leaves the next iteration as any other.
      set_found_inf(std::nullopt);
      adapt_as_deepspeed(found_inf);
    } else {
      at::_amp_update_scale_(scale_, growth_tracker_, found_inf.to(scale_.device()),
                             options_.growth_factor, options_.backoff_factor,
                             options_.growth_interval);
    }
  }
  set_found_inf(std::nullopt);
}

void GradScaler::adapt_as_deepspeed(const at::Tensor& found_inf) {
  ++updates_;
  if (scaling_->is_static) return;
  double scale = get_scale();
  int64_t tracker = get_growth_tracker();
  if (found_inf.item<float>() != 0) {
    tracker = -1;
    if (hysteresis_left_ > 1) {
      --hysteresis_left_;
    } else {
      TORCH_CHECK(scale > scaling_->min_scale, "GradScaler: rank ", rank_in_job(group_), ", step ",
                  updates_,
                  ": gradients are infinite or NaN, and the scale of the loss is at its "
                  "minimum of ",
                  scaling_->min_scale,
                  " already. Train in bf16, or find out what makes the gradients so large");
      scale = std::max(scale * options_.backoff_factor, scaling_->min_scale);
    }
  } else {
    const bool grows = ++tracker >= options_.growth_interval;
    if (grows || scaling_->consecutive_hysteresis) hysteresis_left_ = scaling_->hysteresis;
    if (grows) {
      tracker = 0;
      const double grown = scale * options_.growth_factor;
      if (std::isfinite(static_cast<float>(grown))) scale = grown;
    }
  }
  scale_.fill_(scale);
  growth_tracker_.fill_(tracker);
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return scale_.defined() ? scale_.item<float>() : initial_scale_;
}

int64_t GradScaler::get_growth_tracker() const {
  return growth_tracker_.defined() ? growth_tracker_.item<int>() : initial_growth_tracker_;
}

nlohmann::ordered_json GradScaler::state_dict() const {
  if (!is_enabled()) return nlohmann::ordered_json::object();
  nlohmann::ordered_json state = {{"scale", get_scale()},
                                  {"growth_factor", options_.growth_factor},
                                  {"backoff_factor", options_.backoff_factor},
                                  {"growth_interval", options_.growth_interval},
                                  {"_growth_tracker", get_growth_tracker()}};
  if (!scaling_) return state;
  state["hysteresis"] = scaling_->hysteresis;
  state["consecutive_hysteresis"] = scaling_->consecutive_hysteresis;
  state["min_scale"] = scaling_->min_scale;
  state["cur_hysteresis"] = hysteresis_left_;
  state["cur_iter"] = updates_;
  return state;
}

void GradScaler::load_state_dict(const nlohmann::ordered_json& state_dict) {
  if (!is_enabled()) return;
  GradScalerKwargs options = options_;
  options.init_scale = field<double>(state_dict, "scale");
  options.growth_factor = field<double>(state_dict, "growth_factor");
  options.backoff_factor = field<double>(state_dict, "backoff_factor");
  options.growth_interval = field<int64_t>(state_dict, "growth_interval");
  const auto growth_tracker = field<int64_t>(state_dict, "_growth_tracker");
  check(options);
  TORCH_CHECK_VALUE(growth_tracker >= -1, "GradScaler: _growth_tracker is ", growth_tracker);
  if (scaling_) {
    LossScaling scaling = *scaling_;
    int64_t left = scaling.hysteresis, updates = updates_;
    if (scaling.is_static) options.init_scale = get_scale();
    if (state_dict.contains("cur_hysteresis")) {
      internal::read_field(state_dict, "consecutive_hysteresis", "GradScaler: the state",
                           scaling.consecutive_hysteresis);
      scaling.hysteresis = field<int64_t>(state_dict, "hysteresis");
      scaling.min_scale = field<double>(state_dict, "min_scale");
      left = field<int64_t>(state_dict, "cur_hysteresis");
      updates = field<int64_t>(state_dict, "cur_iter");
    }
    check_scaling(scaling, options.init_scale);
    TORCH_CHECK_VALUE(1 <= left && left <= scaling.hysteresis && updates >= 0,
                      "GradScaler: cur_hysteresis is ", left, ", cur_iter is ", updates);
    scaling_ = scaling;
    hysteresis_left_ = left;
    updates_ = updates;
  }
  options_ = options;
  initial_scale_ = options.init_scale;
  initial_growth_tracker_ = growth_tracker;
  scale_.reset();
  growth_tracker_.reset();
  set_found_inf(std::nullopt);
}

at::Tensor GradScaler::all_found_inf() const {
  at::Tensor found_inf = found_inf_;
  for (const auto& [optimizer, state] : optimizers_) {
    found_inf = larger(found_inf, state.found_inf);
  }
  return found_inf;
}

std::optional<double> GradScaler::found_inf() const {
  const at::Tensor found_inf = all_found_inf();
  if (!found_inf.defined()) return std::nullopt;
  return found_inf.item<double>();
}

void GradScaler::set_found_inf(std::optional<double> found_inf) {
  optimizers_.clear();
  found_inf_.reset();
  if (found_inf) {
    const c10::Device device = scale_.defined() ? scale_.device() : c10::Device(c10::kCPU);
    found_inf_ = at::full({}, *found_inf, scalar_on(device, at::kFloat));
  }
}

void GradScaler::broadcast_state(int source) {
  if (!is_enabled() || group_ == nullptr) return;
  const std::string state =
      broadcast_bytes(group_, internal::exact_json_text(state_dict()), source);
  load_state_dict(internal::parse_ordered_json(state));
}

GradScaler get_grad_scaler(std::optional<DistributedType> distributed_type,
                           const GradScalerKwargs& options, ProcessGroupPtr group) {
  TORCH_CHECK_VALUE(distributed_type != DistributedType::kDeepSpeed &&
                        distributed_type != DistributedType::kMegatronLm,
                    "get_grad_scaler: ", to_string(*distributed_type), " scales by itself");
  return GradScaler(options, std::move(group));
}

std::optional<GradScaler> zero_grad_scaler(const ZeroConfig& zero, ProcessGroupPtr group) {
  const ZeroFp16& fp16 = zero.fp16;
  if (!fp16.enabled) {
    if (!zero.bf16.enabled || !zero.bf16.check_grad_overflow) return std::nullopt;
    return GradScaler({.init_scale = 1}, std::move(group), LossScaling{.is_static = true});
  }
  const bool is_static = fp16.loss_scale != 0;
  const double scale =
      is_static ? fp16.loss_scale : std::pow(2.0, static_cast<double>(fp16.initial_scale_power));
  return GradScaler({.init_scale = scale, .growth_interval = fp16.loss_scale_window},
                    std::move(group),
                    LossScaling{.is_static = is_static,
                                .hysteresis = fp16.hysteresis,
                                .consecutive_hysteresis = fp16.consecutive_hysteresis,
                                .min_scale = fp16.min_loss_scale});
}

SharedScaler::User::User(std::shared_ptr<SharedScaler> shared, torch::optim::Optimizer& optimizer) {
  if (!shared) return;
  entry_.reset(new Entry{.shared = std::move(shared), .optimizer = &optimizer});
  entry_->shared->users_.push_back(entry_.get());
}

SharedScaler::User::Entry::~Entry() {
  std::erase(shared->users_, this);
  // Another optimizer may be created at the same address.
  shared->scaler_.renew(*optimizer);
}

void SharedScaler::User::unscale() {
  GradScaler& scaler = entry_->shared->scaler_;
  if (scaler.is_unscaled(*entry_->optimizer)) return;
  scaler.unscale_(*entry_->optimizer);
  entry_->is_unscaled = true;
}

bool SharedScaler::User::step(const std::function<void()>& update) {
  SharedScaler& shared = *entry_->shared;
  const bool done = shared.scaler_.step(*entry_->optimizer, update);
  entry_->is_unscaled = true;
  ++entry_->steps;
  const auto has_stepped = [](const Entry* user) { return user->steps > 0; };
  if (std::ranges::all_of(shared.users_, has_stepped)) shared.update();
  return done;
}

void SharedScaler::User::clear_unscaled() { entry_->is_unscaled = false; }

void SharedScaler::update() {
  std::vector<at::Tensor> waiting;
  for (const User::Entry* user : users_) {
    for (const at::Tensor& parameter : user->waiting) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined() && !is_absent(gradient)) waiting.push_back(gradient);
    }
  }
  const double before = waiting.empty() ? 1 : scaler_.get_scale();
  for (User::Entry* user : users_) user->steps = 0;
  scaler_.update();
  if (waiting.empty()) return;
  at::NoGradGuard no_grad;
  const double growth = scaler_.get_scale() / before;
  for (at::Tensor& gradient : waiting) gradient.mul_(growth);
}

nlohmann::ordered_json SharedScaler::state_dict() const {
  nlohmann::ordered_json state = scaler_.state_dict();
  if (!scaler_.is_enabled()) return state;
  std::vector<int64_t> steps;
  std::vector<bool> is_unscaled;
  for (const User::Entry* user : users_) {
    steps.push_back(user->steps);
    is_unscaled.push_back(user->is_unscaled);
  }
  const std::optional<double> found_inf = scaler_.found_inf();
  state[kOurs] = {{"steps", steps},
                  {"is_unscaled", is_unscaled},
                  {"found_inf", internal::to_json_value(found_inf)}};
  return state;
}

void SharedScaler::load_state_dict(const nlohmann::ordered_json& state) {
  if (!scaler_.is_enabled()) return;
  std::vector<int64_t> steps(users_.size(), 0), is_unscaled(users_.size(), 0);
  std::optional<double> found_inf;
  if (state.contains(kOurs)) {
    const std::string where = "the scaler's state";
    const nlohmann::ordered_json& ours = state.at(kOurs);
    internal::read_field(ours, "steps", where, steps);
    internal::read_field(ours, "found_inf", where, found_inf);
    std::vector<int64_t> flags;
    for (const auto& flag : internal::json_member(ours, "is_unscaled", where)) {
      TORCH_CHECK_VALUE(flag.is_boolean(), where, ": \"is_unscaled\" has an item ",
                        excerpt_of(flag));
      flags.push_back(flag.get<bool>() ? 1 : 0);
    }
    is_unscaled = std::move(flags);
    TORCH_CHECK_VALUE(steps.size() == users_.size() && is_unscaled.size() == users_.size(), where,
                      " has ", steps.size(), " optimizers, this job has ", users_.size());
    for (const int64_t count : steps) {
      TORCH_CHECK_VALUE(count >= 0 && count <= std::numeric_limits<int>::max(), where, " counts ",
                        count, " steps");
    }
  }
  scaler_.load_state_dict(state);
  scaler_.set_found_inf(found_inf);
  for (size_t i = 0; i < users_.size(); ++i) {
    users_[i]->steps = static_cast<int>(steps[i]);
    users_[i]->is_unscaled = is_unscaled[i] != 0;
  }
}

void SharedScaler::begin_backward() {
  if (!scaler_.is_enabled()) return;
  double growth = 1;
  if (std::ranges::any_of(users_, [](const User::Entry* user) { return user->steps > 1; })) {
    const double before = scaler_.get_scale();
    update();
    growth = scaler_.get_scale() / before;
  }
  for (User::Entry* user : users_) {
    if (user->is_unscaled) {
      multiply_gradients(*user->optimizer, scaler_.get_scale());
    } else if (growth != 1) {
      multiply_gradients(*user->optimizer, growth);
    }
    user->is_unscaled = false;
    scaler_.renew(*user->optimizer);
  }
}

}  // namespace accelerate
