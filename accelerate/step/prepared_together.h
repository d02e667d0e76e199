/// What one call of prepare() has. What it points to outlives the call.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

struct DummyOptim;
struct DummyScheduler;

namespace internal {

struct PreparedTogether {
  std::vector<const torch::nn::Module*> modules;
  std::vector<const torch::optim::Optimizer*> optimizers;
  std::vector<std::optional<int64_t>> batch_sizes;  // by loader
  bool has_scheduler = false;
  const DummyOptim* dummy_optimizer = nullptr;  // null: none
  const DummyScheduler* dummy_scheduler = nullptr;
};

}  // namespace internal
}  // namespace accelerate
