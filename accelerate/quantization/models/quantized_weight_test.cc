#include "accelerate/quantization/models/quantized_weight.h"

#include <cstdint>
#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/modules/value_at_use.h"
#include "accelerate/quantization/bnb_config.h"
#include "accelerate/quantization/four_bit.h"

namespace accelerate {
namespace {

using torch::Tensor;

BnbQuantizationConfig config() {
  return resolve({.load_in_4bit = true,
                  .bnb_4bit_quant_type = "nf4",
                  .bnb_4bit_use_double_quant = true,
                  .bnb_4bit_compute_dtype = "bf16"});
}

struct Layer {
  Layer() {
    torch::manual_seed(5);
    layer = torch::nn::Linear(128, 24);
    layer->to(torch::kBFloat16);
    packed = quantize_4bit(layer->weight.detach(),
                           {.type = FourBitType::kNf4, .use_double_quant = true});
    layer->bias.set_requires_grad(false);
    quantize_weight(layer->weight, "weight", config());
  }

  torch::nn::Linear layer{nullptr};
  FourBitTensor packed;
};

// Without rounding the weight's values, which tells it from the product with them.
TEST(QuantizedProducts, ReadCodesOnTheHostForFewRows) {
  Layer given;
  const Tensor bias = given.layer->bias;
  const OperatorModeScope scope(std::make_shared<QuantizedProducts>(config()));
  for (const int64_t rows : {1, 4, 5}) {
    const Tensor input = torch::randn({rows, 128}).to(torch::kBFloat16);
    const Tensor read = four_bit_linear(input, given.packed, bias);
    const Tensor made = torch::linear(input, given.packed.dequantize(torch::kBFloat16), bias);
    EXPECT_EQ(torch::equal(read, made), rows == 5);
    EXPECT_TRUE(torch::equal(given.layer(input), read)) << rows;
    // Inputs of another dtype are converted, and outputs back.
    const Tensor output = given.layer(input.to(torch::kFloat));
    EXPECT_TRUE(torch::equal(output, read.to(torch::kFloat))) << rows;
  }
}

TEST(QuantizedProducts, MakeValuesWhereGradientsAreWanted) {
  Layer given;
  const OperatorModeScope scope(std::make_shared<QuantizedProducts>(config()));
  const Tensor input = torch::randn({2, 128}).to(torch::kBFloat16).requires_grad_();
  const Tensor values = given.packed.dequantize(torch::kBFloat16);
  const Tensor output = given.layer(input);
  EXPECT_TRUE(torch::equal(output, torch::linear(input, values, given.layer->bias)));
  output.sum().backward();
  EXPECT_TRUE(torch::allclose(input.grad(), values.sum(0).expand({2, 128}), 0.05, 0.05));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(
      torch::equal(given.layer(input), four_bit_linear(input, given.packed, given.layer->bias)));
}

// What is kept, as a checkpoint has it, of other values goes into the place of what was kept of the
// first ones, and the weight moves with that.
TEST(QuantizedWeights, MoveWithTheStateThatWasLoadedSince) {
  BnbQuantizationConfig once = config();
  once.bnb_4bit_use_double_quant = false;
  const BnbQuantizationConfig eight = resolve({.load_in_8bit = true});
  for (const BnbQuantizationConfig& each : {config(), once, eight}) {
    torch::manual_seed(6);
    torch::nn::Linear first(128, 24), second(128, 24);
    for (torch::nn::Linear layer : {first, second}) {
      layer->to(torch::kBFloat16);
      layer->weight.set_requires_grad(false);
    }
    second->weight.mul_(3).add_(1);  // another mean of the scales
    quantize_weight(first->weight, "weight", each);
    quantize_weight(second->weight, "weight", each);
    const Tensor expected = second->weight.clone();
    const auto kept = find_maker(first->weight)->kept("weight");
    const auto loaded = find_maker(second->weight)->kept("weight");
    ASSERT_EQ(kept.size(), loaded.size());
    for (size_t i = 0; i < kept.size(); ++i) kept[i].tensor.copy_(loaded[i].tensor);
    // Before anything has used it, and afterwards.
    for (int use = 0; use < 2; ++use) {
      const auto moved = find_maker(first->weight)->on_device(torch::kCPU);
      EXPECT_TRUE(torch::equal(moved->make(), expected)) << each.load_in_8bit << use;
      EXPECT_TRUE(torch::equal(first->weight, expected)) << each.load_in_8bit << use;
    }
  }
}

}  // namespace
}  // namespace accelerate
