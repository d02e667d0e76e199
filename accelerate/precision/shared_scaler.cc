#include "accelerate/precision/shared_scaler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

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

struct SharedScaler::User::Entry {
  torch::optim::Optimizer* optimizer;
  bool is_unscaled = false;  // the gradients
  int steps = 0;             // since the last update
};

SharedScaler::User::User(std::shared_ptr<SharedScaler> shared, torch::optim::Optimizer& optimizer)
    : shared_(std::move(shared)) {
  if (!shared_) return;
  entry_ = std::make_unique<Entry>(Entry{.optimizer = &optimizer});
  shared_->users_.push_back(entry_.get());
}

SharedScaler::User::User() = default;

SharedScaler::User::User(User&& other) noexcept = default;

SharedScaler::User& SharedScaler::User::operator=(User&& other) noexcept {
  std::swap(shared_, other.shared_);
  std::swap(entry_, other.entry_);
  return *this;
}

SharedScaler::User::~User() {
  if (!shared_) return;
  std::erase(shared_->users_, entry_.get());
  // Another optimizer may be created at the same address.
  shared_->scaler_.renew(*entry_->optimizer);
}

void SharedScaler::User::unscale() {
  if (shared_->scaler_.is_unscaled(*entry_->optimizer)) return;
  shared_->scaler_.unscale_(*entry_->optimizer);
  entry_->is_unscaled = true;
}

bool SharedScaler::User::step() {
  const bool done = shared_->scaler_.step(*entry_->optimizer);
  entry_->is_unscaled = true;
  ++entry_->steps;
  const auto& users = shared_->users_;
  if (std::all_of(users.begin(), users.end(), [](const Entry* user) { return user->steps > 0; })) {
    shared_->update();
  }
  return done;
}

void SharedScaler::User::forget_gradients() { entry_->is_unscaled = false; }

void SharedScaler::update() {
  scaler_.update();
  for (User::Entry* user : users_) user->steps = 0;
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
                        internal::json_excerpt(flag));
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
  const bool is_over = std::any_of(users_.begin(), users_.end(),
                                   [](const User::Entry* user) { return user->steps > 1; });
  double growth = 1;
  if (is_over) {
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
