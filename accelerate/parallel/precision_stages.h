/// The precision of a model's forward passes, as stages.
///
/// Threads: any; passes on several threads do not disturb each other.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "accelerate/parallel/stage.h"
#include "accelerate/precision/autocast.h"

namespace accelerate {

class Fp8Model;

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
