#include "accelerate/optim/accelerated_scheduler.h"

#include <algorithm>
#include <limits>
#include <string>

#include <c10/util/Exception.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/objects.h"
#include "accelerate/optim/schedulers/plateau.h"
#include "accelerate/optim/schedulers/scheduler.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

constexpr char kStepCount[] = "_step_count";

}  // namespace

AcceleratedScheduler::AcceleratedScheduler(torch::optim::LRScheduler& scheduler,
                                           const GradientState& gradient_state,
                                           SchedulerPolicy policy,
                                           const std::vector<AcceleratedOptimizer>& optimizers)
    : shared_(std::make_shared<internal::SharedScheduler>(internal::SharedScheduler{
          .scheduler = &scheduler,
          .ours = dynamic_cast<optim::Scheduler*>(&scheduler),
          .plateau = dynamic_cast<optim::ReduceLROnPlateau*>(&scheduler)})),
      gradient_state_(&gradient_state),
      policy_(policy) {
  for (const AcceleratedOptimizer& optimizer : optimizers) {
    if (optimizer) shared_->add(internal::Access::to(optimizer));
  }
}

void internal::SharedScheduler::add(const std::shared_ptr<const SharedOptimizer>& optimizer) {
  // If the scheduler's own optimizer is prepared, the list has that optimizer alone.
  const bool drives = ours != nullptr && optimizer->optimizer.get() == &ours->optimizer();
  if (drives) optimizers.clear();
  if (drives || !knows_its_own) optimizers.push_back(optimizer);
  knows_its_own = knows_its_own || drives;
}

void AcceleratedScheduler::step(std::optional<double> metric) {
  TORCH_CHECK(shared_ != nullptr, "this prepared scheduler was freed");
  shared_->owner->schedule([&] { move(metric); });
}

void AcceleratedScheduler::move(std::optional<double> metric) {
  if (metric) {
    TORCH_CHECK_VALUE(shared_->plateau != nullptr,
                      "a metric is for a prepared ReduceLROnPlateau; this scheduler takes none");
    return shared_->plateau->step(*metric);
  }
  TORCH_CHECK_VALUE(shared_->plateau == nullptr,
                    "a prepared ReduceLROnPlateau is stepped with the metric that it goes by");
  if (!policy_.step_with_optimizer) return shared_->step();
  if (!gradient_state_->sync_gradients()) {
    if (!gradient_state_->adjust_scheduler()) return;
  } else if (shared_->follows_skipped_step()) {
    return;
  }
  const bool once = policy_.split_batches || policy_.unit == SchedulerUnit::kPerOptimizerStep;
  advance(once ? 1 : policy_.num_shares);
}

void AcceleratedScheduler::advance(int steps) {
  if (steps > 1) warn_if_over(steps);
  shared_->asked_steps += steps;
  const optim::Scheduler* ours = shared_->ours;
  const std::optional<int64_t> total = ours != nullptr ? ours->total_steps() : std::nullopt;
  for (int i = 0; i < steps; ++i) {
    if (total && ours->step_count() > *total) return;
    shared_->step();
  }
}

void AcceleratedScheduler::warn_if_over(int steps) {
  if (shared_->warned || shared_->ours == nullptr) return;
  const std::optional<int64_t> end = shared_->ours->end();
  // A padded last batch in each epoch makes training somewhat longer than a right schedule.
  if (!end || shared_->asked_steps < *end + (*end + 1) / 2) return;
  shared_->warned = true;
  if (!Runtime::is_on_first_rank()) return;
  TORCH_WARN("the learning-rate schedule was over after its ", *end, " steps, which ", steps,
             " data-parallel processes used up in ", (*end + steps - 1) / steps,
             " optimizer steps, and training goes on. A prepared scheduler advances once for each "
             "of them: make the schedule ",
             steps,
             " times longer, or have it count optimizer steps with "
             "SchedulerUnit::kPerOptimizerStep");
}

const internal::SharedScheduler& AcceleratedScheduler::alive() const {
  TORCH_CHECK(shared_ != nullptr, "this prepared scheduler was freed");
  return *shared_;
}

torch::optim::LRScheduler& AcceleratedScheduler::operator*() const { return *alive().scheduler; }

std::vector<double> AcceleratedScheduler::get_last_lr() const {
  return alive().ours != nullptr ? shared_->ours->get_last_lr() : get_lr();
}

std::vector<double> AcceleratedScheduler::get_lr() const {
  return optim::rates_of(*alive().scheduler);
}

void AcceleratedScheduler::print_lr(bool is_verbose, int64_t group, double lr,
                                    std::optional<int64_t> epoch) const {
  Runtime* runtime = Runtime::find_current();
  if (!is_verbose || runtime == nullptr || runtime->topology().local_rank != 0) return;
  const std::string what =
      absl::StrFormat("djusting learning rate of group %d to %.4e.", group, lr);
  runtime->write_console(
      ConsoleStream::kOut,
      epoch ? absl::StrFormat("Epoch %05d: a%s\n", *epoch, what) : absl::StrFormat("A%s\n", what));
}

nlohmann::ordered_json AcceleratedScheduler::state_dict() const { return alive().state_dict(); }

void AcceleratedScheduler::load_state_dict(const nlohmann::ordered_json& state) {
  alive();
  shared_->load_state_dict(state);
}

nlohmann::ordered_json internal::SharedScheduler::state_dict() const {
  if (ours != nullptr) return ours->state_dict();
  nlohmann::ordered_json state;
  state[kStepCount] = optim::step_count_of(*scheduler);
  return state;
}

void internal::SharedScheduler::load_state_dict(const nlohmann::ordered_json& state) {
  if (ours != nullptr) return ours->load_state_dict(state);
  const std::string where = "the state of one of LibTorch's schedulers";
  const auto count = internal::field_of<int64_t>(state, kStepCount, where);
  TORCH_CHECK_VALUE(0 <= count && count <= std::numeric_limits<unsigned>::max(), where, ": \"",
                    kStepCount, "\" is ", count);
  optim::step_count_of(*scheduler) = static_cast<unsigned>(count);
}

bool internal::SharedScheduler::follows_skipped_step() const {
  return std::ranges::any_of(optimizers, [](const auto& known) {
    const auto optimizer = known.lock();
    return optimizer != nullptr && optimizer->step_was_skipped;
  });
}

bool internal::SharedScheduler::follows(const SharedOptimizer& optimizer) const {
  return std::ranges::any_of(optimizers,
                             [&](const auto& known) { return known.lock().get() == &optimizer; });
}

void internal::SharedScheduler::step() {
  scheduler->step();
  ++steps;
}

void internal::SharedScheduler::synchronise(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            int source) {
  if (plateau != nullptr) {
    // Its steps cannot be made again without their metrics.
    const std::string state =
        broadcast_bytes(group, internal::exact_json_text(plateau->state_dict()), source);
    plateau->load_state_dict(internal::parse_ordered_json(state));
    return optim::set_rates(plateau->optimizer(), plateau->get_last_lr());
  }
  const int64_t target = std::stoll(broadcast_bytes(group, std::to_string(steps), source));
  while (steps < target) step();
}

}  // namespace accelerate
