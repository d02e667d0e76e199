/// The training whose state the cases of save_state_layout save: models, optimizers, schedulers
/// and loaders by the names that the cases give them.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/accelerator.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::golden {

/// A model that draws its own input.
struct DrawingNet : torch::nn::Module {
  virtual at::Tensor forward() = 0;
};

/// A user's own object, {"v": ...}.
struct CustomValue {
  int64_t v = 0;
  StateDict state_dict() const { return {.values = {{"v", v}}}; }
  void load_state_dict(const StateDict& state) { v = state.values.at("v"); }
};

struct LayoutObjects {
  std::vector<std::string> models = {};
  std::vector<std::string> optimizers = {};
  std::vector<std::string> schedulers = {};
  std::vector<std::string> dataloaders = {};
  int64_t custom = 0;
};

class LayoutTraining {
 public:
  /// Custom object i has the value `first_custom` + i. Collective.
  /// Errors: CaseError for a name that is unknown.
  LayoutTraining(AcceleratorOptions options, const LayoutObjects& objects,
                 int64_t first_custom = 0);

  /// Returns whether it synchronised. Collective.
  bool micro_step();

  Accelerator& accelerator() { return accelerator_; }
  std::vector<int64_t> custom_values() const;

 private:
  void add_loader(const std::string& name);

  Accelerator accelerator_;
  std::vector<std::shared_ptr<DrawingNet>> nets_;
  std::vector<PreparedModel<DrawingNet>> models_;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> inner_optimizers_;
  std::vector<std::unique_ptr<optim::Scheduler>> inner_schedulers_;
  std::vector<AcceleratedOptimizer> optimizers_;
  std::vector<AcceleratedScheduler> schedulers_;
  std::vector<std::shared_ptr<void>> loaders_;
  std::vector<CustomValue> custom_;
};

}  // namespace accelerate::golden
