/// A dispatched model as a prepared one: the stage that surrounds its forward passes.
///
/// Where parameters are on the CPU, optimizers train their host tensors in place of them, as they
/// train shards: prepare gives an optimizer these, and gradients are clipped and saved there.
/// Outputs are on the main device.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "accelerate/comm/operations.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/parallel/stage.h"

namespace accelerate {

class DispatchStage final : public Stage {
 public:
  /// Makes a group of this rank alone if parameters are on the CPU. Local.
  explicit DispatchStage(std::shared_ptr<DispatchedModel> model);

  std::string_view name() const override { return "dispatch"; }
  void forward(ForwardPass& pass) override;
  const std::vector<TrainedParameter>* trained() const override {
    return only_rank_ != nullptr ? &trained_ : nullptr;
  }
  ProcessGroupPtr shard_group() const override { return only_rank_; }
  std::shared_ptr<const int> overwriting_scopes() const override {
    return only_rank_ != nullptr ? model_->residency()->writers() : nullptr;
  }

 private:
  const std::shared_ptr<DispatchedModel> model_;
  std::vector<TrainedParameter> trained_;
  ProcessGroupPtr only_rank_;  // null where optimizers train the parameters themselves
};

}  // namespace accelerate
