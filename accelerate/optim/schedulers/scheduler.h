/// The base of this library's learning-rate schedulers: LibTorch's LRScheduler with PyTorch's
/// counters and state.
///
/// They can be used as torch::optim::LRScheduler; `step()` is LibTorch's. Construction
/// makes the initial step, as PyTorch's does: afterwards last_epoch is 0, step_count is 1, and the
/// optimizer has the schedule's first rates. The rates that it had before are the base rates.
/// Most kinds compute a rate from the group's present one, so several schedulers can drive one
/// optimizer, and rates set by hand stay. A group added later keeps its own rate if the schedule
/// uses base rates.
/// Errors:  c10::ValueError for bad arguments and states; a scheduler whose step throws has not
///          moved.
/// Threads: the rank's thread.
/// Mirrors: torch.optim.lr_scheduler, LRScheduler.
/// Differs: no `last_epoch` argument: construct, then load_state_dict. A second scheduler on an
///          optimizer takes the present rates for base rates (there are no `initial_lr`);
///          SequentialLR and ChainedScheduler give all of theirs the same ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <nlohmann/json_fwd.hpp>

namespace accelerate::optim {

class StateArchive;

/// Gives the first groups these rates. \pre There are as many.
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);
/// Each rate times a factor.
std::vector<double> times(std::vector<double> rates, double factor);

/// A scheduler's counter of steps, and the present rates of the groups that it drives, also for
/// LibTorch's own schedulers. LibTorch shows them to derived classes only.
unsigned& step_count_of(torch::optim::LRScheduler& scheduler);
std::vector<double> rates_of(const torch::optim::LRScheduler& scheduler);

class Scheduler : public torch::optim::LRScheduler {
 public:
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  torch::optim::Optimizer& optimizer() const { return *driven_; }

  /// How often step() was called; -1 in a SequentialLR where its turn is still to come.
  int64_t last_epoch() const { return last_epoch_; }
  /// The same with the initial step: PyTorch's `_step_count`.
  int64_t step_count() const { return step_count_; }
  /// The limit of its steps; absent: none.
  virtual std::optional<int64_t> total_steps() const { return std::nullopt; }
  /// The step at which the schedule ends and training should be over, because the rate has decayed
  /// for good or rises again. Absent if training should continue, as after a warm-up.
  virtual std::optional<int64_t> end() const { return total_steps(); }

  const std::vector<double>& base_lrs() const { return base_lrs_; }
  /// The groups' rates after the last step.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  /// Arguments (without functions) and counters by PyTorch's names.
  nlohmann::ordered_json state_dict() const;
  /// Continues from a saved state, arguments included, as in PyTorch. The optimizer's rates stay,
  /// as they are the optimizer's state. An invalid state changes nothing.
  void load_state_dict(const nlohmann::ordered_json& state);

 protected:
  explicit Scheduler(torch::optim::Optimizer& optimizer);

  /// The initial step; the last line of a kind's constructor.
  void start();

  /// The rates at `epoch`, one per group (groups beyond them keep theirs), from those of the epoch
  /// before, which the groups have, or from base_lrs().
  virtual std::vector<double> rates_at(int64_t epoch) = 0;
  /// Whether rates_at() starts from base_lrs() when SequentialLR switches to this scheduler.
  virtual bool begins_from_base() const { return true; }
  /// Lists the arguments.
  virtual void archive(StateArchive& state) = 0;
  /// Throws for arguments that make no sense together.
  virtual void check() const {}

  void set_base_lrs(std::vector<double> base_lrs) { base_lrs_ = std::move(base_lrs); }

 private:
  friend class Combined;  // drives others

  // A step to epoch 0.
  void step_to_epoch_0();
  std::vector<double> get_lrs() final;
  void archive_all(StateArchive& state);

  torch::optim::Optimizer* driven_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
  int64_t last_epoch_ = -1;
};

/// An argument that is one number for all parameter groups, or a list of one number for each group:
/// `.max_lr = 0.1` or `.max_lr = {0.1, 0.2}`.
/// Errors: c10::ValueError if the list's length differs from the number of groups.
class PerGroup {
 public:
  PerGroup(double value) : values_{value} {}
  PerGroup(std::initializer_list<double> values) : PerGroup(std::vector(values)) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)), is_list_(true) {}

  std::vector<double> expanded(const char* name, size_t groups) const {
    if (!is_list_) return std::vector<double>(groups, values_[0]);
    TORCH_CHECK_VALUE(values_.size() == groups, name, ": expected one number or ", groups,
                      ", one for each parameter group, got ", values_.size());
    return values_;
  }
  /// As they were given.
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  bool is_list_ = false;
};

}  // namespace accelerate::optim
