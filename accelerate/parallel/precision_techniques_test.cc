#include "accelerate/parallel/precision_techniques.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/forward/prepared_model.h"

namespace accelerate {
namespace {

TEST(AutocastTechnique, ReturnsFloat32) {
  Techniques techniques;
  techniques.push_back(std::make_unique<AutocastTechnique>(AutocastSettings()));
  torch::nn::Linear net(2, 2);
  auto state = std::make_shared<ModelState>(net.ptr());
  state->set_techniques(std::move(techniques));
  PreparedModel<torch::nn::LinearImpl> model(net.ptr(), state);
  const torch::Tensor x = torch::full({1, 2}, 0.3);
  torch::Tensor in_bf16;
  {
    const AutocastScope scope{AutocastSettings()};
    in_bf16 = net->forward(x);
  }
  EXPECT_EQ(in_bf16.scalar_type(), torch::kBFloat16);
  const torch::Tensor y = model(x);
  EXPECT_EQ(y.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(y, in_bf16.to(torch::kFloat)));
}

}  // namespace
}  // namespace accelerate
