// Tensor parallelism together with all else that trains a model, on clusters of the shape that the
// mesh needs: accumulation, replicas, shards, ZeRO, clipping, half precision and its scaler, fp8,
// and optimizers that it refuses. Losses and norms are those of one process on the whole model.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/precision/techniques.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/tensor/dropping_model.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using lm::Blocks;
using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
using Json = nlohmann::ordered_json;

// The third loss follows from momentum, too.
constexpr int kSteps = 3;

lm::Config small(Blocks blocks) {
  return lm::model_config("tiny", {.blocks = blocks, .layers = 2, .sequence_length = 32});
}

// How the ranks of a cluster train.
struct Way {
  std::string cluster = "1x1:h100";
  std::optional<ParallelismOptions> sizes = std::nullopt;
  Json zero = nullptr;  ///< zero_optimization; null: without ZeRO
  bool sequence_shards = false;
  bool parallel_loss = false;
  bool recomputes = false;
  int micro_steps = 1;
  double clip_value = 0;
  std::optional<PrecisionType> precision = std::nullopt;
  std::vector<KwargsHandler> handlers = {};
};

std::string text_of(const Way& way) {
  std::string text = way.cluster;
  if (way.sizes) {
    absl::StrAppend(&text, ", dp_replicate ", way.sizes->dp_replicate_size.value_or(1),
                    ", dp_shard ", way.sizes->dp_shard_size.value_or(1), ", tp ",
                    way.sizes->tp_size.value_or(1));
  }
  if (!way.zero.is_null()) absl::StrAppend(&text, ", ZeRO ", way.zero.dump());
  absl::StrAppend(&text, way.sequence_shards ? ", sequence shards" : "",
                  way.parallel_loss ? ", parallel loss" : "",
                  way.recomputes ? ", computed again" : "", ", micro-steps ", way.micro_steps);
  return text;
}

// Other ones than the mesh and the plan.
AcceleratorOptions options_of(const Way& way, AcceleratorOptions options = {}) {
  options.mixed_precision = way.precision;
  options.kwargs_handlers = way.handlers;
  if (way.zero.is_null()) return options;
  const Json zero = {{"train_micro_batch_size_per_gpu", 2},
                     {"gradient_accumulation_steps", way.micro_steps},
                     {"gradient_clipping", 1.0},
                     {"zero_allow_untested_optimizer", true},
                     {"zero_optimization", way.zero}};
  options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = zero};
  return options;
}

FormulaOutcome train(Blocks blocks, const Way& way) {
  const lm::Config config = small(blocks);
  const auto change = [&](AcceleratorOptions& options) {
    options = options_of(way, std::move(options));
    if (!way.sequence_shards && !way.parallel_loss) return;
    TensorParallelPlan plan = *lm::Lm(config)->tensor_parallel_plan();
    plan.sequence_parallel = way.sequence_shards;
    plan.parallel_loss = way.parallel_loss;
    options.kwargs_handlers.emplace_back(plan);
  };
  return train_by_formula({.config = config,
                           .lm = {.activation_checkpointing = way.recomputes},
                           .sizes = way.sizes,
                           .cluster = way.cluster,
                           .steps = kSteps,
                           .change = change,
                           .parallel_loss = way.parallel_loss,
                           .micro_steps = way.micro_steps,
                           .clip_value = way.clip_value});
}

void expect_near(const FormulaOutcome& outcome, const FormulaOutcome& expected, double losses,
                 double norms) {
  ASSERT_EQ(outcome.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(outcome.losses[i], expected.losses[i], losses * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(outcome.norms[i], expected.norms[i], norms * expected.norms[i]) << "step " << i;
  }
}

// Ways in float32 against one process.
void expect_as_one_process(const std::vector<Way>& ways, const Way& one = {}) {
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const FormulaOutcome expected = train(blocks, one);
    for (const Way& way : ways) {
      SCOPED_TRACE(absl::StrCat(blocks == Blocks::kGpt ? "GPT, " : "Llama, ", text_of(way)));
      expect_near(train(blocks, way), expected, 1e-6, 1e-5);
    }
  }
}

