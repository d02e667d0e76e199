#include "accelerate/optim/schedulers/scheduler.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

struct Inside : torch::optim::LRScheduler {
  using LRScheduler::get_current_lrs;
  using LRScheduler::step_count_;
};

}  // namespace

unsigned& step_count_of(torch::optim::LRScheduler& scheduler) {
  return scheduler.*(&Inside::step_count_);
}

std::vector<double> rates_of(const torch::optim::LRScheduler& scheduler) {
  return (scheduler.*(&Inside::get_current_lrs))();
}

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
}

std::vector<double> times(std::vector<double> rates, double factor) {
  for (double& rate : rates) rate *= factor;
  return rates;
}

Scheduler::Scheduler(torch::optim::Optimizer& optimizer)
    : LRScheduler(optimizer), driven_(&optimizer), base_lrs_(get_current_lrs()) {}

void Scheduler::start() {
  check();
  last_epoch_ = -1;
  step_count_ = 0;
  step();
}

void Scheduler::step_to_epoch_0() {
  if (begins_from_base()) set_rates(*driven_, base_lrs_);
  last_epoch_ = -1;
  step();
}

std::vector<double> Scheduler::get_lrs() {
  std::vector<double> rates = rates_at(last_epoch_ + 1);
  const auto& groups = driven_->param_groups();
  for (size_t i = rates.size(); i < groups.size(); ++i) {
    rates.push_back(groups[i].options().get_lr());
  }
  ++last_epoch_;
  last_lr_ = rates;
  return rates;
}

void Scheduler::archive_all(StateArchive& state) {
  archive(state);
  int64_t step_count = step_count_;
  state("base_lrs", base_lrs_);
  state("last_epoch", last_epoch_);
  state("_step_count", step_count);
  state("_last_lr", last_lr_);
  step_count_ = static_cast<unsigned>(step_count);
}

nlohmann::ordered_json Scheduler::state_dict() const {
  StateArchive saved;
  // An archive that saves changes nothing.
  const_cast<Scheduler*>(this)->archive_all(saved);
  return std::move(saved).take();
}

void Scheduler::load_state_dict(const nlohmann::ordered_json& state) {
  const nlohmann::ordered_json before = state_dict();
  const size_t groups = base_lrs_.size();
  try {
    StateArchive source(state);
    archive_all(source);
    check();
    TORCH_CHECK_VALUE(base_lrs_.size() == groups, "a scheduler's state is for ", base_lrs_.size(),
                      " parameter groups, the optimizer has ", groups);
    TORCH_CHECK_VALUE(last_epoch_ >= -1 && step_count_ >= 1, "a scheduler's state has last_epoch ",
                      last_epoch_, " and _step_count ", step_count_);
  } catch (...) {
    StateArchive source(before);
    archive_all(source);
    throw;
  }
}

}  // namespace accelerate::optim
