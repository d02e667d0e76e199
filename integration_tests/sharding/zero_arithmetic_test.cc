// What training by every stage of ZeRO computes: what replicas do, in float32 and in 16 bits.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/sharding/small_models.h"
#include "integration_tests/sharding/zero_job.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;

template <typename Net>
void expect_training_of_replicas(const ZeroJob& like) {
  const Outcome replicas = train<Net>(like);
  for (const Json& way : ways()) {
    SCOPED_TRACE(way.dump());
    ZeroJob job = like;
    job.zero = way;
    expect_near(train<Net>(job), replicas, like.adam ? 1e-5 : 1e-6);
  }
}

TEST(ZeroArithmetic, ComputesWhatReplicasDo) {
  for (const bool adam : {false, true}) {
    expect_training_of_replicas<lm::LmImpl>({.adam = adam});
  }
  expect_training_of_replicas<ConvnetImpl>({});
}

TEST(ZeroArithmetic, ComputesWhatReplicasDoWithAccumulationAndClipping) {
  expect_training_of_replicas<lm::LmImpl>({.accumulation = 2, .max_norm = 0.05});
  expect_training_of_replicas<lm::LmImpl>({.adam = true, .accumulation = 3, .max_norm = 0.05});
}

TEST(ZeroArithmetic, ClipsForAnOptimizerThatIsPreparedAfterItsModel) {
  const auto weights_of = [](bool is_together) {
    Tensor weights;
    Cluster cluster("1x2:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of({.zero = {{"stage", 0}}, .max_norm = 0.05}));
      torch::manual_seed(5);
      torch::nn::Linear net(4, 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const auto train = [&](auto& model) {
        accelerator.backward(model(torch::ones({2, 4}, accelerator.device())).sum());
      };
      if (is_together) {
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        train(model);
      } else {
        auto model = accelerator.prepare(net);
        const auto optimizer = accelerator.prepare(sgd);
        train(model);
      }
      if (rank.index() == 0) weights = net->weight.detach().cpu().clone();
    });
    return weights;
  };
  const Tensor together = weights_of(true);
  EXPECT_TRUE(torch::equal(weights_of(false), together));
  torch::manual_seed(5);
  const Tensor initial = torch::nn::Linear(4, 1)->weight.detach();
  EXPECT_NEAR((together - initial).norm().item<double>(), 0.1 * 0.05 * 2 / std::sqrt(5.0), 1e-6);
}

TEST(ZeroArithmetic, RefusesAnOptimizerThatIsPreparedBeforeItsModel) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator(options_of({.zero = {{"stage", 1}}}));
    torch::nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    EXPECT_THAT(value_error_of([&] { (void)accelerator.prepare(sgd); }),
                HasSubstr("an optimizer is prepared together with its model, or after it"));
  });
}

// A group is a module, so that there are many.
Outcome train_with_ratio(ZeroJob job, int stage, double ratio) {
  job.zero = {{"stage", stage},
              {"reduce_bucket_size", 1},
              {"stage3_param_persistence_threshold", 0},
              {"offload_optimizer", {{"device", "cpu"}, {"ratio", ratio}, {"pin_memory", true}}}};
  Training training = training_of(job);
  training.options.kwargs_handlers = {ShardedDataParallelKwargs{.group_bytes = 1}};
  return train_on_cluster<lm::LmImpl>(training);
}

TEST(ZeroArithmetic, IsThatOfReplicasWithAPartOfTheOptimizerOnTheHost) {
  for (const bool in_bf16 : {false, true}) {
    const ZeroJob job{.precision = in_bf16 ? PrecisionType::kBf16 : PrecisionType::kNo,
                      .adam = !in_bf16,
                      .accumulation = 2,
                      .max_norm = 0.05};
    const Outcome replicas = train<lm::LmImpl>(job);
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(in_bf16 ? "bf16" : "float32", ", stage ", stage));
      const Outcome part = train_with_ratio(job, stage, 0.3);
      expect_near(part, train_with_ratio(job, stage, 1), 1e-5);
      expect_near(part, replicas, in_bf16 ? 2e-2 : 1e-5);
    }
  }
}