Way tp_2() { return {.cluster = "1x2:h100", .sizes = ParallelismOptions{.tp_size = 2}}; }
Way tp_and_replicas() {
  return {.cluster = "1x4:h100", .sizes = ParallelismOptions{.dp_replicate_size = 2, .tp_size = 2}};
}
Way tp_and_shards() {
  return {.cluster = "1x4:h100", .sizes = ParallelismOptions{.dp_shard_size = 2, .tp_size = 2}};
}
Way tp_and_both() {
  return {.cluster = "2x4:h100",
          .sizes = ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}};
}

Json stage(int number) {
  Json zero = {{"stage", number}};
  if (number == 3) zero["stage3_param_persistence_threshold"] = 200;
  return zero;
}

// ---- Groups and windows.

TEST(TensorParallelComposition, WithReplicasOfShardsIsOneProcess) {
  Way all = tp_and_both();
  all.sequence_shards = all.parallel_loss = all.recomputes = true;
  expect_as_one_process({tp_and_both(), all});
}

// Passes that accumulate send what layers sum, and the last one the gradients, also those that are
// partial on sequence shards.
TEST(TensorParallelComposition, WithAccumulationIsOneProcess) {
  std::vector<Way> ways;
  for (Way way : {tp_2(), tp_and_replicas(), tp_and_shards(), tp_and_both()}) {
    way.micro_steps = 2;
    ways.push_back(way);
    way.sequence_shards = true;
    ways.push_back(way);
  }
  expect_as_one_process(ways);
}

TEST(TensorParallelComposition, ClipsByValueAsOneProcess) {
  std::vector<Way> ways;
  for (Way way : {tp_2(), tp_and_replicas(), tp_and_shards()}) {
    way.clip_value = 0.01;
    ways.push_back(way);
    way.sequence_shards = true;
    ways.push_back(way);
  }
  const Way one{.clip_value = 0.01};
  EXPECT_LT(train(Blocks::kGpt, one).norms[0], 0.9 * train(Blocks::kGpt, {}).norms[0])
      << "nothing is limited";
  expect_as_one_process(ways, one);
}

// ---- Fewer heads of keys than ranks.

// What the small model with so many heads of keys, which drops nothing, trains.
FormulaOutcome train_with_keys(int64_t heads, const Way& way, bool adam = false) {
  Cluster cluster(way.cluster);
  cluster.run_on_every_rank([&](Rank& rank) {
    DroppingJob job(way.sizes,
                    {.dropout = 0,
                     .recomputes = way.recomputes,
                     .sequence_shards = way.sequence_shards,
                     .key_heads = heads,
                     .adam = adam},
                    options_of(way));
    std::vector<Tensor> losses, norms;
    for (int step = 0; step < kSteps; ++step) {
      losses.push_back(job.backward(step).to(torch::kCPU, torch::kDouble));
      const Tensor norm = job.accelerator.clip_grad_norm_(job.module->parameters(), 1.0);
      norms.push_back(norm.to(torch::kCPU, torch::kDouble));
      job.optimizer->step();
      job.optimizer->zero_grad();
    }
    rank.report("losses", torch::stack(losses));
    rank.report("norms", torch::stack(norms));
  });
  const auto mean = [&cluster](const std::string& name) {
    const Tensor values = torch::stack(cluster.reports(name)).mean(0);
    return std::vector<double>(values.const_data_ptr<double>(),
                               values.const_data_ptr<double>() + values.numel());
  };
  return {.losses = mean("losses"), .norms = mean("norms")};
}

