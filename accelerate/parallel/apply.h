/// Which stages a model gets, and those that choose the precision of its forward passes.
///
/// Threads: the rank's thread, unless it is said otherwise.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "accelerate/base/enums.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/parallel/prepared_model.h"
#include "accelerate/precision/autocast.h"

namespace accelerate {

class Fp8Model;

/// What a job does with its models.
struct ModelPlan {
  DistributedType distributed_type = DistributedType::kNo;
  /// The ranks that train together; null for one rank.
  ProcessGroupPtr group = nullptr;
  DistributedDataParallelKwargs ddp = {};
  std::optional<AutocastSettings> autocast = std::nullopt;
  std::optional<Fp8Plan> fp8 = std::nullopt;
};

/// Gives the model its stages. A model that has them already changes only when it is to be trained
/// for the first time (`trains`), which is when ranks begin to train it together.
/// Collective where ranks train it together. Errors: as those of DistributedDataParallel.
void apply_stages(ModelState& model, const ModelPlan& plan, bool trains);

// ---- The precision of forward passes. Threads: any; passes on several threads do not disturb each
// other.

/// Operators choose their precision; outputs in half precision come back as float32.
class AutocastStage final : public Stage {
 public:
  explicit AutocastStage(const AutocastSettings& settings) : settings_(settings) {}

  std::string_view name() const override { return "autocast"; }
  void forward(ForwardPass& pass) override;

 private:
  const AutocastSettings settings_;
};

/// Linear layers are computed in fp8. Ranks agree on scales in passes that synchronise.
class Fp8Stage final : public Stage {
 public:
  static constexpr std::string_view kName = "fp8";

  explicit Fp8Stage(std::shared_ptr<Fp8Model> model) : model_(std::move(model)) {}
  const std::shared_ptr<Fp8Model>& model() const { return model_; }

  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;
  /// What delayed scaling has observed. Another number of ranks may load it.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state, bool same_ranks) override;

 private:
  const std::shared_ptr<Fp8Model> model_;
};

}  // namespace accelerate
