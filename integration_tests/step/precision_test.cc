// Half precision on many ranks: who computes in what, and who leaves which step out.
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().cpu().clone());
  return copies;
}

bool are_equal(const std::vector<torch::Tensor>& one, const std::vector<torch::Tensor>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const auto& a, const auto& b) { return a.equal(b); });
}

struct NamedOutputImpl : torch::nn::Module {
  NamedOutputImpl() { layer = register_module("layer", torch::nn::Linear(4, 4)); }
  std::map<std::string, std::vector<torch::Tensor>> forward(const torch::Tensor& x) {
    torch::Tensor y = layer(x);
    inner = y.scalar_type();
    return {{"y", {y, y.sum()}}, {"count", {torch::ones({1}, torch::kLong)}}};
  }
  torch::nn::Linear layer{nullptr};
  torch::ScalarType inner = torch::kFloat;
};
TORCH_MODULE(NamedOutput);

TOPOLOGY_SUITE(Fp16, .also = {"1x1:h100", "1x2:h100", "2x4:h100"},
               .hardware = simulator::Hardware::kNoTpu);

// One rank gets an infinite value, in the forward pass or in its gradients alone; then a good step
// follows, whose result is known.
TEST_P(Fp16, AnInfiniteGradientOnOneRankMakesAllSkip) {
  for (const bool after_the_reduction : {false, true}) {
    Cluster cluster = make_cluster({.seed = 2});
    cluster.run_on_every_rank([&](Rank& rank) {
      // Small enough for fp16, so that only what is spoiled is infinite.
      Accelerator accelerator({.mixed_precision = PrecisionType::kFp16,
                               .kwargs_handlers = {GradScalerKwargs{.init_scale = 1024}}});
      torch::nn::Linear net(2, 1);
      torch::optim::SGD sgd(net->parameters(), 0.5);
      {
        torch::NoGradGuard no_grad;
        net->weight.fill_(0.25);
        net->bias.zero_();
      }
      torch::optim::StepLR decay(sgd, 1, 0.1);
      auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
      ASSERT_EQ(accelerator.scaler()->get_scale(), 1024);
      const int last = accelerator.num_processes() - 1;
      const auto options = torch::TensorOptions(accelerator.device());
      auto step = [&](double value, bool spoils) {
        torch::Tensor x = torch::full({1, 2}, value, options);
        accelerator.backward(model(x).sum());
        if (spoils && rank.index() == last) net->weight.mutable_grad().fill_(kInf);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
      };
      const auto before = copies(net->parameters());
      const bool bad_input = !after_the_reduction && rank.index() == last;
      step(bad_input ? kInf : 1.0, after_the_reduction);
      EXPECT_TRUE(optimizer.step_was_skipped());
      EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
      EXPECT_TRUE(are_equal(copies(net->parameters()), before));
      EXPECT_EQ(accelerator.scaler()->get_scale(), 512);
      EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.5) << "the schedule stands still";

      step(1.0, false);
      EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
      EXPECT_EQ(accelerator.scaler()->get_scale(), 512);
      EXPECT_EQ(accelerator.scaler()->get_growth_tracker(), 1);
      // d sum / d weight = 1 for each input, and the mean over ranks is 1 as well.
      EXPECT_TRUE(net->weight.cpu().equal(torch::full({1, 2}, -0.25)));
      EXPECT_TRUE(net->bias.cpu().equal(torch::full({1}, -0.5)));
    });
  }
}

TEST_P(Fp16, TheScaleBacksOffUntilGradientsAreFinite) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kFp16});
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    int skipped = 0;
    for (int i = 0; i < 12; ++i) {
      torch::Tensor x = torch::full({1, 1}, 256.0, torch::TensorOptions(accelerator.device()));
      accelerator.backward(model(x).sum());
      optimizer.step();
      skipped += optimizer.step_was_skipped();
      optimizer.zero_grad();
    }
    // 256 times a scale of 2^8 and more overflows fp16, whose largest value is 65504.
    EXPECT_EQ(skipped, 9);
    EXPECT_EQ(accelerator.scaler()->get_scale(), 128);
  });
}