TEST(ZeroArithmetic, IsOneTrainingInBf16WhateverTheStage) {
  const auto outcome_of = [](const Json& way) {
    return train<lm::LmImpl>({.zero = way, .precision = PrecisionType::kBf16, .adam = true});
  };
  const std::vector<Json> all = ways();
  const Outcome first = outcome_of(all.front());
  for (size_t i = 1; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].dump());
    expect_near(outcome_of(all[i]), first, 2e-2);
  }
}

TEST(ZeroArithmetic, RunsOnOneRank) {
  for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
    const Outcome alone = train<lm::LmImpl>({.shape = "1x1:h100", .precision = precision});
    for (const Json& way : ways()) {
      if (way.contains("zero_hpz_partition_size")) continue;
      SCOPED_TRACE(way.dump());
      expect_near(train<lm::LmImpl>({.shape = "1x1:h100", .zero = way, .precision = precision}),
                  alone, precision == PrecisionType::kNo ? 1e-6 : 2e-2);
    }
  }
}

// A checkpoint of one rank has shards as others have, one of each parameter.
TEST(ZeroArithmetic, LoadsOnTwoRanksWhatOneHasSavedAndTheOtherWayRound) {
  for (const int stage : {1, 3}) {
    SCOPED_TRACE(stage);
    const auto disk = std::make_shared<simulator::SimDisk>();
    // The losses of two steps behind what is loaded, or behind two steps that are saved.
    const auto losses_on = [&](const std::string& shape, const std::string& folder, bool loads) {
      std::vector<double> losses;
      Cluster cluster(shape, {.disk = disk});
      cluster.run_on_every_rank([&](Rank& rank) {
        Accelerator accelerator(
            options_of({.zero = {{"stage", stage}, {"offload_optimizer", on_host()}}}));
        torch::manual_seed(loads ? 6 : 5);
        lm::Lm net(tiny());
        optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
        auto [model, optimizer] = accelerator.prepare(net, adamw);
        const auto train = [&](int first_step) {
          for (int step = first_step; step < first_step + 2; ++step) {
            // All ranks have the same data, so that their number does not count.
            const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                        /*rank=*/0, accelerator.device());
            accelerator.backward(loss);
            if (rank.index() == 0) losses.push_back(loss.item<double>());
          }
        };
        if (loads) {
          accelerator.load_state(folder);
        } else {
          train(0);
          accelerator.save_state(folder);
          losses.clear();
        }
        train(2);
      });
      return losses;
    };
    for (const auto& [saves, folder] :
         {std::pair("1x1:h100", "/sim/one"), std::pair("1x2:h100", "/sim/two")}) {
      SCOPED_TRACE(saves);
      const std::vector<double> losses = losses_on(saves, folder, /*loads=*/false);
      ASSERT_EQ(losses.size(), 2);
      EXPECT_THAT(disk->list(folder).value_or(std::vector<std::string>()),
                  ::testing::Contains("pytorch_model_fsdp_0"));
      for (const char* loads : {"1x1:h100", "1x2:h100"}) {
        SCOPED_TRACE(loads);
        EXPECT_THAT(losses_on(loads, folder, /*loads=*/true),
                    ::testing::Pointwise(::testing::DoubleNear(1e-5), losses));
      }
    }
  }
}

// ---- fp8.

// One row of a test: a recipe, and whether stage 3 has it.
struct InFp8 {
  KwargsHandler recipe;
  bool divides_parameters = true;
};

// AdamW makes as large a step by a gradient of nearly zero, whose sign may be another.
void expect_all_near(const Outcome& a, const Outcome& b) {
  expect_near(a, b, 5e-3);
  expect_near(a.losses, b.losses, 1e-3);
}

