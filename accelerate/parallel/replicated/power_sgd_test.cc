#include "accelerate/parallel/replicated/communication_hook.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/tensors/state_dict.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Matrices = PowerSgdHook::Matrices;
using ::testing::HasSubstr;

// Two matrices of one shape, a larger one, a vector and a scalar.
const std::vector<std::vector<int64_t>> kShapes{{6, 8}, {10}, {6, 8}, {12, 3, 5}, {}, {0, 4}};

struct Model {
  Model() {
    for (const std::vector<int64_t>& shape : kShapes) parameters.push_back(torch::zeros(shape));
    for (const Tensor& parameter : parameters) {
      offsets.push_back(size);
      lengths.push_back(parameter.numel());
      sizes.push_back(parameter.sizes());
      size += parameter.numel();
    }
  }
  // All of it is one bucket.
  c10d::GradBucket bucket(const Tensor& gradients) const {
    return c10d::GradBucket(0, 1, gradients, offsets, lengths, sizes, parameters, std::nullopt);
  }

  std::vector<Tensor> parameters;
  std::vector<size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  int64_t size = 0;
};

Tensor gradients_of(int rank, int step, int64_t size) {
  return torch::sin(torch::arange(1. * size) * (1.3 + rank) + step);
}

Tensor mean_gradients(int ranks, int step, int64_t size) {
  Tensor sum = torch::zeros({size});
  for (int rank = 0; rank < ranks; ++rank) sum += gradients_of(rank, step, size);
  return sum / ranks;
}

// What comes out of `steps` steps, one after the other; the gradients are those of `step_of(step)`.
std::vector<Tensor> reduced(
    const Group& group, const PowerSgdOptions& options, Matrices matrices, int steps,
    const std::function<int(int)>& step_of = [](int step) { return step; }) {
  FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
  const RuntimeScope scope(runtime);
  const Model model;
  PowerSgdHook hook(options, matrices);
  std::vector<Tensor> results;
  for (int step = 0; step < steps; ++step) {
    results.push_back(gradients_of(group->getRank(), step_of(step), model.size));
    c10d::GradBucket bucket = model.bucket(results.back());
    auto done = hook.reduce(group, bucket);
    done->waitAndThrow();
  }
  return results;
}

void expect_same_on_all_ranks(const Group& group, const Tensor& tensor) {
  std::vector<std::vector<Tensor>> all(1);
  for (int rank = 0; rank < group->getSize(); ++rank) all[0].push_back(torch::empty_like(tensor));
  std::vector<Tensor> mine{tensor};
  group->allgather(all, mine)->wait();
  for (const Tensor& other : all[0]) EXPECT_TRUE(torch::equal(other, tensor));
}

struct Case {
  const char* name;
  PowerSgdOptions options;
  Matrices matrices = Matrices::kParameters;
};

// A rank as large as the matrices are.
constexpr PowerSgdOptions kFull{
    .matrix_approximation_rank = 64, .start_powerSGD_iter = 2, .min_compression_rate = 1e-3};

PowerSgdOptions full(const std::function<void(PowerSgdOptions&)>& change) {
  PowerSgdOptions options = kFull;
  change(options);
  return options;
}

class FullRank : public ::testing::TestWithParam<Case> {};

