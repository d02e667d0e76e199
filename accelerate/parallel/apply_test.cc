#include "accelerate/parallel/apply.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/parallel/precision_stages.h"

namespace accelerate {
namespace {

using Strings = std::vector<std::string>;

Strings stages_of(const ModelState& model) {
  Strings names;
  for (const auto& stage : model.stages()) names.emplace_back(stage->name());
  return names;
}

JobPrecision chosen(PrecisionType type, const KwargsHandlers& handlers) {
  JobPrecision precision;
  precision.choose(type, type == PrecisionType::kFp8, handlers, DistributedType::kNo, nullptr,
                   Environment());
  return precision;
}

TEST(ApplyStages, GivesAModelTheStagesThatItsJobNeeds) {
  const KwargsHandlers handlers;
  for (const auto& [type, expected] :
       std::vector<std::pair<PrecisionType, Strings>>{{PrecisionType::kNo, {}},
                                                      {PrecisionType::kBf16, {"autocast"}},
                                                      {PrecisionType::kFp8, {"autocast", "fp8"}}}) {
    const JobPrecision precision = chosen(type, handlers);
    ModelState model(std::make_shared<torch::nn::LinearImpl>(16, 16));
    apply_stages(model, {.handlers = handlers, .precision = precision}, /*trains=*/true);
    EXPECT_EQ(stages_of(model), expected);
    for (const std::string& name : expected) EXPECT_TRUE(is_technique(name)) << name;
  }
  EXPECT_TRUE(is_technique("ddp"));
  EXPECT_FALSE(is_technique("counting"));
}

TEST(ApplyStages, KeepsTheLayersOfAModelThatIsTrainedLater) {
  const KwargsHandlers handlers;
  const JobPrecision precision = chosen(PrecisionType::kFp8, handlers);
  const ModelPlan plan{.handlers = handlers, .precision = precision};
  ModelState model(std::make_shared<torch::nn::LinearImpl>(16, 16));
  apply_stages(model, plan, /*trains=*/false);
  const Fp8Model* layers = model.find_stage<Fp8Stage>()->model().get();
  apply_stages(model, plan, /*trains=*/true);
  EXPECT_EQ(stages_of(model), (Strings{"autocast", "fp8"}));
  EXPECT_EQ(model.find_stage<Fp8Stage>()->model().get(), layers);
}

}  // namespace
}  // namespace accelerate
