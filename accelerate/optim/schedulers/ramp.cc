#include "accelerate/optim/schedulers/ramp.h"

#include <algorithm>
#include <cmath>

#include <c10/util/Exception.h>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

void check_total_iters(const char* kind, int64_t total_iters) {
  TORCH_CHECK_VALUE(total_iters >= 0, kind, ": total_iters must not be negative, got ",
                    total_iters);
}

}  // namespace

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> ConstantLR::rates_at(int64_t epoch) {
  if (epoch == 0) return current_times(options_.factor);
  if (epoch != options_.total_iters) return current_times(1.0);
  return options_.factor == 0 ? base_lrs() : current_times(1.0 / options_.factor);
}

void ConstantLR::archive(StateArchive& state) {
  state("factor", options_.factor);
  state("total_iters", options_.total_iters);
}

void ConstantLR::check() const {
  TORCH_CHECK_VALUE(options_.factor >= 0 && options_.factor <= 1,
                    "ConstantLR: factor must be between 0 and 1, got ", options_.factor);
  check_total_iters("ConstantLR", options_.total_iters);
}

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::optional<int64_t> LinearLR::end() const {
  if (options_.end_factor >= options_.start_factor) return std::nullopt;  // a warm-up
  return options_.total_iters;
}

std::vector<double> LinearLR::rates_at(int64_t epoch) {
  const auto [start, end, total_iters] = options_;
  if (epoch == 0) return current_times(start);
  if (epoch > total_iters) return current_times(1.0);
  const double rise = end - start;
  const double before =
      static_cast<double>(total_iters) * start + static_cast<double>(epoch - 1) * rise;
  return current_times(1.0 + rise / before);
}

void LinearLR::archive(StateArchive& state) {
  state("start_factor", options_.start_factor);
  state("end_factor", options_.end_factor);
  state("total_iters", options_.total_iters);
}

void LinearLR::check() const {
  TORCH_CHECK_VALUE(options_.start_factor > 0 && options_.start_factor <= 1,
                    "LinearLR: start_factor must be greater than 0 and at most 1, got ",
                    options_.start_factor);
  TORCH_CHECK_VALUE(options_.end_factor >= 0 && options_.end_factor <= 1,
                    "LinearLR: end_factor must be between 0 and 1, got ", options_.end_factor);
  check_total_iters("LinearLR", options_.total_iters);
}

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> PolynomialLR::rates_at(int64_t epoch) {
  if (epoch == 0 || epoch > options_.total_iters) return current_times(1.0);
  const auto total = static_cast<double>(options_.total_iters);
  const double left = 1.0 - static_cast<double>(epoch) / total;
  const double left_before = 1.0 - static_cast<double>(epoch - 1) / total;
  return current_times(std::pow(left / left_before, options_.power));
}

void PolynomialLR::archive(StateArchive& state) {
  state("total_iters", options_.total_iters);
  state("power", options_.power);
}

void PolynomialLR::check() const { check_total_iters("PolynomialLR", options_.total_iters); }

}  // namespace accelerate::optim