TEST_P(Fp16, ClippingSeesGradientsWithoutTheScaleAndUnscalesOnce) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kFp16,
                             .kwargs_handlers = {GradScalerKwargs{.init_scale = 1024}}});
    torch::nn::Linear net(4, 1), other(4, 1);
    torch::optim::SGD sgd(net->parameters(), 1.0), second(other->parameters(), 1.0);
    auto [model, model2, optimizer, optimizer2] = accelerator.prepare(net, other, sgd, second);
    const torch::Tensor x = torch::ones({1, 4}, torch::TensorOptions(accelerator.device()));
    accelerator.backward(model(x).sum() + model2(x).sum());
    // Weights 1 1 1 1 and bias 1.
    EXPECT_NEAR(accelerator.clip_grad_norm_(model, 1.0).item<float>(), std::sqrt(5.0), 1e-5);
    EXPECT_NEAR(accelerator.clip_grad_norm_(model2, 1.0, kInf).item<float>(), 1.0, 1e-6);
    accelerator.unscale_gradients(optimizer);
    accelerator.clip_grad_value_(model2, 0.25);
    EXPECT_NEAR(net->bias.grad().item<float>(), 1 / std::sqrt(5.0), 1e-5);
    EXPECT_EQ(other->bias.grad().item<float>(), 0.25);
    optimizer.step();
    EXPECT_EQ(accelerator.scaler()->get_growth_tracker(), 0);
    optimizer2.step();
    EXPECT_EQ(accelerator.scaler()->get_growth_tracker(), 1) << "once for both";
  });
}

TEST_P(Fp16, OptionsReachTheScaler) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        {.mixed_precision = PrecisionType::kFp16,
         .kwargs_handlers = {GradScalerKwargs{.init_scale = 16, .backoff_factor = 0.25}}});
    EXPECT_EQ(accelerator.scaler()->get_scale(), 16);
    EXPECT_EQ(accelerator.scaler()->get_backoff_factor(), 0.25);
  });
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kBf16});
    EXPECT_EQ(accelerator.scaler(), nullptr);
  });
}

TOPOLOGY_SUITE(HalfOnManyRanks, .also = {"1x2:h100"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(HalfOnManyRanks, FollowsTheScaleWhereRanksEndEarly) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kFp16,
                             .dataloader_config = {.even_batches = false},
                             .kwargs_handlers = {GradScalerKwargs{.init_scale = 1024}}});
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    // Two batches for rank 0, one for the others.
    auto data = torch::ones({world_size() + 1, 1});
    data[world_size()].fill_(kInf);
    auto [model, optimizer, loader] = accelerator.prepare(
        net, sgd, DataLoader(make_tensor_dataset(data, data), {.batch_size = 1}));
    int steps = 0;
    {
      auto scope = accelerator.join_uneven_inputs(model);
      for (auto& [x, y] : loader) {
        accelerator.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
        ++steps;
      }
    }
    EXPECT_EQ(steps, rank.index() == 0 ? 2 : 1);
    EXPECT_EQ(accelerator.scaler()->get_scale(), 512) << "of the step that only rank 0 made";
    ASSERT_NE(accelerator.scaler()->group(), nullptr);
  });
}

TOPOLOGY_SUITE(Autocast, .also = {"1x1:h100", "1x2:h100"}, .hardware = simulator::Hardware::kNoTpu);

TEST_P(Autocast, ModelsComputeInHalfAndGiveFloat) {
  for (const auto precision : {PrecisionType::kBf16, PrecisionType::kFp16}) {
    make_cluster().run_on_every_rank([&](Rank&) {
      Accelerator accelerator({.mixed_precision = precision});
      NamedOutput net;
      auto model = accelerator.prepare(net);
      const auto half = precision == PrecisionType::kBf16 ? torch::kBFloat16 : torch::kHalf;
      auto output = model(torch::ones({2, 4}, torch::TensorOptions(accelerator.device())));
      EXPECT_EQ(net->inner, half);
      EXPECT_EQ(output.at("y")[0].scalar_type(), torch::kFloat);
      EXPECT_EQ(output.at("y")[1].scalar_type(), torch::kFloat);
      EXPECT_EQ(output.at("count")[0].scalar_type(), torch::kLong);
      accelerator.backward(output.at("y")[1]);
      EXPECT_EQ(net->layer->weight.grad().scalar_type(), torch::kFloat);
      // The module that was not wrapped computes as it always did.
      net->forward(torch::ones({2, 4}, torch::TensorOptions(accelerator.device())));
      EXPECT_EQ(net->inner, torch::kFloat);
    });
  }
}