// Neighbours sum the gradients of the head that they have, which shards divide and replicas
// average.
TEST(TensorParallelComposition, WithFewerHeadsOfKeysThanRanksIsOneProcess) {
  const auto tp_4 = [](int64_t replicas, int64_t shards) {
    return Way{.cluster = absl::StrCat("1x", 4 * replicas * shards, ":h100"),
               .sizes = ParallelismOptions{
                   .dp_replicate_size = replicas, .dp_shard_size = shards, .tp_size = 4}};
  };
  Way zero = tp_and_replicas();
  zero.zero = stage(3);
  const std::vector<std::pair<int64_t, std::vector<Way>>> by_heads = {
      {1, {tp_2(), tp_and_shards(), tp_and_both(), zero}},
      {2, {tp_4(1, 1), tp_4(2, 1), tp_4(1, 2)}}};
  for (const auto& [heads, ways] : by_heads) {
    const FormulaOutcome expected = train_with_keys(heads, {});
    for (Way way : ways) {
      for (const bool sequence_shards : {false, true}) {
        way.sequence_shards = way.recomputes = sequence_shards;
        SCOPED_TRACE(absl::StrCat(heads, " heads of keys, ", text_of(way)));
        expect_near(train_with_keys(heads, way), expected, 1e-6, 1e-5);
      }
    }
  }
}

// ---- ZeRO, whose ranks are those with other data of the same part.

TEST(TensorParallelComposition, WithZeroIsOneProcess) {
  std::vector<Way> ways;
  for (const int number : {0, 1, 2, 3}) {
    Way way = tp_and_replicas();
    way.zero = stage(number);
    ways.push_back(way);
    way.sequence_shards = true;
    way.parallel_loss = number == 3;
    way.recomputes = number == 3;
    way.micro_steps = number == 1 ? 1 : 2;
    ways.push_back(way);
  }
  expect_as_one_process(ways);
}

// The rank has the only shard of its part, but other ranks have other parts of the norm.
TEST(TensorParallelComposition, WithZeroOfOneShareIsOneProcess) {
  std::vector<Way> ways;
  for (const int number : {1, 2, 3}) {
    Way way = tp_2();
    way.zero = stage(number);
    ways.push_back(way);
    way.zero["offload_optimizer"] = {{"device", "cpu"}};
    ways.push_back(way);
  }
  expect_as_one_process(ways);
}

TEST(TensorParallelComposition, WithSecondShardsOfZeroIsOneProcess) {
  Way way{
      .cluster = "2x4:h100",
      .sizes = ParallelismOptions{.dp_replicate_size = 4, .tp_size = 2},
      .zero = {
          {"stage", 3}, {"stage3_param_persistence_threshold", 0}, {"zero_hpz_partition_size", 2}}};
  expect_as_one_process({way});
}

// ---- Precision.

TEST(TensorParallelComposition, InHalfPrecisionFollowsOneProcess) {
  for (const PrecisionType precision : {PrecisionType::kBf16, PrecisionType::kFp16}) {
    std::vector<KwargsHandler> handlers;
    if (precision == PrecisionType::kFp16) {
      handlers.emplace_back(GradScalerKwargs{.init_scale = 256});
    }
    const FormulaOutcome one =
        train(Blocks::kLlama, {.precision = precision, .handlers = handlers});
    for (Way way : {tp_2(), tp_and_replicas(), tp_and_shards()}) {
      way.precision = precision;
      way.handlers = handlers;
      for (const bool sequence_shards : {false, true}) {
        way.sequence_shards = sequence_shards;
        SCOPED_TRACE(text_of(way));
        expect_near(train(Blocks::kLlama, way), one, 5e-3, 5e-2);
      }
    }
  }
}

