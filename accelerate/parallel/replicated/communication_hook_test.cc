#include "accelerate/parallel/replicated/communication_hook.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/parallel/replicated/ddp.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;
using Type = DDPCommunicationHookType;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Ranks are threads, which share a generator: nothing is drawn.
torch::nn::Sequential made_net() {
  torch::nn::Sequential net(torch::nn::Linear(12, 16), torch::nn::Tanh(), torch::nn::Linear(16, 8),
                            torch::nn::Tanh(), torch::nn::Linear(8, 4));
  torch::NoGradGuard no_grad;
  for (Tensor& parameter : net->parameters()) {
    parameter.copy_(torch::sin(torch::arange(1. * parameter.numel())).view_as(parameter) / 3);
  }
  return net;
}

// Gradients of all parameters, one after the other, after `steps` steps of SGD.
Tensor trained(const Group& group, const DistributedDataParallelKwargs& options, int steps) {
  FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
  const RuntimeScope scope(runtime);
  auto net = made_net();
  DistributedDataParallel ddp(net.ptr(), group, options);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::vector<Tensor> gradients;
  for (int step = 0; step < steps; ++step) {
    net->zero_grad();
    const Tensor x =
        torch::sin(torch::arange(72.).reshape({6, 12}) * (1 + group->getRank()) + step);
    ddp.before_forward();
    Tensor y = ddp.after_forward({net->forward(x)})[0];
    (y - x.sum(1, true)).square().mean().backward();
    gradients.clear();
    for (const Tensor& parameter : net->parameters())
      gradients.push_back(parameter.grad().flatten());
    sgd.step();
  }
  return torch::cat(gradients);
}

struct Case {
  const char* name;
  DistributedDataParallelKwargs options;
};

class Hooks : public ::testing::TestWithParam<Case> {};

TEST_P(Hooks, GiveWhatAnAllReduceGives) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](const Group& group) {
      DistributedDataParallelKwargs plain = GetParam().options;
      plain.comm_hook = plain.comm_wrapper = Type::kNo;
      const Tensor expected = trained(group, plain, 3);
      const Tensor got = trained(group, GetParam().options, 3);
      EXPECT_TRUE(torch::allclose(got, expected, 1e-2, 1e-2 * expected.abs().max().item<double>()));
      EXPECT_FALSE(torch::equal(got, expected)) << "nothing was compressed";
      std::vector<std::vector<Tensor>> all(1, std::vector<Tensor>(group->getSize()));
      for (Tensor& one : all[0]) one = torch::empty_like(got);
      std::vector<Tensor> mine{got};
      group->allgather(all, mine)->wait();
      for (const Tensor& other : all[0]) EXPECT_TRUE(torch::equal(other, got));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Hooks,
    ::testing::Values(
        Case{"fp16", {.comm_hook = Type::kFp16}}, Case{"bf16", {.comm_hook = Type::kBf16}},
        Case{"fp16_small_buckets", {.bucket_cap_mb = 1e-4, .comm_hook = Type::kFp16}},
        Case{"bf16_views", {.gradient_as_bucket_view = true, .comm_hook = Type::kBf16}},
        Case{"bf16_unused", {.find_unused_parameters = true, .comm_hook = Type::kBf16}},
        Case{"static_graph", {.static_graph = true, .comm_hook = Type::kFp16}},
        Case{"wrapper_alone", {.comm_wrapper = Type::kFp16}},
        Case{"fp16_in_bf16", {.comm_hook = Type::kFp16, .comm_wrapper = Type::kBf16}}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(MakeHook, TakesComplexGradients) {
  for (const Type type : {Type::kFp16, Type::kBf16, Type::kPowerSgd}) {
    run_ranks(2, [type](const Group& group) {
      FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
      const RuntimeScope scope(runtime);
      const auto hook = make_communication_hook(
          {.comm_hook = type, .comm_state_option = {.start_powerSGD_iter = 2}});
      const Tensor parameter = torch::zeros({3, 4}, torch::kComplexFloat);
      for (int step = 0; step < 4; ++step) {
        const Tensor part = torch::full({12}, 1. + 2 * group->getRank());
        c10d::GradBucket bucket(0, 1, torch::complex(part, -part), {0}, {12}, {parameter.sizes()},
                                {parameter}, std::nullopt);
        auto done = hook->reduce(group, bucket);
        done->waitAndThrow();
        const Tensor two = torch::full({12}, 2.);
        EXPECT_TRUE(torch::allclose(done->value().toTensor(), torch::complex(two, -two), 1e-2));
      }
    });
  }
}

// A gradient is beyond the largest number of fp16, and the mean is not.
TEST(MakeHook, HasMeansOfGradientsThatTheTypeLacks) {
  for (const DistributedDataParallelKwargs& options :
       {DistributedDataParallelKwargs{.comm_hook = Type::kFp16},
        DistributedDataParallelKwargs{.comm_wrapper = Type::kFp16},
        DistributedDataParallelKwargs{.comm_hook = Type::kFp16, .comm_wrapper = Type::kFp16}}) {
    run_ranks(2, [&options](const Group& group) {
      FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
      const RuntimeScope scope(runtime);
      const auto hook = make_communication_hook(options);
      const Tensor parameter = torch::zeros({2});
      c10d::GradBucket bucket(0, 1, torch::full({2}, group->getRank() == 0 ? 1e5 : 2e4), {0}, {2},
                              {parameter.sizes()}, {parameter}, std::nullopt);
      auto done = hook->reduce(group, bucket);
      done->waitAndThrow();
      EXPECT_TRUE(torch::allclose(done->value().toTensor(), torch::full({2}, 6e4), 1e-3));
    });
  }
}

// A third has more bits than bf16: divided there, the sum would be the next number, 1.0625.
TEST(CastHook, DividesInALargerType) {
  run_ranks(3, [](const Group& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    CastHook hook(torch::kFloat, std::make_unique<MeanHook>());
    const Tensor parameter = torch::zeros({2}, torch::kBFloat16);
    const Tensor gradient =
        torch::full({2}, group->getRank() == 2 ? 1.171875 : 1., torch::kBFloat16);
    c10d::GradBucket bucket(0, 1, gradient, {0}, {2}, {parameter.sizes()}, {parameter},
                            std::nullopt);
    auto done = hook.reduce(group, bucket);
    done->waitAndThrow();
    EXPECT_TRUE(
        torch::equal(done->value().toTensor(), torch::full({2}, 1.0546875, torch::kBFloat16)));
  });
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(MakeHook, RefusesContradictions) {
  EXPECT_EQ(make_communication_hook({}), nullptr);
  EXPECT_THAT(error_of([] { make_communication_hook({.comm_wrapper = Type::kPowerSgd}); }),
              AllOf(HasSubstr("comm_wrapper"), HasSubstr("power_sgd")));
}

Tensor rounded(const Tensor& x, double amax) {
  const float scale = static_cast<float>(448 / amax);
  return (x * scale).to(at::kFloat8_e4m3fn).to(at::kFloat) * (1 / scale);
}

// Rank r's gradient; amaxes are powers of two times 7, so that scales are exact.
Tensor gradient_of(int rank, double amax) {
  Tensor gradient = torch::arange(20, at::kFloat) * 0.013 * (rank + 1);
  gradient[0] = amax * (rank + 1) / 2;
  return gradient;
}

TEST(QuantizeGradients, UsesTheScaleOfTheLargest) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const int rank = group->getRank();
    const Tensor a = gradient_of(rank, 7), b = gradient_of(rank, 28);
    const Tensor expected_a = rounded(a, 7), expected_b = rounded(b, 28);
    quantize_gradients({a, Tensor(), b}, group.get());
    EXPECT_TRUE(a.equal(expected_a));
    EXPECT_TRUE(b.equal(expected_b));
  });
}

