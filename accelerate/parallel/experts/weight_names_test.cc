#include "accelerate/parallel/experts/weight_names.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/base/enum_text.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Different in each element, and for each name.
at::Tensor numbers(at::IntArrayRef sizes, int salt) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel).add(1000 * salt).view(sizes);
}

std::vector<std::string> keys(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// The tensors of one mixture, of two experts, among others.
NamedTensors file_of(ExpertNames names) {
  const std::string path =
      names == ExpertNames::kMixtral ? "model.layers.1.block_sparse_moe." : "model.layers.1.mlp.";
  const std::vector<std::string> projections =
      names == ExpertNames::kMixtral
          ? std::vector<std::string>{"w1", "w2", "w3"}
          : std::vector<std::string>{"gate_proj", "down_proj", "up_proj"};
  NamedTensors tensors = {{"model.layers.0.mlp.gate_proj.weight", numbers({3, 4}, 1)},
                          {path + "gate.weight", numbers({2, 4}, 2)}};
  int salt = 3;
  for (const std::string expert : {"experts.0.", "experts.1."}) {
    for (const std::string& projection : projections) {
      const bool is_down = projection == projections[1];
      const std::vector<int64_t> sizes =
          is_down ? std::vector<int64_t>{4, 3} : std::vector<int64_t>{3, 4};
      tensors.emplace_back(path + expert + projection + ".weight", numbers(sizes, salt++));
    }
  }
  if (names == ExpertNames::kQwen) {
    tensors.emplace_back(path + "shared_expert.gate_proj.weight", numbers({5, 4}, 18));
    tensors.emplace_back(path + "shared_expert.down_proj.weight", numbers({4, 5}, 19));
    tensors.emplace_back(path + "shared_expert.up_proj.weight", numbers({5, 4}, 20));
    tensors.emplace_back(path + "shared_expert_gate.weight", numbers({1, 4}, 21));
  }
  if (names == ExpertNames::kDeepSeek) {
    tensors.emplace_back(path + "shared_experts.gate_proj.weight", numbers({5, 4}, 18));
    tensors.emplace_back(path + "shared_experts.up_proj.weight", numbers({5, 4}, 19));
    tensors.emplace_back(path + "shared_experts.down_proj.weight", numbers({4, 5}, 22));
    tensors.emplace_back(path + "gate.e_score_correction_bias", numbers({2}, 23));
  }
  tensors.emplace_back("lm_head.weight", numbers({2, 2}, 24));
  return tensors;
}

TEST(StackedExperts, HaveTheNamesOfAMixture) {
  EXPECT_THAT(keys(stacked_experts(file_of(ExpertNames::kMixtral), ExpertNames::kMixtral)),
              ElementsAre("model.layers.0.mlp.gate_proj.weight",
                          "model.layers.1.block_sparse_moe.router.weight",
                          "model.layers.1.block_sparse_moe.experts.gate",
                          "model.layers.1.block_sparse_moe.experts.down",
                          "model.layers.1.block_sparse_moe.experts.up", "lm_head.weight"));
  EXPECT_THAT(
      keys(stacked_experts(file_of(ExpertNames::kQwen), ExpertNames::kQwen)),
      ElementsAre("model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.router.weight",
                  "model.layers.1.mlp.experts.gate", "model.layers.1.mlp.experts.down",
                  "model.layers.1.mlp.experts.up", "model.layers.1.mlp.shared.gate.weight",
                  "model.layers.1.mlp.shared.down.weight", "model.layers.1.mlp.shared.up.weight",
                  "model.layers.1.mlp.shared_gate.weight", "lm_head.weight"));
  EXPECT_THAT(
      keys(stacked_experts(file_of(ExpertNames::kDeepSeek), ExpertNames::kDeepSeek)),
      ElementsAre("model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.router.weight",
                  "model.layers.1.mlp.experts.gate", "model.layers.1.mlp.experts.down",
                  "model.layers.1.mlp.experts.up", "model.layers.1.mlp.shared.gate.weight",
                  "model.layers.1.mlp.shared.up.weight", "model.layers.1.mlp.shared.down.weight",
                  "model.layers.1.mlp.gate.e_score_correction_bias", "lm_head.weight"));
}

TEST(StackedExperts, HaveOneExpertBehindTheOther) {
  const NamedTensors file = file_of(ExpertNames::kMixtral);
  const NamedTensors own = stacked_experts(file, ExpertNames::kMixtral);
  // w1 is the gate's, w3 goes up, and w2 down.
  EXPECT_TRUE(at::equal(own[2].second, at::stack({file[2].second, file[5].second})));
  EXPECT_TRUE(at::equal(own[3].second, at::stack({file[3].second, file[6].second})));
  EXPECT_TRUE(at::equal(own[4].second, at::stack({file[4].second, file[7].second})));
  EXPECT_TRUE(own[1].second.is_same(file[1].second));
}

// As many experts as have two digits, in the order of their names.
TEST(StackedExperts, AreInTheOrderOfTheirNumbers) {
  NamedTensors file;
  for (const int number : {0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9}) {
    file.emplace_back("mlp.experts." + std::to_string(number) + ".up_proj.weight",
                      numbers({2, 2}, number));
  }
  const NamedTensors own = stacked_experts(file, ExpertNames::kQwen);
  ASSERT_THAT(keys(own), ElementsAre("mlp.experts.up"));
  for (int number = 0; number < 12; ++number) {
    EXPECT_TRUE(at::equal(own[0].second[number], numbers({2, 2}, number))) << number;
  }
}

// A module whose name ends as the mixture's does is another one.
TEST(StackedExperts, LeaveOtherModulesTheirNames) {
  const NamedTensors file = {{"model.layers.1.premlp.gate.weight", numbers({2, 4}, 1)},
                             {"model.layers.1.premlp.experts.0.up_proj.weight", numbers({2}, 2)},
                             {"mlp.gate.weight", numbers({2, 4}, 3)}};
  EXPECT_THAT(keys(stacked_experts(file, ExpertNames::kQwen)),
              ElementsAre("model.layers.1.premlp.gate.weight",
                          "model.layers.1.premlp.experts.0.up_proj.weight", "mlp.router.weight"));
}

TEST(SeparateExperts, AreThoseThatWereStacked) {
  for (const ExpertNames names : values<ExpertNames>()) {
    const NamedTensors file = file_of(names);
    const NamedTensors again = separate_experts(stacked_experts(file, names), names);
    ASSERT_EQ(again.size(), file.size()) << to_string(names);
    for (const auto& [name, tensor] : file) {
      const auto found = std::ranges::find(again, name, &std::pair<std::string, at::Tensor>::first);
      ASSERT_NE(found, again.end()) << name;
      EXPECT_TRUE(at::equal(found->second, tensor)) << name;
    }
  }
}

// Files are written from the model's own memory, and a stack from memory of its own.
TEST(SeparateExperts, AreViewsAndStacksAreNone) {
  NamedTensors file = {{"mlp.experts.0.up_proj.weight", at::zeros({2})},
                       {"mlp.experts.1.up_proj.weight", at::zeros({2})}};
  const NamedTensors own = stacked_experts(file, ExpertNames::kQwen);
  file[1].second.fill_(3);
  EXPECT_EQ(own[0].second.sum().item<double>(), 0);
  const NamedTensors parts = separate_experts(own, ExpertNames::kQwen);
  own[0].second[1].fill_(5);
  EXPECT_EQ(parts[0].second.sum().item<double>(), 0);
  EXPECT_EQ(parts[1].second.sum().item<double>(), 10);
}

TEST(StackedExperts, RefuseAMissingExpert) {
  NamedTensors file = file_of(ExpertNames::kQwen);
  std::erase_if(file, [](const auto& each) {
    return each.first == "model.layers.1.mlp.experts.0.up_proj.weight";
  });
  EXPECT_THAT(value_error_of([&] { stacked_experts(file, ExpertNames::kQwen); }),
              HasSubstr("\"model.layers.1.mlp.experts.up\" has expert 1, but expert 0 is missing"));
  file = file_of(ExpertNames::kQwen);
  file.emplace_back(file[2]);
  EXPECT_THAT(value_error_of([&] { stacked_experts(file, ExpertNames::kQwen); }),
              HasSubstr("two tensors are expert 0 of \"model.layers.1.mlp.experts.gate\""));
}

}  // namespace
}  // namespace accelerate
