/// The techniques that choose the precision of a model's forward passes.
///
/// Threads: any; passes on several threads do not disturb each other.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "accelerate/forward/technique.h"
#include "accelerate/precision/autocast.h"

namespace accelerate {

class Fp8Model;
struct TechniqueContext;

/// Operators choose their precision; outputs in half precision come back as float32.
class AutocastTechnique final : public Technique {
 public:
  static constexpr std::string_view kName = "autocast";

  explicit AutocastTechnique(const AutocastSettings& settings) : settings_(settings) {}

  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;

 private:
  const AutocastSettings settings_;
};

/// Linear layers are computed in fp8. Ranks agree on scales in passes that synchronise.
class Fp8Technique final : public Technique {
 public:
  static constexpr std::string_view kName = "fp8";

  explicit Fp8Technique(std::shared_ptr<Fp8Model> model) : model_(std::move(model)) {}
  const std::shared_ptr<Fp8Model>& model() const { return model_; }

  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;
  const Fp8Report* fp8_report() const override;
  /// What delayed scaling has observed. Another number of ranks may load it.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state, bool same_ranks) override;

 private:
  const std::shared_ptr<Fp8Model> model_;
};

/// Null where the job's precision needs no such technique.
std::unique_ptr<Technique> make_autocast_technique(const TechniqueContext& context);
/// A model that was prepared for evaluation has fp8 layers, but shares no scales: it gets others
/// when ranks begin to train it together.
std::unique_ptr<Technique> make_fp8_technique(const TechniqueContext& context);

}  // namespace accelerate
