/// Training on uneven inputs: ranks may run different numbers of steps.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.join_uneven_inputs.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/comm/operations.h"
#include "accelerate/parallel/ddp.h"

namespace accelerate {

class GradientState;
class SharedScaler;

namespace internal {
class LoaderCore;
class TrainingStep;
}  // namespace internal

struct JoinOptions {
  /// Replaces the configuration's even_batches inside the scope. Absent: the configuration's.
  std::optional<bool> even_batches = std::nullopt;
};

/// While it lives, ranks may have different numbers of batches. See
/// Accelerator::join_uneven_inputs.
class UnevenInputsScope {
 public:
  UnevenInputsScope(UnevenInputsScope&&) = default;
  /// The rank shadows the collectives of those that still train, and throws what that throws.
  ~UnevenInputsScope() noexcept(false) = default;

 private:
  friend class internal::TrainingStep;
  // Undoes what the scope changed.
  class Restorer {
   public:
    Restorer() = default;
    Restorer(Restorer&& other) noexcept
        : loaders(std::move(other.loaders)),
          joining(std::exchange(other.joining, nullptr)),
          scaler(std::move(other.scaler)),
          scaling_group(std::move(other.scaling_group)) {}
    ~Restorer();
    // The loaders' even_batches before the scope.
    std::vector<std::pair<std::shared_ptr<internal::LoaderCore>, bool>> loaders;
    // Null unless ranks join.
    GradientState* joining = nullptr;
    // The scaler's process group before the scope; null without a scaler.
    std::shared_ptr<SharedScaler> scaler;
    ProcessGroupPtr scaling_group;
  };
  UnevenInputsScope(Restorer restorer, JoinScope join)
      : restorer_(std::move(restorer)), join_(std::move(join)) {}

  Restorer restorer_;
  JoinScope join_;  // ends before the loaders are restored
};

}  // namespace accelerate
