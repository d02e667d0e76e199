#include "accelerate/optim/schedulers/cyclic.h"

#include <cmath>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "accelerate/optim/schedulers/momentum.h"
#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {

CyclicLR::CyclicLR(torch::optim::Optimizer& optimizer, Options options)
    : Scheduler(optimizer),
      mode_(options.mode),
      gamma_(options.gamma),
      scale_fn_(std::move(options.scale_fn)),
      scale_mode_(options.scale_mode),
      cycle_momentum_(options.cycle_momentum) {
  const int64_t up = options.step_size_up;
  const int64_t down = options.step_size_down.value_or(up);
  TORCH_CHECK_VALUE(up >= 1 && down >= 1,
                    "CyclicLR: step_size_up and step_size_down must be at least 1, got ", up,
                    " and ", down);
  total_size_ = static_cast<double>(up) + static_cast<double>(down);
  step_ratio_ = static_cast<double>(up) / total_size_;
  if (!scale_fn_) {
    const bool by_step = mode_ == CyclicMode::kExpRange;
    scale_mode_ = by_step ? CyclicScaleMode::kIterations : CyclicScaleMode::kCycle;
  }
  const size_t groups = base_lrs().size();
  max_lrs_ = options.max_lr.expanded("CyclicLR: max_lr", groups);
  if (cycle_momentum_) {
    base_momentums_ = options.base_momentum.expanded("CyclicLR: base_momentum", groups);
    max_momentums_ = options.max_momentum.expanded("CyclicLR: max_momentum", groups);
  }
  set_base_lrs(options.base_lr.expanded("CyclicLR: base_lr", groups));
  start();
}

double CyclicLR::scale(double cycle, int64_t epoch) const {
  const auto step = static_cast<double>(epoch);
  if (scale_fn_) return scale_fn_(scale_mode_ == CyclicScaleMode::kCycle ? cycle : step);
  switch (mode_) {
    case CyclicMode::kTriangular: return 1.0;
    case CyclicMode::kTriangular2: return 1 / std::pow(2.0, cycle - 1);
    case CyclicMode::kExpRange: return std::pow(gamma_, step);
  }
  return 1.0;
}

std::vector<double> CyclicLR::rates_at(int64_t epoch) {
  const double cycles = static_cast<double>(epoch) / total_size_;
  const double cycle = std::floor(1 + cycles);
  const double x = 1.0 + cycles - cycle;
  const double height = x <= step_ratio_ ? x / step_ratio_ : (x - 1) / (step_ratio_ - 1);
  const double factor = scale(cycle, epoch);
  if (cycle_momentum_) {
    std::vector<double> momenta = max_momentums_;
    for (size_t i = 0; i < momenta.size(); ++i) {
      momenta[i] -= (max_momentums_[i] - base_momentums_[i]) * height * factor;
    }
    set_momenta(optimizer(), momenta);
  }
  std::vector<double> rates = base_lrs();
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i] += (max_lrs_[i] - rates[i]) * height * factor;
  }
  return rates;
}

void CyclicLR::archive(StateArchive& state) {
  state("total_size", total_size_);
  state("step_ratio", step_ratio_);
  state("mode", mode_);
  state("gamma", gamma_);
  state("scale_mode", scale_mode_);
  state("cycle_momentum", cycle_momentum_);
  state("max_lrs", max_lrs_);
  state("base_momentums", base_momentums_);
  state("max_momentums", max_momentums_);
}

void CyclicLR::check() const {
  TORCH_CHECK_VALUE(total_size_ >= 2 && step_ratio_ > 0 && step_ratio_ < 1, "CyclicLR: a cycle of ",
                    total_size_, " steps rises for ", step_ratio_, " of them");
  const size_t momenta = cycle_momentum_ ? max_lrs_.size() : 0;
  TORCH_CHECK_VALUE(base_lrs().size() == max_lrs_.size() && base_momentums_.size() == momenta &&
                        max_momentums_.size() == momenta,
                    "CyclicLR: rates and momenta are for different numbers of parameter groups");
}

}  // namespace accelerate::optim