TEST(ZeroArithmetic, IsThatOfReplicasInFp8) {
  const auto outcome_of = [](const Json& way, std::vector<KwargsHandler> handlers,
                             PrecisionType precision, Json more = Json::object()) {
    const ZeroJob job{.shape = "1x3:h100",
                      .zero = way,
                      .precision = precision,
                      .adam = true,
                      .accumulation = 2,
                      .max_norm = 0.05,
                      .more = std::move(more)};
    Training training = training_of(job);
    training.steps = 3;
    training.options.kwargs_handlers = std::move(handlers);
    return train_on_cluster<lm::LmImpl>(training);
  };
  const Outcome in_bf16 = outcome_of({{"stage", 1}}, {}, PrecisionType::kBf16);
  for (const InFp8& row :
       std::vector<InFp8>{{AORecipeKwargs{}},
                          {TERecipeKwargs{}},
                          {TERecipeKwargs{.use_mxfp8_block_scaling = true}},
                          {MSAMPRecipeKwargs{.opt_level = "O1"}, /*divides_parameters=*/false},
                          {MSAMPRecipeKwargs{.opt_level = "O2"}, /*divides_parameters=*/false}}) {
    SCOPED_TRACE(row.recipe.index());
    const auto by = [&](const Json& way) {
      return outcome_of(way, {row.recipe}, PrecisionType::kFp8);
    };
    const Outcome replicas = by(nullptr), first = by({{"stage", 1}});
    // Replicas compute in bf16 by automatic mixed precision, what ZeRO divides with parameters in
    // bf16.
    expect_near(by({{"stage", 0}}), replicas, 1e-5);
    expect_all_near(first, replicas);
    EXPECT_NE(first.losses, in_bf16.losses) << "nothing is in fp8";
    expect_all_near(by({{"stage", 2}}), first);
    expect_all_near(by({{"stage", 1}, {"offload_optimizer", on_host()}}), first);
    if (row.divides_parameters) {
      expect_all_near(by({{"stage", 3}, {"stage3_param_persistence_threshold", 50}}), first);
      continue;
    }
    // The configuration asks for MS-AMP in the same way.
    const std::string& level = *std::get<MSAMPRecipeKwargs>(row.recipe).opt_level;
    const Outcome configured = outcome_of({{"stage", 1}}, {}, PrecisionType::kBf16,
                                          {{"msamp", {{"enabled", true}, {"opt_level", level}}}});
    EXPECT_EQ(configured.losses, first.losses);
  }
  const Json in_msamp = {{"msamp", {{"enabled", true}}}};
  expect_all_near(outcome_of({{"stage", 2}}, {}, PrecisionType::kFp16, in_msamp),
                  outcome_of({{"stage", 0}}, {}, PrecisionType::kFp16, in_msamp));
}

// What two ranks with inputs of their own reduce the gradient of a layer in fp8 to.
Tensor reduced_in_fp8(int stage, const KwargsHandler& recipe) {
  Tensor result;
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options = options_of({.zero = {{"stage", stage}},
                                             .precision = PrecisionType::kFp8,
                                             .more = {{"bf16", {{"enabled", false}}}}});
    options.kwargs_handlers = {recipe};
    Accelerator accelerator(options);
    torch::nn::Linear net(torch::nn::LinearOptions(16, 32).bias(false));
    torch::nn::init::zeros_(net->weight);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x = torch::sin(torch::arange(48.) * (1 + rank.index())).view({3, 16});
    const Tensor y = torch::cos(torch::arange(96.) * (1 + rank.index())).view({3, 32});
    accelerator.backward((model(x.to(accelerator.device())) * y.to(accelerator.device())).sum());
    const auto whole = full_parameters(model, {.writeback = false});
    if (rank.index() == 0) result = -net->weight.detach().cpu();
  });
  return result;
}

TEST(ZeroArithmetic, RoundsGradientsToFp8BeforeTheyAreReducedWithMsamp) {
  const auto all_layers = [](const torch::nn::Module&, const std::string&) { return true; };
  const Tensor exact = reduced_in_fp8(1, AORecipeKwargs{.module_filter_func = all_layers});
  const Tensor rounded = reduced_in_fp8(0, MSAMPRecipeKwargs{.opt_level = "O1"});
  EXPECT_FALSE(torch::equal(rounded, exact));
  EXPECT_TRUE(torch::allclose(rounded, exact, /*rtol=*/0.1, /*atol=*/0.02));
  for (const int stage : {1, 2}) {
    const Tensor divided = reduced_in_fp8(stage, MSAMPRecipeKwargs{.opt_level = "O1"});
    EXPECT_TRUE(torch::equal(divided, rounded)) << stage;
  }
}

