/// A dispatched model as a prepared one, or a module with dispatched models inside of it: the
/// technique that surrounds its forward passes, in which these models compute, called by their
/// handles or as plain modules.
///
/// Where parameters are on the CPU, optimizers train their host tensors in place of them, as they
/// train shards: prepare gives an optimizer these, and gradients are clipped and saved there.
/// Outputs of a dispatched model are on the main device; those of a module around one are where it
/// leaves them.
/// Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include "accelerate/comm/operations.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/forward/technique.h"

namespace accelerate {

class DispatchTechnique final : public Technique {
 public:
  /// Makes a group of this rank alone if parameters are on the CPU. Local.
  /// `models`: those of the module and inside of it, at least one.
  DispatchTechnique(const torch::nn::Module& module,
                    std::vector<std::shared_ptr<DispatchedModel>> models);

  std::string_view name() const override { return "dispatch"; }
  void forward(ForwardPass& pass) override;
  const std::vector<TrainedParameter>* trained() const override {
    return only_rank_ != nullptr ? &trained_ : nullptr;
  }
  ProcessGroupPtr shard_group() const override { return only_rank_; }
  std::shared_ptr<const int> overwriting_scopes() const override {
    return only_rank_ != nullptr ? writers_ : nullptr;
  }

 private:
  // In the passes of the models from that one on.
  void proceed_within(ForwardPass& pass, size_t next);

  const std::vector<std::shared_ptr<DispatchedModel>> models_;
  std::optional<c10::Device> outputs_;  // where outputs go
  std::vector<TrainedParameter> trained_;
  ProcessGroupPtr only_rank_;  // null where optimizers train the parameters themselves
  std::shared_ptr<const int> writers_;
};

}  // namespace accelerate
