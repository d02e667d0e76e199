#include "accelerate/optim/schedulers/decay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {

StepLR::StepLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> StepLR::rates_at(int64_t epoch) {
  return current_times(epoch != 0 && epoch % options_.step_size == 0 ? options_.gamma : 1.0);
}

void StepLR::archive(StateArchive& state) {
  state("step_size", options_.step_size);
  state("gamma", options_.gamma);
}

void StepLR::check() const {
  TORCH_CHECK_VALUE(options_.step_size >= 1, "StepLR: step_size must be at least 1, got ",
                    options_.step_size);
}

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, Options options)
    : Scheduler(optimizer), options_(std::move(options)) {
  std::sort(options_.milestones.begin(), options_.milestones.end());
  start();
}

std::vector<double> MultiStepLR::rates_at(int64_t epoch) {
  const auto [first, last] =
      std::equal_range(options_.milestones.begin(), options_.milestones.end(), epoch);
  return current_times(std::pow(options_.gamma, last - first));
}

void MultiStepLR::archive(StateArchive& state) {
  state("milestones", options_.milestones);
  state("gamma", options_.gamma);
  if (state.loads()) std::sort(options_.milestones.begin(), options_.milestones.end());
}

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> ExponentialLR::rates_at(int64_t epoch) {
  return current_times(epoch == 0 ? 1.0 : options_.gamma);
}

void ExponentialLR::archive(StateArchive& state) { state("gamma", options_.gamma); }

void ExponentialLR::check() const {
  TORCH_CHECK_VALUE(options_.gamma > 0, "ExponentialLR: gamma must be positive, got ",
                    options_.gamma);
}

}  // namespace accelerate::optim