// The parameter's part on one rank alone has an infinite gradient.
TEST(TensorParallelComposition, SkipsAStepOnAllRanksIfOneOverflows) {
  for (const Way& way : {tp_2(), tp_and_replicas(), tp_and_shards()}) {
    for (const bool sequence_shards : {false, true}) {
      SCOPED_TRACE(absl::StrCat(text_of(way), sequence_shards ? ", sequence shards" : ""));
      Cluster cluster(way.cluster);
      const int last = cluster.world_size() - 1;
      cluster.run_on_every_rank([&](Rank& rank) {
        DroppingJob job(way.sizes, {.sequence_shards = sequence_shards},
                        {.mixed_precision = PrecisionType::kFp16,
                         .kwargs_handlers = {GradScalerKwargs{.init_scale = 256}}});
        set_seed(7, {.device_specific = true});
        const auto weights = [&job] {
          std::vector<Tensor> all;
          for (const TrainedParameter& each : job.state().trained()) {
            all.push_back(each.trained.detach().flatten().cpu());
          }
          return torch::cat(all);
        };
        for (int step = 0; step < 3; ++step) {
          const double scale = job.accelerator.scaler()->get_scale();
          const Tensor before = weights();
          job.backward(step);
          for (const TrainedParameter& each : job.state().trained()) {
            const bool overflows = step == 1 && rank.index() == last;
            if (!overflows || each.name != "blocks.0.down.weight") continue;
            each.trained.mutable_grad().fill_(std::numeric_limits<float>::infinity());
          }
          job.optimizer->step();
          job.optimizer->zero_grad();
          EXPECT_EQ(job.accelerator.optimizer_step_was_skipped(), step == 1) << rank.index();
          EXPECT_EQ(job.accelerator.scaler()->get_scale(), step == 1 ? scale / 2 : scale);
          EXPECT_EQ(weights().equal(before), step == 1) << rank.index();
        }
      });
    }
  }
}

// Delayed scales are those of the largest values of all tokens and of all parts of a layer.
TEST(TensorParallelComposition, InFp8AgreesOnScales) {
  const auto scales_of = [](const Way& way) {
    Cluster cluster(way.cluster);
    cluster.run_on_every_rank([&](Rank& rank) {
      AcceleratorOptions options{.mixed_precision = PrecisionType::kFp8,
                                 .kwargs_handlers = {TERecipeKwargs{}}};
      if (way.sizes) options.parallelism_config = ParallelismConfig(*way.sizes);
      Accelerator accelerator(options);
      const lm::Config config = small(Blocks::kLlama);
      lm::Lm made(config);
      fill_by_formula(*made);
      const std::shared_ptr<torch::optim::Optimizer> sgd =
          std::make_shared<torch::optim::SGD>(made->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
      const auto& fp8 = find_technique<Fp8Technique>(model)->model();
      ASSERT_EQ(fp8->weights().size(), 11);  // five in each block, and the head
      const DataShare share = accelerator.state().data_share();
      const int64_t own = 8 / share.count;
      std::vector<Tensor> losses;
      for (int step = 0; step < 3; ++step) {
        const auto [inputs, labels] = formula_batch(step, 8, config.sequence_length);
        const auto part = [&](const Tensor& all) {
          return all.narrow(0, share.index * own, own).to(accelerator.device());
        };
        const Tensor logits = model(part(inputs));
        const Tensor loss = torch::cross_entropy_loss(logits.flatten(0, 1), part(labels).flatten());
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        losses.push_back(loss.detach().cpu());
      }
      rank.report("scales", fp8->state_dict().at("scales"));
      rank.report("losses", torch::stack(losses));
    });
    const std::vector<Tensor> scales = cluster.reports("scales");
    for (const Tensor& each : scales) EXPECT_TRUE(each.equal(scales[0])) << each;
    return std::pair(scales[0], torch::stack(cluster.reports("losses")).mean(0));
  };
  const auto [scales, losses] = scales_of({});
  for (const Way& way : {tp_2(), tp_and_replicas(), tp_and_shards()}) {
    SCOPED_TRACE(text_of(way));
    const auto [own_scales, own_losses] = scales_of(way);
    // Roles: the input, the weight, and the gradient, whose mean is over a share's tokens.
    EXPECT_TRUE(torch::allclose(own_scales.select(1, 0), scales.select(1, 0), 0.15, 0));
    EXPECT_TRUE(torch::allclose(own_scales.select(1, 1), scales.select(1, 1), 0.05, 0));
    EXPECT_TRUE(torch::allclose(own_losses, losses, 2e-2, 0)) << own_losses << losses;
  }
}

// Scales of other recipes are those of the rank's own part, or of 32 of its values.
TEST(TensorParallelComposition, InFp8OfOtherRecipesFollowsOneProcess) {
  const FormulaOutcome in_bf16 = train(Blocks::kLlama, {.precision = PrecisionType::kBf16});
  const std::vector<std::pair<std::string, KwargsHandler>> recipes = {
      {"AO", AORecipeKwargs{}},
      {"MS-AMP", MSAMPRecipeKwargs{.opt_level = "O1"}},
      {"TE in blocks", TERecipeKwargs{.use_mxfp8_block_scaling = true}}};
  for (const auto& [name, recipe] : recipes) {
    const auto in_fp8 = [&handler = recipe](Way way) {
      way.precision = PrecisionType::kFp8;
      way.handlers = {handler};
      return train(Blocks::kLlama, way);
    };
    const FormulaOutcome one = in_fp8({});
    EXPECT_NE(one.losses, in_bf16.losses) << name << " computes nothing in fp8";
    std::vector<Way> ways = {tp_2(), tp_and_replicas()};
    if (name != "MS-AMP") ways.push_back(tp_and_shards());
    for (Way way : ways) {
      for (const bool sequence_shards : {false, true}) {
        way.sequence_shards = sequence_shards;
        SCOPED_TRACE(absl::StrCat(name, ", ", text_of(way)));
        expect_near(in_fp8(way), one, 2e-2, 1e-1);
      }
    }
  }
}

// Moments in few bits, of a rank's own part, in blocks of 128 values.
TEST(TensorParallelComposition, WithMomentsInFp8FollowsOneProcess) {
  const auto in_fp8 = [](Way way) {
    way.precision = PrecisionType::kFp8;
    way.handlers = {MSAMPRecipeKwargs{.opt_level = "O2"}};
    return train_with_keys(/*heads=*/0, way, /*adam=*/true);
  };
  const FormulaOutcome one = in_fp8({});
  for (const Way& way : {tp_2(), tp_and_replicas()}) {
    SCOPED_TRACE(text_of(way));
    expect_near(in_fp8(way), one, 2e-2, 1e-1);
  }
}

TEST(TensorParallelComposition, RefusesMsampOfShards) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    EXPECT_THAT(value_error_of([] {
                  DroppingJob(tp_and_shards().sizes, {},
                              {.mixed_precision = PrecisionType::kFp8,
                               .kwargs_handlers = {MSAMPRecipeKwargs{}}});
                }),
                AllOf(HasSubstr("MS-AMP is for models whose parameters are whole on each rank"),
                      HasSubstr("choose the recipe AO or TE")));
  });
}