TEST_P(FullRank, IsNearlyExact) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [ranks](const Group& group) {
      const std::vector<Tensor> got = reduced(group, GetParam().options, GetParam().matrices, 5);
      for (int step = 0; step < 5; ++step) {
        const Tensor expected = mean_gradients(ranks, step, got[step].numel());
        EXPECT_TRUE(torch::allclose(got[step], expected, 1e-2, 1e-4)) << "step " << step;
        expect_same_on_all_ranks(group, got[step]);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FullRank,
    ::testing::Values(Case{"by_default", kFull}, Case{"whole_bucket", kFull, Matrices::kBucket},
                      Case{"in_batches", full([](auto& options) {
                             options.batch_tensors_with_same_shape = true;
                           })},
                      Case{"gram_schmidt",
                           full([](auto& options) { options.orthogonalization_epsilon = 1e-8; })},
                      Case{"without_memory", full([](auto& options) {
                             options.use_error_feedback = options.warm_start = false;
                             options.start_powerSGD_iter = 0;
                           })},
                      Case{"whole_bucket_without_memory", full([](auto& options) {
                             options.use_error_feedback = options.warm_start = false;
                             options.start_powerSGD_iter = 0;
                           }),
                           Matrices::kBucket}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(PowerSgd, ReducesExactlyBeforeItStartsAndWhatDoesNotShrink) {
  run_ranks(2, [](const Group& group) {
    const PowerSgdOptions options{.start_powerSGD_iter = 3, .min_compression_rate = 1.5};
    const std::vector<Tensor> got = reduced(group, options, Matrices::kParameters, 4);
    for (int step = 0; step < 4; ++step) {
      const Tensor expected = mean_gradients(2, step, got[step].numel());
      const bool compresses = step == 3;
      EXPECT_EQ(torch::allclose(got[step], expected), !compresses) << step;
      // The vector, after the first matrix.
      EXPECT_TRUE(torch::allclose(got[step].narrow(0, 48, 10), expected.narrow(0, 48, 10)));
    }
    // 48 / (6 + 8) is 3.4, 180 / (12 + 15) is 6.7.
    const std::vector<Tensor> some = reduced(
        group, {.start_powerSGD_iter = 2, .min_compression_rate = 5}, Matrices::kParameters, 3);
    const Tensor expected = mean_gradients(2, 2, some[2].numel());
    EXPECT_TRUE(torch::allclose(some[2].narrow(0, 0, 106), expected.narrow(0, 0, 106)));
    EXPECT_FALSE(torch::allclose(some[2].narrow(0, 106, 180), expected.narrow(0, 106, 180)));
  });
}

// What one step loses comes in a later one: over many steps with the same gradients, the mean of
// what comes out is right.
double error_after(const Group& group, const PowerSgdOptions& options, Matrices matrices) {
  constexpr int kSteps = 80;
  const auto results = reduced(group, options, matrices, kSteps, [](int) { return 0; });
  const Tensor expected = mean_gradients(group->getSize(), 0, results[0].numel());
  const Tensor mean = torch::stack(results).mean(0);
  return ((mean - expected).norm() / expected.norm()).item<double>();
}

TEST(PowerSgd, FeedsBackWhatItLost) {
  run_ranks(2, [](const Group& group) {
    for (const Matrices matrices : {Matrices::kParameters, Matrices::kBucket}) {
      PowerSgdOptions options{.start_powerSGD_iter = 2, .min_compression_rate = 1e-3};
      const double with = error_after(group, options, matrices);
      options.use_error_feedback = false;
      const double without = error_after(group, options, matrices);
      EXPECT_LT(with, 0.1);
      EXPECT_GT(without, 0.3);
    }
  });
}

TEST(PowerSgd, ConvergesWhereOneRankIsNotEnough) {
  run_ranks(3, [](const Group& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    // y = A x, each rank with data of its own; A has full rank.
    const Tensor truth = torch::sin(torch::arange(48.) * 2.7).view({6, 8});
    const Tensor x = torch::sin(torch::arange(160.) * (1.7 + group->getRank())).view({20, 8});
    Tensor weight = torch::zeros({6, 8}), plain = torch::zeros({6, 8});
    const auto gradient_at = [&](const Tensor& at) -> Tensor {
      return (x.matmul((at - truth).t()).t().matmul(x) / 20).flatten();
    };
    PowerSgdHook hook({.start_powerSGD_iter = 2, .min_compression_rate = 1e-3},
                      Matrices::kParameters);
    for (int step = 0; step < 200; ++step) {
      std::vector<Tensor> exact{gradient_at(plain)};
      group->allreduce(exact)->wait();
      plain = plain - 0.2 * exact[0].view({6, 8}) / 3;
      Tensor gradient = gradient_at(weight);
      c10d::GradBucket bucket(0, 1, gradient, {0}, {48}, {weight.sizes()}, {weight}, std::nullopt);
      hook.reduce(group, bucket)->waitAndThrow();
      weight = weight - 0.2 * gradient.view({6, 8});
    }
    EXPECT_LT((weight - plain).abs().max().item<double>(), 1e-2);
    expect_same_on_all_ranks(group, weight);
  });
}

TEST(PowerSgd, FollowsFromItsSeed) {
  run_ranks(2, [](const Group& group) {
    PowerSgdOptions options{.start_powerSGD_iter = 2, .random_seed = 7};
    auto last = [&] { return reduced(group, options, Matrices::kParameters, 4).back(); };
    const Tensor once = last();
    EXPECT_TRUE(torch::equal(last(), once));
    options.random_seed = 8;
    EXPECT_FALSE(torch::equal(last(), once));
  });
}

TEST(PowerSgd, ForgetsInfiniteGradients) {
  run_ranks(2, [](const Group& group) {
    for (const Matrices matrices : {Matrices::kParameters, Matrices::kBucket}) {
      FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
      const RuntimeScope scope(runtime);
      const Model model;
      PowerSgdHook hook(kFull, matrices);
      for (int step = 0; step < 6; ++step) {
        Tensor gradients = gradients_of(group->getRank(), step, model.size);
        if (step == 3 && group->getRank() == 1) {
          gradients[5] = std::numeric_limits<float>::infinity();
        }
        c10d::GradBucket bucket = model.bucket(gradients);
        hook.reduce(group, bucket)->waitAndThrow();
        EXPECT_EQ(torch::isfinite(gradients).all().item<bool>(), step != 3);
        if (step == 3) continue;
        EXPECT_TRUE(torch::allclose(gradients, mean_gradients(2, step, model.size), 1e-2, 1e-4))
            << step;
      }
    }
  });
}

TEST(PowerSgd, TakesZerosAndSmallDtypes) {
  run_ranks(2, [](const Group& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    const Model model;
    for (const double epsilon : {0., 1e-8}) {
      PowerSgdOptions options = kFull;
      options.orthogonalization_epsilon = epsilon;
      PowerSgdHook hook(options, Matrices::kParameters);
      for (int step = 0; step < 6; ++step) {
        // The gradients of a step vanish, and come back.
        Tensor expected = mean_gradients(2, step, model.size) * (step != 3);
        Tensor gradients = gradients_of(group->getRank(), step, model.size) * (step != 3);
        c10d::GradBucket bucket = model.bucket(gradients);
        hook.reduce(group, bucket)->waitAndThrow();
        EXPECT_TRUE(torch::allclose(gradients, expected, 1e-2, 1e-4)) << step;
      }
    }
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
      PowerSgdHook hook(kFull, Matrices::kParameters);
      for (int step = 0; step < 4; ++step) {
        Tensor gradients = gradients_of(group->getRank(), step, model.size).to(dtype);
        c10d::GradBucket bucket = model.bucket(gradients);
        hook.reduce(group, bucket)->waitAndThrow();
        const Tensor expected = mean_gradients(2, step, model.size);
        EXPECT_LT((gradients.to(at::kFloat) - expected).abs().max().item<double>(), 5e-2) << dtype;
      }
    }
  });
}

TEST(PowerSgd, RefusesContradictions) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  auto error_of = [](const PowerSgdOptions& options) -> std::string {
    try {
      PowerSgdHook hook(options, Matrices::kParameters);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  const std::vector<std::pair<PowerSgdOptions, const char*>> wrong{
      {{.matrix_approximation_rank = 0}, "matrix_approximation_rank"},
      {{.start_powerSGD_iter = 1}, "at least 2"},
      {{.start_powerSGD_iter = 1, .use_error_feedback = false}, "warm_start"},
      {{.start_powerSGD_iter = -1, .use_error_feedback = false, .warm_start = false}, "negative"},
      {{.min_compression_rate = 0}, "min_compression_rate"},
      {{.orthogonalization_epsilon = -1e-3}, "orthogonalization_epsilon"},
      {{.compression_stats_logging_frequency = 0}, "compression_stats_logging_frequency"}};
  for (const auto& [options, text] : wrong) EXPECT_THAT(error_of(options), HasSubstr(text));
  EXPECT_EQ(error_of({.start_powerSGD_iter = 0, .use_error_feedback = false, .warm_start = false}),
            "no error");
}

// A hook that goes on where another one stood.
TEST(PowerSgd, GoesOnBitEqualFromItsState) {
  run_ranks(2, [](const Group& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    const Model model;
    const auto reduce = [&](PowerSgdHook& hook, int step) {
      Tensor gradients = gradients_of(group->getRank(), step, model.size);
      c10d::GradBucket bucket = model.bucket(gradients);
      hook.reduce(group, bucket)->waitAndThrow();
      return gradients;
    };
    for (const Matrices matrices : {Matrices::kParameters, Matrices::kBucket}) {
      const PowerSgdOptions options{.start_powerSGD_iter = 2,
                                    .min_compression_rate = 1e-3,
                                    .orthogonalization_epsilon = 1e-8};
      PowerSgdHook hook(options, matrices);
      for (int step = 0; step < 6; ++step) {
        StateDict saved = hook.state_dict();
        for (auto& [name, tensor] : saved.tensors) tensor = tensor.clone();
        PowerSgdHook resumed(options, matrices);
        resumed.load_state_dict(saved);
        EXPECT_EQ(resumed.state_dict().values, hook.state_dict().values);
        std::vector<Tensor> as_saved;
        for (const auto& [name, tensor] : saved.tensors) as_saved.push_back(tensor.clone());
        const Tensor expected = reduce(hook, step);
        EXPECT_TRUE(torch::equal(reduce(resumed, step), expected)) << "step " << step;
        // A state may be loaded into several hooks.
        for (size_t i = 0; i < as_saved.size(); ++i) {
          EXPECT_TRUE(torch::equal(saved.tensors[i].second, as_saved[i])) << saved.tensors[i].first;
        }
      }
    }
  });
}

TEST(PowerSgd, SaysWhatIsNoStateOfIts) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  PowerSgdHook hook({}, Matrices::kParameters);
  const StateDict saved = hook.state_dict();
  const auto error_with = [&](const std::function<void(StateDict&)>& change) -> std::string {
    StateDict bad = saved;
    change(bad);
    try {
      hook.load_state_dict(bad);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_EQ(error_with([](StateDict&) {}), "no error");
  EXPECT_THAT(error_with([](StateDict& state) { state.values = nullptr; }),
              HasSubstr("not an object"));
  EXPECT_THAT(error_with([](StateDict& state) { state.values["iteration"] = -1; }),
              HasSubstr("counts -1"));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors.clear(); }),
              HasSubstr("has no \"generator\""));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors[0].second = torch::zeros({3}); }),
              HasSubstr("a generator's state"));
  for (const char* name : {"error.", "q.x", "error.-1", "p.0"}) {
    EXPECT_THAT(error_with([name](StateDict& state) {
                  state.tensors.emplace_back(name, torch::zeros({3}));
                }),
                HasSubstr(std::string("has \"") + name));
  }
  EXPECT_THAT(
      error_with([](StateDict& state) { state.tensors.emplace_back("q.0", torch::zeros({3, 2})); }),
      HasSubstr("has \"q.0\""));
}

TEST(Orthogonalize, GivesOrthonormalColumns) {
  const Tensor matrices = torch::sin(torch::arange(2. * 7 * 3) * 1.9).view({2, 7, 3});
  for (const double epsilon : {0., 1e-8}) {
    Tensor columns = matrices.clone();
    internal::orthogonalize(columns, epsilon);
    EXPECT_TRUE(torch::allclose(torch::bmm(columns.transpose(1, 2), columns),
                                torch::eye(3).expand({2, 3, 3}), 1e-4, 1e-5));
  }
}

}  // namespace
}  // namespace accelerate