TEST(ZeroArithmetic, KeepsTheMomentsOfItsShardsInFp8AsTheConfigurationAsks) {
  const auto disk = std::make_shared<simulator::SimDisk>();
  std::vector<double> losses, loaded;
  const auto run = [&](const char* shape, bool loads, std::vector<double>& found) {
    Cluster(shape, {.disk = disk}).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(
          {.mixed_precision = PrecisionType::kBf16,
           .deepspeed_plugin =
               DeepSpeedPlugin{.zero_stage = 2, .enable_msamp = true, .msamp_opt_level = "O2"}});
      EXPECT_EQ(accelerator.fp8_backend(), FP8BackendType::kMsamp);
      EXPECT_EQ(accelerator.mixed_precision(), PrecisionType::kBf16);
      torch::manual_seed(5);
      lm::Lm net(tiny());
      optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
      DataLoader data(make_tensor_dataset(torch::zeros({4, 1}), torch::zeros({4})),
                      {.batch_size = 2});
      auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
      EXPECT_EQ(accelerator.scaler(), nullptr) << "the configuration asks for none";
      ASSERT_NE(model.fp8_report(), nullptr);
      EXPECT_FALSE(model.fp8_report()->converted.empty());
      const auto train = [&](int first_step) {
        for (int step = first_step; step < first_step + 2; ++step) {
          // All ranks have the same data, so that their number does not count.
          const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                      /*rank=*/0, accelerator.device());
          accelerator.backward(loss);
          if (rank.index() == 0) found.push_back(loss.item<double>());
        }
      };
      if (!loads) {
        train(0);
        const Fp8Moments& moments = *internal::Access::to(optimizer)->moments;
        int64_t bytes = 0;
        for (const Tensor& shard : adamw.param_groups()[0].params()) {
          bytes += 3 * shard.numel() + 2 * 4 * ((shard.numel() + 127) / 128);
        }
        EXPECT_EQ(moments.packed_bytes(), bytes);
        accelerator.save_state("/sim/checkpoint");
        found.clear();
      } else {
        accelerator.load_state("/sim/checkpoint");
      }
      train(2);
    });
  };
  run("1x2:h100", /*loads=*/false, losses);
  run("1x3:h100", /*loads=*/true, loaded);
  EXPECT_THAT(loaded, ::testing::Pointwise(::testing::DoubleNear(2e-3), losses));
}

TEST(ZeroArithmetic, RefusesTwoRecipesForFp8) {
  struct Row {
    std::vector<KwargsHandler> handlers;
    DeepSpeedPlugins plugins;
    const char* text;
  };
  const auto plugin = [](const char* level) {
    return DeepSpeedPlugin{.enable_msamp = true, .msamp_opt_level = level};
  };
  const std::vector<Row> rows = {
      {{AORecipeKwargs{}}, {{"", plugin("O1")}}, "have another recipe for fp8"},
      {{MSAMPRecipeKwargs{.opt_level = "O2"}},
       {{"", plugin("O1")}},
       "with opt_level O1, but MSAMPRecipeKwargs has O2"},
      {{}, {{"a", plugin("O1")}, {"b", plugin("O2")}}, "\"a\" and \"b\" have another \"msamp\""}};
  for (const Row& row : rows) {
    Cluster("1x1:h100").run_on_every_rank([&](Rank&) {
      EXPECT_THAT(value_error_of([&] {
                    Accelerator({.mixed_precision = PrecisionType::kFp8,
                                 .deepspeed_plugins = row.plugins,
                                 .kwargs_handlers = row.handlers});
                  }),
                  HasSubstr(row.text));
    });
  }
  Cluster("1x1:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator({.deepspeed_plugin = plugin("O2")});
    lm::Lm net(tiny());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DataLoader data(make_tensor_dataset(torch::zeros({4, 1}), torch::zeros({4})),
                    {.batch_size = 2});
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(net, sgd, data); }),
                HasSubstr("opt_level O2 keeps the moments of Adam or AdamW"));
  });
}