// ---- Optimizers that step before ranks have summed.

TEST(TensorParallelComposition, RefusesLomoNamingTheParameter) {
  const auto error_of = [](bool sequence_shards, const std::string& only) {
    std::string error;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig({.tp_size = 2})});
      const auto module =
          std::make_shared<DroppingImpl>(DroppingOptions{.sequence_shards = sequence_shards});
      std::vector<Tensor> trained;
      for (const auto& item : module->named_parameters()) {
        if (only.empty() || item.key() == only) trained.push_back(item.value());
      }
      const std::shared_ptr<torch::optim::Optimizer> lomo = std::make_shared<optim::Lomo>(trained);
      const std::string own = value_error_of([&] { accelerator.prepare(module, lomo); });
      if (rank.index() == 1) error = own;
    });
    return error;
  };
  EXPECT_THAT(error_of(false, ""), HasSubstr("LBFGS, LAMB and LOMO need whole parameters"));
  EXPECT_THAT(error_of(true, "blocks.0.norm.weight"),
              AllOf(HasSubstr("rank 1 and others sum the gradients of parameter "
                              "\"blocks.0.norm.weight\" along tp at the end of a backward pass, "
                              "but LOMO steps before that"),
                    HasSubstr("train it with another optimizer")));
}

}  // namespace
}  // namespace accelerate
