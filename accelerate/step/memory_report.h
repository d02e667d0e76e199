/// What still lives after `Accelerator::free_memory`, and so who keeps a device full.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/runtime/runtime.h"
#include "accelerate/step/training_state.h"

namespace accelerate {

struct MemoryReport {
  struct Survivor {
    /// "model", "optimizer", "scheduler" or "data loader".
    std::string kind;
    /// A model's type as far as it is known; empty otherwise.
    std::string name;
    /// Of a model's parameters and buffers; 0 for what is not a model.
    int64_t bytes = 0;
    /// How many handles or pointers keep it alive.
    int64_t owners = 0;
  };
  std::vector<Survivor> survivors;
  /// Of the rank's device, after its unused memory was given back; nothing where nobody counts.
  std::optional<DeviceMemoryUse> device;

  /// A line for each survivor and one for the device.
  std::string to_string() const;
};

namespace internal {

// Looks at what is prepared without keeping it.
class MemoryWitness {
 public:
  explicit MemoryWitness(const TrainingState& training);

  MemoryReport survivors(const Runtime& runtime) const;

 private:
  struct Model {
    std::weak_ptr<ModelState> state;
    std::weak_ptr<torch::nn::Module> module;
  };
  std::vector<Model> models_;
  std::vector<std::weak_ptr<LoaderCore>> loaders_;
  std::vector<std::weak_ptr<AcceleratedOptimizer::Shared>> optimizers_;
  std::vector<std::weak_ptr<AcceleratedScheduler::Shared>> schedulers_;
};

}  // namespace internal
}  // namespace accelerate
