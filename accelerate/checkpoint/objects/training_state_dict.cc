#include "accelerate/checkpoint/objects/training_state_dict.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/values/json_field.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;

constexpr char kWhere[] = "the state of training";

// In both directions.
template <typename Window, typename Fn>
void for_each_field(Window& window, Fn&& fn) {
  fn("steps", window.steps);
  fn("rescaled", window.rescaled);
  fn("divides_by_steps", window.divides_by_steps);
  fn("divides_by_tokens", window.divides_by_tokens);
  fn("tokens", window.tokens);
  fn("token_unit", window.token_unit);
  fn("tokens_are_summed", window.tokens_are_summed);
}

std::vector<std::shared_ptr<AcceleratedOptimizer::Shared>> optimizers_of(
    const TrainingState& training) {
  std::vector<std::shared_ptr<AcceleratedOptimizer::Shared>> alive;
  for (const auto& known : training.optimizers) {
    if (auto optimizer = known.lock()) alive.push_back(std::move(optimizer));
  }
  return alive;
}

AccumulationWindow window_of(const ordered_json& values, const TrainingState& training) {
  const std::string where = "the window in " + std::string(kWhere);
  AccumulationWindow window;
  for_each_field(window, [&](const char* name, auto& field) {
    read_field(values, name, where, field);
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, int64_t>) {
      TORCH_CHECK_VALUE(field >= 0, where, ": \"", name, "\" is ", field);
    }
  });
  for (const int64_t place : field_of<std::vector<int64_t>>(values, "models", where)) {
    TORCH_CHECK_VALUE(place >= 0, where, " has model ", place);
    if (place >= static_cast<int64_t>(training.models.size())) continue;
    window.models.push_back(training.models[static_cast<size_t>(place)]->module().get());
  }
  return window;
}

}  // namespace

StateDict training_state_dict(const TrainingState& training, const GradientState& gradients) {
  TORCH_CHECK_VALUE(!gradients.joining(),
                    "training cannot be saved inside join_uneven_inputs: nobody could go on there");
  std::vector<int64_t> models;
  for (const torch::nn::Module* module : gradients.window().models) {
    const auto found =
        std::find_if(training.models.begin(), training.models.end(),
                     [module](const auto& known) { return known->module().get() == module; });
    if (found != training.models.end()) models.push_back(found - training.models.begin());
  }
  ordered_json window;
  for_each_field(gradients.window(),
                 [&window](const char* name, const auto& field) { window[name] = field; });
  window["models"] = models;
  auto optimizers = ordered_json::array();
  for (const auto& optimizer : optimizers_of(training)) {
    optimizers.push_back({{"step_was_skipped", optimizer->step_was_skipped},
                          {"are_averaged", optimizer->are_averaged}});
  }
  StateDict state;
  state.values = {{"step", gradients.step()},
                  {"sync_gradients", gradients.sync_gradients()},
                  {"is_xla_gradients_synced", gradients.is_xla_gradients_synced()},
                  {"window", std::move(window)},
                  {"optimizers", std::move(optimizers)}};
  return state;
}

void load_training_state_dict(TrainingState& training, GradientState& gradients,
                              const StateDict& state) {
  const ordered_json& values = state.values;
  const auto step = field_of<int64_t>(values, "step", kWhere);
  TORCH_CHECK_VALUE(step >= 0, kWhere, ": \"step\" is ", step);
  const auto sync = field_of<bool>(values, "sync_gradients", kWhere);
  const auto xla_synced = field_of<bool>(values, "is_xla_gradients_synced", kWhere);
  const ordered_json saved_window = json_member(values, "window", kWhere);
  AccumulationWindow window = window_of(saved_window, training);
  const ordered_json saved = json_member(values, "optimizers", kWhere);
  const auto optimizers = optimizers_of(training);
  TORCH_CHECK_VALUE(saved.is_array() && saved.size() >= optimizers.size(), kWhere, " is of ",
                    saved.size(), " optimizers, prepared were ", optimizers.size());
  std::vector<std::pair<bool, bool>> flags;
  for (const ordered_json& optimizer : saved) {
    flags.emplace_back(field_of<bool>(optimizer, "step_was_skipped", kWhere),
                       field_of<bool>(optimizer, "are_averaged", kWhere));
  }
  gradients.set_step(step);
  gradients.window() = std::move(window);
  gradients.set_sync_gradients(sync);
  gradients.set_is_xla_gradients_synced(xla_synced);
  for (size_t i = 0; i < optimizers.size(); ++i) {
    std::tie(optimizers[i]->step_was_skipped, optimizers[i]->are_averaged) = flags[i];
  }
}

}  // namespace accelerate::internal
