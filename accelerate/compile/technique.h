/// Compilation of a prepared model, as its dynamo_plugin asks for it: of what it calls by
/// accelerate::block(), or of the whole.
///
/// Local. Errors: as those of CompiledRegions.
/// Threads: any; passes on several threads do not disturb each other.
/// Mirrors: accelerate accelerator.py, prepare_model, which calls torch.compile or compile_regions.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/compile/regions.h"
#include "accelerate/forward/technique.h"

namespace accelerate {

struct TechniqueContext;
struct TorchDynamoPlugin;

/// The innermost technique that a model has.
class CompileTechnique final : public Technique {
 public:
  static constexpr std::string_view kName = "compile";

  /// `plugin` is resolved. The model whose technique it is keeps the module alive.
  CompileTechnique(const std::shared_ptr<torch::nn::Module>& module,
                   const TorchDynamoPlugin& plugin);
  /// With the regions of another one of the same model.
  CompileTechnique(const CompileTechnique& other);

  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;

  /// Whether regions are blocks; if not, the whole model is one.
  bool is_regional() const { return is_regional_; }
  CompileReport report() const { return regions_->report(); }
  std::vector<std::string> texts() const { return regions_->texts(); }

 private:
  const std::weak_ptr<torch::nn::Module> module_;
  const bool is_regional_;
  const std::shared_ptr<CompiledRegions> regions_;
  std::atomic<bool> has_looked_ = false;
};

/// Null for a job that does not compile. A model that is prepared again has the same regions.
std::unique_ptr<Technique> make_compile_technique(const TechniqueContext& context);

/// Errors: c10::ValueError naming what the model has that cannot be compiled with it.
void check_compiled_model(const TechniqueContext& context);

}  // namespace accelerate
