#include "accelerate/checkpoint/objects/scheduler_state_dict.h"

#include <cstdint>
#include <limits>
#include <string>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/optim/schedulers/scheduler.h"
#include "accelerate/values/json_field.h"
#include "accelerate/values/spelled_numbers.h"

namespace accelerate {
namespace {

constexpr char kOurs[] = "accelerate";
constexpr char kStepCount[] = "_step_count";

std::string type_of(const AcceleratedScheduler::Shared& scheduler) {
  const torch::optim::LRScheduler& object = *scheduler.scheduler;
  const std::string type = c10::demangle(typeid(object).name());
  const std::string prefix = "accelerate::optim::";
  return type.starts_with(prefix) ? type.substr(prefix.size()) : type;
}

// LibTorch's counter, which only derived classes may touch.
struct StepCount : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&StepCount::step_count_);
  }
};

}  // namespace

StateDict scheduler_state_dict(const AcceleratedScheduler::Shared& scheduler) {
  StateDict state;
  if (scheduler.ours != nullptr) {
    state.values = internal::spell_numbers(scheduler.ours->state_dict());
  } else {
    state.values[kStepCount] = StepCount::of(*scheduler.scheduler);
  }
  state.values[kOurs] = {{"type", type_of(scheduler)},
                         {"steps", scheduler.steps},
                         {"asked_steps", scheduler.asked_steps}};
  return state;
}

void load_scheduler_state_dict(AcceleratedScheduler::Shared& scheduler, const StateDict& state) {
  using internal::field_of;
  const std::string type = type_of(scheduler);
  const std::string where = absl::StrCat("the state of a scheduler of type ", type);
  TORCH_CHECK_VALUE(state.tensors.empty(), where, " has tensors, as \"",
                    state.tensors.front().first, "\"");
  nlohmann::ordered_json values = internal::read_numbers(state.values);
  const nlohmann::ordered_json ours = internal::json_member(values, kOurs, where);
  const auto saved_type = field_of<std::string>(ours, "type", where);
  TORCH_CHECK_VALUE(saved_type == type, "the state is of a scheduler of type ", saved_type,
                    ", this one is of type ", type);
  const auto steps = field_of<int64_t>(ours, "steps", where);
  const auto asked_steps = field_of<int64_t>(ours, "asked_steps", where);
  TORCH_CHECK_VALUE(0 <= steps && steps <= asked_steps, where, ": \"steps\" is ", steps,
                    " and \"asked_steps\" ", asked_steps);
  if (scheduler.ours != nullptr) {
    values.erase(kOurs);
    scheduler.ours->load_state_dict(values);
  } else {
    const auto count = field_of<int64_t>(values, kStepCount, where);
    TORCH_CHECK_VALUE(0 <= count && count <= std::numeric_limits<unsigned>::max(), where, ": \"",
                      kStepCount, "\" is ", count);
    StepCount::of(*scheduler.scheduler) = static_cast<unsigned>(count);
  }
  scheduler.steps = steps;
  scheduler.asked_steps = asked_steps;
}

}  // namespace accelerate
