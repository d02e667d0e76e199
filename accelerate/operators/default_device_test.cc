#include "accelerate/operators/default_device.h"

#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using ::testing::IsEmpty;
using torch::Tensor;

// Every machine has this device beside the CPU.
constexpr c10::DeviceType kElsewhere = c10::kMeta;

// The names of parameters and buffers that are not on the device.
std::vector<std::string> astray(const torch::nn::Module& module, c10::DeviceType device) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().device().type() != device) names.push_back(item.key());
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().device().type() != device) names.push_back(item.key());
  }
  return names;
}

torch::nn::Sequential some_layers() {
  return torch::nn::Sequential(
      torch::nn::Linear(4, 3), torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 4)),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})), torch::nn::BatchNorm1d(4),
      torch::nn::Conv2d(2, 3, 3),
      torch::nn::LSTM(torch::nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true)),
      torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(4, 2)));
}

TEST(DefaultDevice, HoldsTheParametersAndBuffersOfModules) {
  const DefaultDeviceScope scope(kElsewhere);
  const auto layers = some_layers();
  EXPECT_GE(layers->parameters().size(), 20u);
  EXPECT_EQ(layers->buffers().size(), 3u) << "those of the batch norm";
  EXPECT_THAT(astray(*layers, kElsewhere), IsEmpty());
  for (const Tensor& parameter : layers->parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(DefaultDevice, HoldsWhatFactoriesMake) {
  const DefaultDeviceScope scope(kElsewhere);
  const std::vector<std::pair<const char*, Tensor>> made = {
      {"empty", torch::empty({2, 3})},
      {"empty of a dtype", torch::empty({2}, torch::kLong)},
      {"empty_strided", torch::empty_strided({2, 3}, {1, 2})},
      {"zeros", torch::zeros({2})},
      {"full", torch::full({2}, 1.5)},
      {"rand", torch::rand({2})},
      {"randn", torch::randn({2}, torch::requires_grad())},
      {"randint", torch::randint(5, {2})},
      {"arange", torch::arange(4)},
      {"linspace", torch::linspace(0, 1, 4)},
      {"eye", torch::eye(3)},
      {"hann_window", torch::hann_window(4)},
      {"scalar_tensor", torch::scalar_tensor(2)},
      {"tensor of a number", torch::tensor(2.5)},
      {"at::ones", at::ones({2})},
  };
  for (const auto& [name, tensor] : made) EXPECT_EQ(tensor.device().type(), kElsewhere) << name;
}

TEST(DefaultDevice, YieldsToADeviceThatIsNamed) {
  std::vector<float> memory = {1, 2};
  const Tensor on_host = torch::ones({2, 2});
  const at::Generator of_host = at::detail::createCPUGenerator(3);
  const DefaultDeviceScope scope(kElsewhere);
  const std::vector<std::pair<const char*, Tensor>> made = {
      {"named", torch::empty({2}, torch::kCPU)},
      {"named beside a dtype", torch::zeros({2}, torch::device(torch::kCPU).dtype(torch::kLong))},
      {"by its generator", torch::randperm(4, of_host)},
      {"like another", torch::zeros_like(on_host)},
      {"new like another", on_host.new_full({3}, 2)},
      {"converted", on_host.to(torch::kDouble)},
      {"copied", on_host.clone()},
      {"a list's copy", torch::tensor({1, 2})},
      {"a view of memory", torch::from_blob(memory.data(), {2})},
  };
  for (const auto& [name, tensor] : made) EXPECT_TRUE(tensor.device().is_cpu()) << name;
}

// Forward and backward. Kernels make tensors for themselves, and do not always name a device.
TEST(DefaultDevice, ChangesNothingAboutComputing) {
  const torch::TensorOptions host(torch::kCPU);
  const Tensor weights = torch::rand({5}, host);
  const auto run = [&] {
    torch::manual_seed(5);
    const Tensor x = torch::randn({40}, host).requires_grad_();
    const Tensor loss = torch::nn::functional::cross_entropy(
        x.view({8, 5}).matmul(weights.diag()), torch::ones({8}, host.dtype(torch::kLong)));
    loss.backward();
    const Tensor values = x.detach();
    return std::vector<Tensor>{loss.detach(),
                               x.grad(),
                               std::get<0>(values.sort()),
                               values.abs().multinomial(3),
                               std::get<0>(at::_unique(values.gt(0))),
                               values.nonzero(),
                               values.index({values.gt(0)}),
                               values.quantile(0.3),
                               torch::fft_rfft(values).abs()};
  };
  const std::vector<Tensor> expected = run();
  const DefaultDeviceScope scope(kElsewhere);
  const std::vector<Tensor> results = run();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(results[i].device().is_cpu()) << i;
    EXPECT_TRUE(results[i].equal(expected[i])) << i;
  }
}

TEST(DefaultDevice, IsThatOfTheInnermostScope) {
  const auto device = [] { return torch::empty({1}).device().type(); };
  EXPECT_EQ(device(), c10::kCPU);
  {
    const DefaultDeviceScope outer(kElsewhere);
    {
      const DefaultDeviceScope inner(c10::kCPU);
      EXPECT_EQ(device(), c10::kCPU);
      const DefaultDeviceScope innermost(kElsewhere);
      EXPECT_EQ(device(), kElsewhere);
    }
    EXPECT_EQ(device(), kElsewhere);
  }
  EXPECT_EQ(device(), c10::kCPU);
  try {
    const DefaultDeviceScope scope(kElsewhere);
    throw std::runtime_error("from a constructor");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(device(), c10::kCPU);
}

TEST(DefaultDevice, GivesTheHostTheSameValuesAsNoScope) {
  torch::manual_seed(7);
  const auto plain = some_layers();
  torch::manual_seed(7);
  const DefaultDeviceScope scope(c10::kCPU);
  const auto scoped = some_layers();
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_TRUE(scoped->parameters()[i].equal(plain->parameters()[i])) << i;
  }
}

TEST(DefaultDevice, DoesNotReachOtherThreads) {
  const DefaultDeviceScope scope(kElsewhere);
  c10::DeviceType there = kElsewhere;
  std::thread([&] { there = torch::empty({1}).device().type(); }).join();
  EXPECT_EQ(there, c10::kCPU);
}

}  // namespace
}  // namespace accelerate