// ---- fp16.

// Replicas compute by automatic mixed precision and ZeRO with parameters in fp16, so the numbers of
// one are near the other's, and those of ZeRO's stages are nearer to each other. On nodes of four
// ranks, of which two have second shards.
void expect_fp16_of_replicas(const Json& scale,
                             const std::function<Tensor(const Tensor&, int, int)>& change_loss,
                             const std::vector<bool>& skipped) {
  const auto outcome_of = [&](const Json& way) {
    ZeroJob job{.shape = "2x4:h100", .zero = way, .precision = PrecisionType::kFp16, .adam = true};
    if (!way.is_null()) job.more = {{"fp16", scale}};
    Training training = training_of(job);
    training.change_loss = change_loss;
    return train_on_cluster<lm::LmImpl>(training);
  };
  const std::vector<Json> all = ways();
  const Outcome replicas = outcome_of(nullptr), first = outcome_of(all.front());
  EXPECT_EQ(replicas.skipped, skipped);
  expect_near(first, replicas, 2e-3);
  for (size_t i = 1; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].dump());
    const Outcome outcome = outcome_of(all[i]);
    expect_near(outcome, replicas, 2e-3);
    expect_near(outcome, first, 1e-3);
  }
}

TEST(ZeroArithmetic, IsThatOfReplicasInFp16) {
  for (const Json& scale :
       {Json{{"enabled", true}, {"loss_scale", 256}}, Json{{"enabled", true}}}) {
    SCOPED_TRACE(scale.dump());
    expect_fp16_of_replicas(scale, {}, std::vector<bool>(kSteps, false));
  }
}

TEST(ZeroArithmetic, IsThatOfReplicasInFp16WhereOneRankOverflows) {
  const auto overflow = [](const Tensor& loss, int pass, int rank) {
    return pass == 1 && rank == 2 ? loss * std::numeric_limits<float>::infinity() : loss;
  };
  expect_fp16_of_replicas({{"enabled", true}, {"initial_scale_power", 10}}, overflow,
                          {false, true, false, false});
}

// ---- How gradients are reduced.

// Its gradient is its input.
struct SumImpl : torch::nn::Module {
  explicit SumImpl(int64_t numel) { weight = register_parameter("weight", torch::zeros({numel})); }
  Tensor forward(const Tensor& x) { return (weight * x).sum(); }
  Tensor weight;
};
TORCH_MODULE(Sum);

// What four ranks reduce gradients to that are `rank + 1` times these numbers.
Tensor reduced(const Tensor& numbers, int stage, const Json& more) {
  Tensor result;
  Cluster("1x4:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options_of(
        {.zero = {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}, .more = more}));
    Sum net(numbers.numel());
    torch::optim::SGD sgd(net->parameters(), 1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model((numbers * (rank.index() + 1)).to(accelerator.device())));
    const auto whole = full_parameters(model, {.writeback = false});
    if (rank.index() == 0) result = -net->weight.detach().cpu();
  });
  return result;
}

// As DeepSpeed does it: cast, divided, added up, divided by the rest. Here gradients are divided
// before they are cast, which makes no difference for numbers that fp16 has.
Tensor reduced_by_hand(const Tensor& numbers, at::ScalarType dtype, double before) {
  Tensor sum = torch::zeros(numbers.sizes(), dtype);
  for (int rank = 0; rank < 4; ++rank) sum += (numbers * (rank + 1)).to(dtype) / before;
  return sum.to(torch::kFloat) / (4 / before);
}

