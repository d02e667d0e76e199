#include "accelerate/techniques/technique_list.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/precision/job_precision.h"
#include "accelerate/precision/techniques.h"

namespace accelerate {
namespace {

using Strings = std::vector<std::string>;

Strings techniques_of(const ModelState& model) {
  Strings names;
  for (const auto& technique : model.techniques()) names.emplace_back(technique->name());
  return names;
}

JobPrecision chosen(PrecisionType type, const KwargsHandlers& handlers) {
  JobPrecision precision;
  precision.choose(type, type == PrecisionType::kFp8, handlers, DistributedType::kNo, nullptr,
                   Environment());
  return precision;
}

TEST(ApplyTechniques, GivesAModelTheTechniquesThatItsJobNeeds) {
  const KwargsHandlers handlers;
  for (const auto& [type, expected] :
       std::vector<std::pair<PrecisionType, Strings>>{{PrecisionType::kNo, {}},
                                                      {PrecisionType::kBf16, {"autocast"}},
                                                      {PrecisionType::kFp8, {"autocast", "fp8"}}}) {
    const JobPrecision precision = chosen(type, handlers);
    ModelState model(std::make_shared<torch::nn::LinearImpl>(16, 16));
    apply_techniques(all_techniques(), model, {.handlers = handlers, .precision = precision});
    EXPECT_EQ(techniques_of(model), expected);
    for (const std::string& name : expected) {
      EXPECT_TRUE(is_technique(all_techniques(), name)) << name;
    }
  }
  EXPECT_TRUE(is_technique(all_techniques(), "ddp"));
  EXPECT_FALSE(is_technique(all_techniques(), "counting"));
}

TEST(ApplyTechniques, SurroundsSomeTechniquesByOthersWhateverAModelHas) {
  const TechniqueList all = all_techniques();
  const auto depth_of = [all](std::string_view name) {
    const auto row = std::ranges::find(all, name, &TechniqueRow::name);
    TORCH_CHECK(row != all.end(), "no row has the technique ", std::string(name));
    return row->depth;
  };
  // What replicas and shards see of a pass is what its caller gets, and a device map is about the
  // module alone.
  for (const auto& [outer, inner] : std::vector<std::pair<std::string_view, std::string_view>>{
           {"pipeline", "ddp"},
           {"pipeline", "sharded"},
           {"ddp", "autocast"},
           {"sharded", "autocast"},
           {"autocast", "fp8"},
           {"autocast", "activation_checkpointing"},
           {"fp8", "dispatch"},
           {"tensor_parallel", "dispatch"},
           {"autocast", "context_parallel"},
           {"context_parallel", "dispatch"},
           {"pipeline", "expert_parallel"},
           {"expert_parallel", "dispatch"},
           {"autocast", "ulysses"},
           {"ulysses", "context_parallel"},
           {"tensor_parallel", "fp8"},
           {"pipeline", "layout"},
           {"dispatch", "compile"},
           {"activation_checkpointing", "dispatch"}}) {
    EXPECT_LT(depth_of(outer), depth_of(inner)) << outer << " around " << inner;
  }
}

TEST(ApplyTechniques, KeepsTheLayersOfAModelThatIsTrainedLater) {
  const KwargsHandlers handlers;
  const JobPrecision precision = chosen(PrecisionType::kFp8, handlers);
  const ModelPlan plan{.handlers = handlers, .precision = precision};
  ModelState model(std::make_shared<torch::nn::LinearImpl>(16, 16));
  apply_techniques(all_techniques(), model, plan, {.trains = false});
  const Fp8Model* layers = model.find_technique<Fp8Technique>()->model().get();
  apply_techniques(all_techniques(), model, plan);
  EXPECT_EQ(techniques_of(model), (Strings{"autocast", "fp8"}));
  EXPECT_EQ(model.find_technique<Fp8Technique>()->model().get(), layers);
}

}  // namespace
}  // namespace accelerate
