#include "accelerate/state/gradient_state.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"
#include "accelerate/base/json_text.h"
#include "accelerate/values/fields.h"

namespace accelerate {

GradientState::~GradientState() {
  for (LoaderScope* loader : loaders_) loader->state_ = nullptr;
}

void GradientState::set_plugin(const GradientAccumulationPlugin& plugin) {
  TORCH_CHECK_VALUE(plugin.num_steps.value_or(1) >= 1,
                    "gradient accumulation: num_steps must be at least 1, got ", *plugin.num_steps);
  plugin_ = plugin;
}

void GradientState::request_plugin(const GradientAccumulationPlugin& plugin) {
  if (!requested_plugin_) {
    set_plugin(plugin);
    requested_plugin_ = plugin;
  }
  TORCH_CHECK_VALUE(plugin == *requested_plugin_ || plugin == plugin_,
                    "gradient accumulation with ", json_text(to_kwargs(plugin)),
                    " contradicts an earlier Accelerator on this Runtime, which set ",
                    json_text(to_kwargs(plugin_)));
}

void GradientState::begin_micro_step() {
  if (sync_gradients_) window_ = {};
  ++window_.steps;
  // Where ranks run different numbers of steps, all of them synchronise at the same ones.
  const bool end = joining_ && round() != nullptr ? round()->last : end_of_dataloader();
  if (end && sync_with_dataloader()) {
    step_ = 0;
    sync_gradients_ = true;
  } else {
    ++step_;
    sync_gradients_ = step_ % num_steps() == 0;
  }
}

void GradientState::set_joining(bool joining) {
  joining_ = joining;
  if (!joining) step_ = 0;
}

void GradientState::restart() {
  step_ = 0;
  window_ = {};
  sync_gradients_ = true;
}

void GradientState::reset() {
  restart();
  plugin_ = {};
  requested_plugin_.reset();
  is_xla_gradients_synced_ = false;
  joining_ = false;
}

nlohmann::ordered_json GradientState::plugin_kwargs() const { return to_kwargs(plugin_); }

void GradientState::set_num_steps(int64_t num_steps) {
  GradientAccumulationPlugin plugin = plugin_;
  plugin.num_steps = num_steps;
  set_plugin(plugin);
}

bool GradientState::end_of_dataloader() const {
  return !loaders_.empty() && loaders_.back()->end_of_dataloader_;
}

int64_t GradientState::remainder() const {
  return loaders_.empty() ? kUnknownRemainder : loaders_.back()->remainder_;
}

const BatchRound* GradientState::round() const {
  return loaders_.empty() ? nullptr : &loaders_.back()->round_;
}

GradientState::LoaderScope::LoaderScope(GradientState& state, int64_t remainder)
    : state_(&state), remainder_(remainder) {
  state.loaders_.push_back(this);
}

GradientState::LoaderScope::~LoaderScope() {
  if (state_ == nullptr) return;
  std::vector<LoaderScope*>& loaders = state_->loaders_;
  auto found = std::find(loaders.begin(), loaders.end(), this);
  ABSL_CHECK(found != loaders.end());
  loaders.erase(found);
}

}  // namespace accelerate