TEST(ZeroArithmetic, DividesGradientsBeforeAndAfterTheirSumAsTheConfigurationSays) {
  // In fp16 the sums of the first one are beyond its largest number unless they are divided
  // before, and the parts of the last one below its smallest number if they are.
  const Tensor numbers = torch::tensor({10000., 1., 3. / 1024, std::pow(2., -23)});
  struct Row {
    Json more;
    double before, before_in_stage_0;
  };
  // Without a factor gradients in fp16 are divided by the root of the number of ranks, and by all
  // of it in stage 0, as DDP's hooks do.
  const std::vector<Row> rows = {
      {Json::object(), 2, 4},
      {{{"prescale_gradients", true}}, 4, 4},
      {{{"gradient_predivide_factor", 8}}, 8, 8},
      {{{"gradient_predivide_factor", 0.5}}, 0.5, 0.5},
      {{{"prescale_gradients", true}, {"gradient_predivide_factor", 0.5}}, 4, 4}};
  const auto error_of_large = [&](double before) {
    return reduced_by_hand(numbers, torch::kHalf, before)[0].isinf().item<bool>();
  };
  EXPECT_TRUE(error_of_large(0.5) && !error_of_large(4));
  for (const int stage : {0, 1, 2, 3}) {
    for (const Row& row : rows) {
      for (const auto& [name, dtype] :
           {std::pair{"fp16", torch::kHalf}, std::pair{"fp32", torch::kFloat}}) {
        Json more = row.more;
        more["communication_data_type"] = name;
        SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", more.dump()));
        const double before = stage == 0 ? row.before_in_stage_0 : row.before;
        const Tensor found = reduced(numbers, stage, more);
        const Tensor expected = reduced_by_hand(numbers, dtype, before);
        EXPECT_TRUE(torch::equal(found, expected)) << found << expected;
      }
    }
  }
}

// The last rank's first gradient is beyond fp16's largest number, and the first rank's second one
// lies between its two smallest.
TEST(ZeroArithmetic, DividesGradientsBeforeTheyAreCastToFp16) {
  const Tensor large = torch::tensor({20480.}), small = torch::tensor({3 * std::pow(2., -25)});
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto sent_in_fp16 = [&](const Tensor& numbers, Json more) {
      more["communication_data_type"] = "fp16";
      return reduced(numbers, stage, more);
    };
    const Tensor means = sent_in_fp16(large, {{"prescale_gradients", true}});
    EXPECT_TRUE(torch::equal(means, large * 2.5)) << means;
    const Tensor doubled_before = sent_in_fp16(small, {{"gradient_predivide_factor", 0.5}});
    EXPECT_TRUE(torch::equal(doubled_before, small * 2.5)) << doubled_before;
  }
}

TEST(ZeroArithmetic, SendsGradientsInTheConfigurationsType) {
  const Tensor numbers = torch::tensor({1. + std::pow(2., -9), 1. + std::pow(2., -12), 1.});
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto sent_in = [&](const char* name) {
      return reduced(numbers, stage, {{"communication_data_type", name}});
    };
    EXPECT_TRUE(torch::equal(sent_in("fp32"), numbers * 2.5));
    EXPECT_FALSE(torch::equal(sent_in("fp16"), numbers * 2.5));
    EXPECT_TRUE(torch::equal(sent_in("bf16"), torch::full({3}, 2.5)));
    EXPECT_TRUE(torch::equal(sent_in("bfp16"), torch::full({3}, 2.5)));
  }
}

TEST(ZeroArithmetic, DividesByTheProgramsHookOrByTheFactor) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    AcceleratorOptions options =
        options_of({.zero = {{"stage", 0}}, .more = {{"gradient_predivide_factor", 2}}});
    options.kwargs_handlers = {
        DistributedDataParallelKwargs{.comm_hook = DDPCommunicationHookType::kFp16}};
    Accelerator accelerator(options);
    Sum net(4);
    torch::optim::SGD sgd(net->parameters(), 1);
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(net, sgd); }),
                HasSubstr("gradient_predivide_factor=2: comm_hook and comm_wrapper"));
  });
}

TEST(ZeroArithmetic, GathersFromAFactorOfAllRanks) {
  Cluster("1x4:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options_of({.zero = {{"stage", 3}, {"zero_hpz_partition_size", 3}}}));
    Sum net(4);
    torch::optim::SGD sgd(net->parameters(), 1);
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(net, sgd); }),
                HasSubstr(absl::StrCat("rank ", rank.index(),
                                       ": zero_hpz_partition_size=3: it should be a factor of the "
                                       "4 ranks that share a model along dp")));
  });
}

}  // namespace
}  // namespace accelerate
