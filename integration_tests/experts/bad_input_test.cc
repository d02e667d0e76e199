// What programs are told about experts that ranks along ep cannot divide: one sentence each, with
// the nearest thing that works.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/experts/expert_training.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

// What all ranks are told alike when a model is prepared.
std::string refused(const std::string& cluster, const AcceleratorOptions& options,
                    const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  Cluster ranks(cluster);
  std::vector<std::string> errors(static_cast<size_t>(ranks.world_size()));
  ranks.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options);
    errors[static_cast<size_t>(rank.index())] =
        value_error_of([&] { accelerator.prepare(make()); });
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

std::shared_ptr<torch::nn::Module> mixture(int64_t experts) {
  return std::make_shared<MixtureOfExpertsImpl>(
      MixtureOptions{.hidden = 8, .intermediate = 8, .router = {.experts = experts}});
}

AcceleratorOptions with(const ParallelismOptions& sizes) {
  return {.parallelism_config = ParallelismConfig(sizes, Environment())};
}

TEST(Experts, ThatRanksDoNotDivideEvenlyAreRefused) {
  EXPECT_THAT(
      refused("1x4:h100", with({.dp_shard_size = 4, .ep_size = 4}), [] { return mixture(6); }),
      AllOf(HasSubstr("has 6 experts, which the 4 ranks along ep do not divide evenly"),
            HasSubstr("an ep_size of 3 does, and so would 8 experts")));
}

TEST(Experts, OfWhichSomeAreDividedAlongTpAreRefused) {
  AcceleratorOptions options = with({.dp_shard_size = 2, .tp_size = 2, .ep_size = 2});
  options.kwargs_handlers.emplace_back(TensorParallelPlan());
  const auto two = [](bool divides_along_tp, int64_t intermediate) {
    auto both = std::make_shared<torch::nn::Module>("Two");
    MixtureOptions mixture{.hidden = 8, .intermediate = intermediate, .router = {.experts = 4}};
    both->register_module("first", std::make_shared<MixtureOfExpertsImpl>(mixture));
    mixture.divides_along_tp = divides_along_tp;
    both->register_module("second", std::make_shared<MixtureOfExpertsImpl>(mixture));
    return both;
  };
  EXPECT_THAT(refused("1x4:h100", options, [&] { return two(false, 8); }),
              HasSubstr("ranks along tp have parts of the experts of mixture \"first\" and all of "
                        "those of \"second\"; set divides_along_tp alike"));
  EXPECT_THAT(
      refused("1x4:h100", options, [&] { return two(true, 9); }),
      HasSubstr("mixture \"first\" has experts of size 9, which the 2 ranks along tp do not "
                "divide evenly; a tp_size of 1 does"));
}

TEST(Experts, ThatThereAreNotAreNamed) {
  EXPECT_THAT(refused("1x2:h100", with({.dp_shard_size = 2, .ep_size = 2}),
                      [] { return std::make_shared<torch::nn::LinearImpl>(4, 4); }),
              HasSubstr("ep_size=2, but a Linear has no MixtureOfExperts among its modules; set "
                        "ep_size to 1"));
}

TEST(RoutersWithLosses, InStagesThatDoNotHandThemOverAreRefused) {
  EXPECT_THAT(
      refused("1x2:h100", with({.pp_size = 2}),
              [] {
                torch::nn::Sequential layers(torch::nn::Linear(8, 8),
                                             MixtureOfExperts(MixtureOptions{
                                                 .hidden = 8,
                                                 .intermediate = 8,
                                                 .router = {.experts = 4, .balance_loss = 0.01}}));
                return layers.ptr();
              }),
      AllOf(HasSubstr("the router of mixture \"1\" has losses, which the stages of a Sequential do "
                      "not hand over"),
            HasSubstr("leave balance_loss and z_loss 0")));
}

TEST(RoutersWithLosses, BesideALossThatIsASumAreRefused) {
  Cluster("1x1:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    lm::Lm net(tiny_experts(1), lm::LmOptions{.router = {.balance_loss = 0.01}});
    auto model = accelerator.prepare(net.ptr());
    const at::Tensor tokens = torch::zeros({2, 8}, torch::kLong).to(accelerator.device());
    const auto sum = [](const at::Tensor& logits, const at::Tensor& labels) {
      return TokenLoss{.sum = logits.sum(), .tokens = labels.numel()};
    };
    EXPECT_THAT(
        value_error_of([&] { accelerator.train_batch(model, std::pair(tokens, tokens), sum); }),
        HasSubstr("routers of experts have losses, which are means over tokens"));
  });
}

TEST(UnevenInputs, OfRanksThatTrainAlikeAreRefused) {
  for (const auto& each : {std::pair(ParallelismOptions{.dp_replicate_size = 2, .tp_size = 2},
                                     "dp_replicate 2 x tp 2"),
                           std::pair(ParallelismOptions{.dp_replicate_size = 2, .pp_size = 2},
                                     "pp 2 x dp_replicate 2")}) {
    Cluster("1x4:h100").run_on_every_rank([&](Rank&) {
      Accelerator accelerator(with(each.first));
      EXPECT_THAT(value_error_of([&] { (void)accelerator.join_uneven_inputs(); }),
                  AllOf(HasSubstr(std::string("every rank must train on data of its own, but ranks "
                                              "are arranged as ") +
                                  each.second),
                        HasSubstr("set all sizes of the parallelism_config but dp_replicate_size "
                                  "to 1")));
    });
  }
}

TEST(LocalSgdWithExperts, IsRefused) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(with({.dp_shard_size = 2, .ep_size = 2}));
    lm::Lm net(tiny_experts(1));
    auto model = accelerator.prepare(net.ptr());
    EXPECT_THAT(value_error_of([&] { LocalSGD(accelerator, model, 2); }),
                HasSubstr("LocalSGD: ranks of a FSDP job cannot train independently; only those of "
                          "NO and MULTI_* can"));
  });
}

}  // namespace
}  // namespace accelerate