TEST(QuantizeGradients, MakesAllRanksSeeWhatIsNotFinite) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const Tensor bad = torch::ones({4}), good = torch::full({4}, 7.f);
    if (group->getRank() == 1) bad[2] = std::numeric_limits<float>::quiet_NaN();
    quantize_gradients({bad, good}, group.get());
    EXPECT_TRUE(bad.isnan().all().item<bool>());
    EXPECT_TRUE(good.equal(torch::full({4}, 7.f)));
  });
}

TEST(QuantizeGradients, NeedsNoGroupAndNoGradients) {
  quantize_gradients({}, nullptr);
  quantize_gradients({Tensor()}, nullptr);
  const Tensor empty = torch::empty({0}), zeros = torch::zeros({3}),
               half = torch::randn({8}).to(at::kHalf);
  quantize_gradients({empty, zeros, half}, nullptr);
  EXPECT_TRUE(zeros.equal(torch::zeros({3})));
  EXPECT_EQ(half.scalar_type(), at::kHalf);
}

TEST(Fp8GradientHook, RoundsTheGradientsOfItsWeightsOnly) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const Tensor weight = torch::zeros({4, 5}), bias = torch::zeros({20});
    const Tensor buffer =
        torch::cat({gradient_of(group->getRank(), 7), gradient_of(group->getRank(), 7)});
    // The bucket does not own the shapes.
    c10d::GradBucket bucket(0, 1, buffer, {0, 20}, {20, 20}, {weight.sizes(), bias.sizes()},
                            {weight, bias}, std::nullopt);
    Fp8GradientHook hook({weight}, std::make_unique<MeanHook>());
    hook.reduce(group, bucket)->waitAndThrow();
    const Tensor one = gradient_of(0, 7), two = gradient_of(1, 7);
    EXPECT_TRUE(buffer.narrow(0, 0, 20).equal(rounded(one, 7) / 2 + rounded(two, 7) / 2));
    EXPECT_TRUE(buffer.narrow(0, 20, 20).equal(one / 2 + two / 2));
  });
}

}  // namespace
}  // namespace accelerate
