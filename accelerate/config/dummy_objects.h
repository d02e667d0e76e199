/// What a program prepares where the configuration of DeepSpeed has the optimizer or the schedule.
///
///     DummyOptim optimizer(model->parameters(), {.lr = 1e-4, .weight_decay = 0.1});
///     DummyScheduler scheduler(optimizer, {.total_num_steps = 1000, .warmup_num_steps = 100});
///     auto [zero_model, zero_optimizer, zero_scheduler] =
///         accelerator.prepare(model, optimizer, scheduler);
///
/// Where the configuration says "auto", it takes the numbers from here.
///
/// Errors:  c10::ValueError for numbers that no optimizer takes.
/// Threads: values.
/// Mirrors: accelerate utils/deepspeed.py, DummyOptim and DummyScheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// Parameters with numbers of their own; absent: those of the optimizer.
struct DummyParamGroup {
  std::vector<at::Tensor> params;
  std::optional<double> lr = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
};

struct DummyOptimOptions {
  double lr = 0.001;
  double weight_decay = 0;
  /// Anything else, kept for the program.
  std::map<std::string, nlohmann::ordered_json> kwargs = {};
};

struct DummyOptim : DummyOptimOptions {
  explicit DummyOptim(std::vector<at::Tensor> params, DummyOptimOptions options = {});
  explicit DummyOptim(std::vector<DummyParamGroup> groups, DummyOptimOptions options = {});

  std::vector<DummyParamGroup> groups;
};

/// Makes the schedule of an optimizer.
using LRSchedulerCallable =
    std::function<std::unique_ptr<torch::optim::LRScheduler>(torch::optim::Optimizer& optimizer)>;

struct DummySchedulerOptions {
  /// Absent: the configuration must not ask for it.
  std::optional<int64_t> total_num_steps = std::nullopt;
  int64_t warmup_num_steps = 0;
  /// In place of a schedule in the configuration.
  LRSchedulerCallable lr_scheduler_callable = nullptr;
  std::map<std::string, nlohmann::ordered_json> kwargs = {};
};

struct DummyScheduler : DummySchedulerOptions {
  /// The optimizer outlives it.
  explicit DummyScheduler(const DummyOptim& optimizer, DummySchedulerOptions options = {})
      : DummySchedulerOptions(std::move(options)), optimizer(&optimizer) {}
  explicit DummyScheduler(const torch::optim::Optimizer& optimizer,
                          DummySchedulerOptions options = {})
      : DummySchedulerOptions(std::move(options)), optimizer(&optimizer) {}

  /// The optimizer's learning rate.
  double lr() const;

  std::variant<const DummyOptim*, const torch::optim::Optimizer*> optimizer;
};

}  // namespace accelerate
