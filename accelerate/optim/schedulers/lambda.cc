#include "accelerate/optim/schedulers/lambda.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

void check_lambdas(const char* kind, const std::vector<LrLambda>& lambdas, size_t groups) {
  TORCH_CHECK_VALUE(lambdas.size() == groups, kind, ": expected one function or ", groups,
                    ", one for each parameter group, got ", lambdas.size());
  TORCH_CHECK_VALUE(
      std::all_of(lambdas.begin(), lambdas.end(), [](const LrLambda& f) { return f != nullptr; }),
      kind, ": a function is empty");
}

// PyTorch's keeps the attributes of function objects there, and null for plain functions.
void note_lambdas(StateArchive& state, const std::vector<LrLambda>& lambdas) {
  state.note("lr_lambdas", std::vector<nlohmann::ordered_json>(lambdas.size()));
}

}  // namespace

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda)
    : Scheduler(optimizer), lr_lambdas_(base_lrs().size(), std::move(lr_lambda)) {
  start();
}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<LrLambda> lr_lambdas)
    : Scheduler(optimizer), lr_lambdas_(std::move(lr_lambdas)) {
  start();
}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda, int64_t end)
    : Scheduler(optimizer), lr_lambdas_(base_lrs().size(), std::move(lr_lambda)), end_(end) {
  start();
}

std::vector<double> LambdaLR::rates_at(int64_t epoch) {
  std::vector<double> rates = base_lrs();
  for (size_t i = 0; i < rates.size(); ++i) rates[i] *= lr_lambdas_[i](epoch);
  return rates;
}

void LambdaLR::archive(StateArchive& state) { note_lambdas(state, lr_lambdas_); }

void LambdaLR::check() const { check_lambdas("LambdaLR", lr_lambdas_, base_lrs().size()); }

MultiplicativeLR::MultiplicativeLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda)
    : Scheduler(optimizer), lr_lambdas_(base_lrs().size(), std::move(lr_lambda)) {
  start();
}

MultiplicativeLR::MultiplicativeLR(torch::optim::Optimizer& optimizer,
                                   std::vector<LrLambda> lr_lambdas)
    : Scheduler(optimizer), lr_lambdas_(std::move(lr_lambdas)) {
  start();
}

std::vector<double> MultiplicativeLR::rates_at(int64_t epoch) {
  std::vector<double> rates = current_times(1.0);
  if (epoch == 0) return rates;
  for (size_t i = 0; i < lr_lambdas_.size(); ++i) rates[i] *= lr_lambdas_[i](epoch);
  return rates;
}

void MultiplicativeLR::archive(StateArchive& state) { note_lambdas(state, lr_lambdas_); }

void MultiplicativeLR::check() const {
  check_lambdas("MultiplicativeLR", lr_lambdas_, base_lrs().size());
}

}  // namespace accelerate::optim