TEST_P(Autocast, ScopesFollowTheJobAndItsHandler) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kBf16,
                             .kwargs_handlers = {AutocastKwargs{.enabled = false}}});
    const auto x = torch::ones({2, 2}, torch::TensorOptions(accelerator.device()));
    auto product = [&] { return torch::mm(x, x).scalar_type(); };
    {
      auto scope = accelerator.autocast();
      EXPECT_EQ(product(), torch::kFloat);
      auto inner = accelerator.autocast(AutocastKwargs{});
      EXPECT_EQ(product(), torch::kBFloat16);
    }
    {
      auto scope = get_mixed_precision_context_manager(/*native_amp=*/true);
      EXPECT_EQ(product(), torch::kBFloat16);
    }
    EXPECT_EQ(product(), torch::kFloat);
    torch::nn::Linear net(2, 2);
    auto model = accelerator.prepare(net);
    EXPECT_TRUE(model(x).equal(net(x))) << "models follow the handler";
  });
}

// Weights that were cast before a step, or in a pass without gradients, are not used again.
TEST(AutocastAroundSteps, TrainsAsWithoutAScope) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kBf16});
    torch::manual_seed(rank.index());
    const torch::Tensor x = torch::randn({4, 3});
    const auto train = [&](bool in_one_scope) {
      torch::manual_seed(7);
      torch::nn::Linear net(3, 2);
      torch::optim::SGD sgd(net->parameters(), 0.5);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      std::optional<AutocastScope> scope;
      if (in_one_scope) {
        scope.emplace(
            autocast_settings(accelerator.mixed_precision(), accelerator.device().type()));
      }
      for (int step = 0; step < 3; ++step) {
        {
          const torch::NoGradGuard no_grad;
          model(x);
        }
        const torch::Tensor loss = model(x).square().mean();
        const AutocastScope off = accelerator.autocast(AutocastKwargs{.enabled = false});
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      }
      return copies(net->parameters());
    };
    const std::vector<torch::Tensor> inside = train(true), outside = train(false);
    for (size_t i = 0; i < outside.size(); ++i) {
      EXPECT_TRUE(torch::allclose(inside[i], outside[i], 1e-5, 1e-6)) << i;
    }
  });
}

TEST_P(Fp16, TheEnvironmentChoosesItAndMistakesAreNamed) {
  make_cluster().run_on_every_rank([](Rank&) {
    auto scope = patch_environment({{"ACCELERATE_MIXED_PRECISION", "fp16"}});
    Accelerator accelerator;
    EXPECT_EQ(accelerator.mixed_precision(), PrecisionType::kFp16);
    EXPECT_NE(accelerator.scaler(), nullptr);
    torch::nn::Linear net(2, 2);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto optimizer = accelerator.prepare(sgd);
    EXPECT_THAT(error_of([&] { optimizer.step([] { return torch::ones({}); }); }),
                HasSubstr("closure"));
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("has a gradient"));
  });
}

// Replicas train alike, and like one rank with the whole batch up to half precision's digits.
TEST_P(HalfOnManyRanks, FollowsOneRank) {
  constexpr int kBatch = 8;
  if (kBatch % world_size() != 0) return;  // Shares must be whole.
  for (const auto precision : {PrecisionType::kBf16, PrecisionType::kFp16}) {
    auto trained = [&](Cluster cluster) {
      cluster.run_on_every_rank([&](Rank& rank) {
        AcceleratorOptions options{.mixed_precision = precision};
        // Small enough that no step is left out, whatever a rank's share of the batch.
        if (precision == PrecisionType::kFp16) {
          options.kwargs_handlers = {GradScalerKwargs{.init_scale = 1024}};
        }
        Accelerator accelerator(options);
        torch::manual_seed(3);
        torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(),
                                  torch::nn::Linear(8, 1));
        torch::optim::SGD sgd(net->parameters(), 0.05);
        auto x = torch::randn({32, 4});
        DataLoader data(make_tensor_dataset(x, x.sum(1, true)),
                        {.batch_size = kBatch / accelerator.num_processes()});
        auto [model, optimizer, loader] = accelerator.prepare(net.ptr(), sgd, data);
        for (int epoch = 0; epoch < 4; ++epoch) {
          for (auto& [input, target] : loader) {
            accelerator.backward(torch::mse_loss(model(input), target));
            optimizer.step();
            EXPECT_FALSE(optimizer.step_was_skipped());
            optimizer.zero_grad();
          }
        }
        rank.report("weights", torch::cat({net->parameters()[0].detach().cpu().flatten(),
                                           net->parameters()[2].detach().cpu().flatten()}));
      });
      return cluster.reports("weights");
    };
    const auto one = trained(Cluster("1x1:h100"));
    const auto many = trained(make_cluster({.seed = 4}));
    for (const auto& weights : many) EXPECT_TRUE(weights.equal(many[0]));
    EXPECT_TRUE(torch::allclose(one[0], many[0], 2e-2, 2e-3));
  }
}

}  // namespace
}  // namespace accelerate
