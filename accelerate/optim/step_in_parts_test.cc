#include "accelerate/optim/step_in_parts.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/optim/foreach_optimizers.h"

namespace accelerate {
namespace {

using torch::Tensor;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

std::vector<Tensor> make_parameters() {
  std::vector<Tensor> parameters;
  for (const int numel : {3, 5, 1, 7, 4}) {
    parameters.push_back(torch::cos(torch::arange(1. * numel)).set_requires_grad(true));
  }
  return parameters;
}

// Steps of which the one in the middle has no gradient for one parameter.
std::vector<Tensor> train(const Make& make, bool in_parts, int64_t elements) {
  std::vector<Tensor> parameters = make_parameters();
  const auto optimizer = make(parameters);
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad().reset();
      if (step == 1 && i == 2) continue;
      parameters[i].mutable_grad() =
          torch::sin(torch::arange(1. * parameters[i].numel()) + step + 1. * i);
    }
    in_parts ? step_in_parts(*optimizer, elements) : void(optimizer->step());
  }
  return parameters;
}

TEST(StepInParts, UpdatesAsOneStepDoes) {
  const std::vector<Make> optimizers = {
      [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.1); },
      [](auto p) { return std::make_unique<torch::optim::Adam>(p); },
      [](auto p) { return std::make_unique<torch::optim::AdamW>(p); },
      [](auto p) { return std::make_unique<torch::optim::Adagrad>(p); },
      [](auto p) { return std::make_unique<torch::optim::RMSprop>(p); },
      [](auto p) { return std::make_unique<optim::Lion>(p); },
      [](auto p) { return std::make_unique<optim::Lamb>(p); },
      // Counts its steps for all parameters together.
      [](auto p) { return std::make_unique<optim::ScheduleFreeAdamW>(p); },
  };
  for (size_t o = 0; o < optimizers.size(); ++o) {
    const std::vector<Tensor> expected = train(optimizers[o], false, 0);
    for (const int64_t elements : {0, 1, 4, 8, 100}) {
      const std::vector<Tensor> parameters = train(optimizers[o], true, elements);
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(torch::equal(parameters[i], expected[i])) << o << ", " << elements << ", " << i;
      }
    }
    EXPECT_EQ(can_step_in_parts(*optimizers[o](make_parameters())), o + 1 < optimizers.size());
  }
}

// Notes how many parameters have gradients in a step.
class Noting : public torch::optim::SGD {
 public:
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    int count = 0;
    for (const Tensor& each : param_groups()[0].params()) count += each.grad().defined() ? 1 : 0;
    counts.push_back(count);
    if (count == fails_at) throw std::runtime_error("in the step");
    return SGD::step(std::move(closure));
  }
  std::vector<int> counts;
  int fails_at = -1;
};

TEST(StepInParts, CastsGradientsOfOnePartAtATimeAndLeavesThem) {
  std::vector<Tensor> parameters = make_parameters(), same = make_parameters();
  Noting optimizer(parameters, 0.1);
  torch::optim::SGD whole(same, 0.1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = torch::full({parameters[i].numel()}, 0.3, torch::kBFloat16);
    parameters[i].mutable_grad() = gradient;
    same[i].mutable_grad() = gradient.to(torch::kFloat);
  }
  step_in_parts(optimizer, 8);
  whole.step();
  EXPECT_EQ(optimizer.counts, (std::vector<int>{2, 2, 1}));
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], same[i]));
    EXPECT_EQ(parameters[i].grad().scalar_type(), torch::kBFloat16);
  }
  // One that fails leaves the gradients.
  optimizer.fails_at = 1;
  EXPECT_THROW(step_in_parts(optimizer, 8), std::runtime_error);
  for (const Tensor& each : parameters) EXPECT_EQ(each.grad().scalar_type(), torch::kBFloat16);
}

// Notes the parts, of which a parameter needs 4 bytes for each element.
class NotedParts final : public AroundParts {
 public:
  explicit NotedParts(int64_t max_bytes) : max_bytes_(max_bytes) {}
  int64_t bytes_of(const Tensor& parameter) override { return 4 * parameter.numel(); }
  int64_t max_bytes() override { return max_bytes_; }
  void begin(const std::vector<std::vector<Tensor>>& parts) override {
    for (const auto& part : parts) sizes.push_back(static_cast<int>(part.size()));
  }
  void before(size_t part) override { calls += " before " + std::to_string(part); }
  void after(size_t part, bool failed) override {
    calls += (failed ? " failed " : " after ") + std::to_string(part);
  }

  std::vector<int> sizes;
  std::string calls;

 private:
  const int64_t max_bytes_;
};

// Parameters of 12, 20, 4, 28 and 16 bytes.
TEST(StepInParts, FillsAPartsMemoryAndTellsOfEachPart) {
  const auto sizes = [](int64_t elements, int64_t max_bytes) {
    std::vector<Tensor> parameters = make_parameters();
    torch::optim::SGD optimizer(parameters, 0.1);
    for (const Tensor& each : parameters) each.mutable_grad() = torch::ones_like(each);
    NotedParts parts(max_bytes);
    step_in_parts(optimizer, elements, &parts);
    return parts.sizes;
  };
  EXPECT_EQ(sizes(0, 0), (std::vector<int>{5}));
  EXPECT_EQ(sizes(0, 32), (std::vector<int>{2, 2, 1})) << "one part has just as much";
  EXPECT_EQ(sizes(0, 31), (std::vector<int>{1, 2, 1, 1}));
  EXPECT_EQ(sizes(0, 1), (std::vector<int>{1, 1, 1, 1, 1})) << "a parameter is not divided";
  EXPECT_EQ(sizes(3, 80), (std::vector<int>{1, 1, 2, 1}));
  EXPECT_EQ(sizes(3, 31), (std::vector<int>{1, 1, 1, 1, 1})) << "whatever ends first";

  std::vector<Tensor> parameters = make_parameters();
  Noting optimizer(parameters, 0.1);
  for (const Tensor& each : parameters) each.mutable_grad() = torch::ones_like(each);
  NotedParts whole(32), failing(32);
  step_in_parts(optimizer, 0, &whole);
  EXPECT_EQ(whole.calls, " before 0 after 0 before 1 after 1 before 2 after 2");
  optimizer.fails_at = 1;
  EXPECT_THROW(step_in_parts(optimizer, 0, &failing), std::runtime_error);
  EXPECT_EQ(failing.calls, " before 0 after 0 before 1 after 1 before 2 failed 2");
}

}  // namespace
}  // namespace accelerate
