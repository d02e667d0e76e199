// Every stage of ZeRO on simulated clusters: what it holds, and what the engine does in place of
// the program's step. zero_arithmetic_test.cc, in the same program, has what it computes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <set>
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
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/sharding/small_models.h"
#include "integration_tests/sharding/zero_job.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::MemoryCategory;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;

// ---- Memory.

// What a rank holds with AdamW in bf16, by the published formula with the stated padding: rows of
// all ranks are rounded up to the same number, and the device's memory comes in blocks.
struct Formula {
  int64_t whole = 0, cast = 0, gradients = 0, masters = 0, moments = 0;

  Formula(const std::vector<Tensor>& parameters, int ranks, int rank) {
    for (const Tensor& each : parameters) {
      const int64_t rows = each.size(0), row = each.numel() / rows;
      const int64_t most = (rows + ranks - 1) / ranks;
      const int64_t own = std::clamp<int64_t>(rows - most * rank, 0, most);
      whole += blocks(2 * most * ranks * row);
      cast += blocks(2 * most * row);
      gradients += blocks(2 * most * row);
      masters += blocks(4 * most * row);
      moments += 2 * blocks(4 * own * row);
    }
  }
};

TEST(ZeroTraining, TakesTheMemoryOfTheFormulaToTheByte) {
  for (const Json& way : ways()) {
    SCOPED_TRACE(way.dump());
    const int stage = way["stage"];
    Json zero = way;
    zero["stage3_param_persistence_threshold"] = 0;
    const bool optimizer_on_host = way.contains("offload_optimizer");
    const bool parameters_on_host = way.contains("offload_param");
    const ZeroJob job{.zero = zero, .precision = PrecisionType::kBf16};
    Cluster(job.shape).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of(job));
      lm::Lm net(tiny());
      const Formula formula(net->parameters(), 4, rank.index());
      optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const auto held = [&](MemoryCategory category) {
        return rank.device()->memory().by_category()[static_cast<size_t>(category)];
      };
      const int64_t masters = optimizer_on_host ? 0 : formula.masters;
      const int64_t parameters = stage < 3 ? formula.whole : parameters_on_host ? 0 : formula.cast;
      for (int step = 0; step < 2; ++step) {
        const Tensor tokens = (torch::arange(24) % 37).view({2, 12}).to(accelerator.device());
        accelerator.backward(torch::cross_entropy_loss(
            model(tokens).flatten(0, 1).to(torch::kFloat), tokens.flatten()));
        EXPECT_EQ(held(MemoryCategory::kParameters), parameters + masters);
        EXPECT_EQ(held(MemoryCategory::kGatheredParameters), 0);
        EXPECT_EQ(held(MemoryCategory::kGradients), 0);
        // What outlives a step counts as the optimizer's from the next one on. The norm of the last
        // gradients may take a block of it, and AdamW's counter one more.
        if (step == 0) continue;
        const int64_t state = held(MemoryCategory::kOptimizerState);
        if (optimizer_on_host) {
          EXPECT_THAT(state, ::testing::AnyOf(0, blocks(1)));
        } else {
          EXPECT_THAT(state - formula.moments, ::testing::AnyOf(0, blocks(1), 2 * blocks(1)));
        }
      }
    });
  }
}

TEST(ZeroTraining, KeepsAPartOfTheOptimizerOnTheDevice) {
  for (const int stage : {2, 3}) {
    for (const double ratio : {0., 0.3, 0.7, 1.}) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", ratio ", ratio));
      Cluster("1x4:h100").run_on_every_rank([&](Rank& rank) {
        AcceleratorOptions options =
            options_of({.zero = {{"stage", stage},
                                 {"reduce_bucket_size", 1},
                                 {"stage3_param_persistence_threshold", 0},
                                 {"offload_optimizer", {{"device", "cpu"}, {"ratio", ratio}}}}});
        options.kwargs_handlers = {ShardedDataParallelKwargs{.group_bytes = 1}};
        Accelerator accelerator(options);
        lm::Lm net(tiny());
        int64_t total = 0, largest = 0;
        for (const Tensor& each : net->parameters()) {
          total += each.numel();
          largest = std::max(largest, each.numel());
        }
        optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
        auto [model, optimizer] = accelerator.prepare(net, adamw);
        accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *net, 0,
                                     rank.index(), accelerator.device()));
        int64_t on_device = 0;
        bool is_beyond = false;
        const std::vector<Tensor>& shards = adamw.param_groups()[0].params();
        for (size_t i = 0; i < shards.size(); ++i) {
          is_beyond = is_beyond || shards[i].is_cpu();
          EXPECT_EQ(shards[i].is_cpu(), is_beyond) << "first those on the device";
          if (!is_beyond) on_device += net->parameters()[i].numel();
          if (shards[i].numel() == 0) continue;
          const auto& state = static_cast<const torch::optim::AdamWParamState&>(
              *adamw.state().at(shards[i].unsafeGetTensorImpl()));
          EXPECT_EQ(state.exp_avg().device(), shards[i].device());
        }
        const double part = (1 - ratio) * static_cast<double>(total);
        EXPECT_LE(on_device, part);
        EXPECT_GE(on_device + largest, part);
      });
    }
  }
}

TEST(ZeroTraining, RefusesAPartOfTheStateOnADisk) {
  const Json block = {{"device", "nvme"}, {"nvme_path", "/sim/swap"}, {"ratio", 0.5}};
  Cluster("1x1:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator(options_of({.zero = {{"stage", 3}, {"offload_optimizer", block}}}));
    lm::Lm net(tiny());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(net, sgd); }),
                HasSubstr("offload_optimizer.ratio=0.5: with \"nvme\" this version keeps all"));
  });
}

TEST(ZeroTraining, HoldsGradientsInBf16WholeInStage1AndAsShardsInStage2) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const ZeroJob job{.zero = {{"stage", stage}, {"stage3_param_persistence_threshold", 0}},
                      .precision = PrecisionType::kBf16,
                      .accumulation = 2};
    Cluster("1x8:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of(job));
      lm::Lm net(tiny());
      const Formula formula(net->parameters(), 8, rank.index());
      int64_t whole = 0;
      for (const Tensor& each : net->parameters()) whole += blocks(2 * each.numel());
      optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const Tensor tokens = (torch::arange(24) % 37).view({2, 12}).to(accelerator.device());
      const int64_t before = rank.device()->memory().in_use();
      {
        const auto scope = accelerator.accumulate(model);
        accelerator.backward(torch::cross_entropy_loss(
            model(tokens).flatten(0, 1).to(torch::kFloat), tokens.flatten()));
      }
      EXPECT_EQ(rank.device()->memory().in_use() - before, stage == 1 ? whole : formula.gradients);
    });
  }
}

// ---- The engine.

TEST(ZeroTraining, StepsInBackwardAndOnlyThere) {
  const ZeroJob job{
      .shape = "1x2:h100", .zero = {{"stage", 2}}, .accumulation = 2, .max_norm = 0.01};
  Cluster(job.shape).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options_of(job));
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kDeepSpeed);
    lm::Lm net(tiny());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor shard = sgd.param_groups()[0].params()[1];
    const auto pass = [&](int step) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                   rank.index(), accelerator.device()));
    };
    const Tensor start = shard.detach().clone();
    pass(0);
    EXPECT_FALSE(accelerator.sync_gradients());
    EXPECT_TRUE(torch::equal(shard, start));
    EXPECT_TRUE(shard.grad().defined());
    optimizer.zero_grad();
    EXPECT_TRUE(shard.grad().defined());
    pass(1);
    EXPECT_TRUE(accelerator.sync_gradients());
    EXPECT_FALSE(torch::equal(shard, start));
    EXPECT_FALSE(shard.grad().defined());
    const Tensor after = shard.detach().clone();
    optimizer.step();
    EXPECT_TRUE(torch::equal(shard, after));
    EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
    const Tensor norm = accelerator.clip_grad_norm_(model, 1e-9);
    EXPECT_GT(norm.item<float>(), job.max_norm);
    EXPECT_EQ(accelerator.deepspeed_engine_wrapped()->get_global_grad_norm(), norm.item<double>());
    EXPECT_THROW(accelerator.clip_grad_value_(net->parameters(), 1.0), c10::ValueError);
  });
}

TEST(ZeroTraining, SkipsAStepOnAllRanksWhereOneOverflowsInFp16) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const ZeroJob job{
        .shape = "2x2:h100", .zero = {{"stage", stage}}, .precision = PrecisionType::kFp16};
    Cluster(job.shape).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of(job));
      lm::Lm net(tiny());
      optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      std::vector<bool> skipped;
      for (int step = 0; step < 3; ++step) {
        const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                    rank.index(), accelerator.device());
        const bool overflows = step == 1 && rank.index() == 2;
        const Tensor before = adamw.param_groups()[0].params()[1].detach().clone();
        accelerator.backward(overflows ? loss * std::numeric_limits<float>::infinity() : loss);
        skipped.push_back(accelerator.optimizer_step_was_skipped());
        const Tensor after = adamw.param_groups()[0].params()[1];
        EXPECT_EQ(torch::equal(before, after), step == 1 || after.numel() == 0);
      }
      EXPECT_EQ(skipped, (std::vector<bool>{false, true, false}));
    });
  }
}

TEST(ZeroTraining, SkipsAStepInBf16WhereTheConfigurationAsksForIt) {
  for (const bool checks : {false, true}) {
    Json config = config_of({.zero = {{"stage", 2}}});
    config["bf16"] = {{"enabled", true}, {"check_grad_overflow", checks}};
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config}});
      lm::Lm net(tiny());
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const Tensor shard = sgd.param_groups()[0].params()[1];
      for (const bool overflows : {true, false}) {
        const Tensor before = shard.detach().clone();
        const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, 0,
                                    rank.index(), accelerator.device());
        const bool here = overflows && rank.index() == 1;
        accelerator.backward(here ? loss * std::numeric_limits<float>::infinity() : loss);
        EXPECT_EQ(accelerator.optimizer_step_was_skipped(), overflows && checks);
        if (checks) EXPECT_EQ(torch::equal(shard, before), overflows);
      }
      EXPECT_EQ(shard.isfinite().all().item<bool>(), checks);
    });
  }
}

TEST(ZeroTraining, TakesOverWhatOneRankChangesInGatheredParameters) {
  for (const int stage : {1, 3}) {
    SCOPED_TRACE(stage);
    const ZeroJob job{.zero = {{"stage", stage}}, .precision = PrecisionType::kBf16};
    Cluster("1x3:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of(job));
      lm::Lm net(tiny());
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const Tensor changed = net->parameters()[0], other = net->parameters()[1];
      {
        const GatheredParameters scope(model, {changed}, {.modifier_rank = 1});
        const torch::NoGradGuard no_grad;
        changed.fill_(rank.index() + 5);
      }
      {
        // No changes stay.
        const GatheredParameters scope(model, {changed});
        EXPECT_TRUE(torch::equal(changed, torch::full_like(changed, 6)));
      }
      const auto whole = full_parameters(model, {.writeback = false});
      EXPECT_TRUE(torch::equal(changed, torch::full_like(changed, 6)));
      EXPECT_FALSE(torch::equal(other, torch::full_like(other, 6)));
    });
  }
}

TEST(ZeroTraining, MakesTheOptimizerAndTheScheduleOfTheConfiguration) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Json config = config_of({.zero = {{"stage", 2}}});
    config["optimizer"] = {{"type", "AdamW"},
                           {"params", {{"lr", "auto"}, {"weight_decay", "auto"}}}};
    config["scheduler"] = {{"type", "WarmupLR"},
                           {"params",
                            {{"warmup_min_lr", 0},
                             {"warmup_max_lr", "auto"},
                             {"warmup_num_steps", "auto"},
                             {"warmup_type", "linear"}}}};
    Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config}});
    lm::Lm net(tiny());
    DummyOptim dummy(net->parameters(), {.lr = 0.01, .weight_decay = 0.1});
    DummyScheduler dummy_schedule(dummy, {.warmup_num_steps = 4});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, dummy, dummy_schedule);
    std::vector<double> rates;
    for (int step = 0; step < 4; ++step) {
      accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                   rank.index(), accelerator.device()));
      scheduler.step();
      rates.push_back(scheduler.get_last_lr()[0]);
    }
    EXPECT_THAT(rates, ::testing::Pointwise(::testing::DoubleNear(1e-12),
                                            std::vector<double>{0, 0.0025, 0.005, 0.0075}));
  });
}

// The losses of a job whose configuration names its optimizer; without one it is LibTorch's
// Adagrad, which has state before its first step.
std::vector<double> losses_by(const Json& optimizer_block, const Json& zero) {
  std::vector<double> losses;
  Cluster("2x2:h100").run_on_every_rank([&](Rank& rank) {
    Json config = config_of({.zero = zero, .max_norm = 0.5});
    if (!optimizer_block.is_null()) config["optimizer"] = optimizer_block;
    Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config}});
    torch::manual_seed(5);
    lm::Lm net(tiny());
    DummyOptim dummy(net->parameters());
    torch::optim::Adagrad adagrad(net->parameters(), torch::optim::AdagradOptions(1e-2));
    const auto train = [&](auto& optimizer) {
      auto [model, prepared] = accelerator.prepare(net, optimizer);
      for (int step = 0; step < kSteps; ++step) {
        const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                    rank.index(), accelerator.device());
        accelerator.backward(loss);
        const double mean = accelerator.reduce(loss.detach(), Reduction::kMean).item<float>();
        if (rank.index() == 0) losses.push_back(mean);
      }
    };
    optimizer_block.is_null() ? train(adagrad) : train(dummy);
  });
  return losses;
}

TEST(ZeroTraining, TrainsByEveryOptimizerThatAConfigurationNames) {
  const std::vector<Json> blocks = {
      {{"type", "Adam"}, {"params", {{"lr", 1e-2}, {"adam_w_mode", false}}}},
      {{"type", "AdamW"}, {"params", {{"lr", 1e-2}, {"weight_decay", 0.1}}}},
      {{"type", "Adagrad"}, {"params", {{"lr", 1e-2}}}},
      {{"type", "Lion"}, {"params", {{"lr", 1e-3}}}},
      {{"type", "SGD"}, {"params", {{"lr", 0.1}, {"momentum", 0.9}}}}};
  const Json lamb = {{"type", "Lamb"}, {"params", {{"lr", 1e-2}}}};
  std::set<double> ends = {losses_by(lamb, {{"stage", 0}}).back()};
  for (const Json& block : blocks) {
    SCOPED_TRACE(block.dump());
    const std::vector<double> whole = losses_by(block, {{"stage", 0}});
    ends.insert(whole.back());
    for (const Json& way :
         {Json{{"stage", 1}}, Json{{"stage", 2}, {"offload_optimizer", on_host()}},
          Json{{"stage", 3}}}) {
      SCOPED_TRACE(way.dump());
      const auto are_near = ::testing::Pointwise(::testing::DoubleNear(1e-5), whole);
      EXPECT_THAT(losses_by(block, way), are_near);
      if (block["type"] == "Adagrad") EXPECT_THAT(losses_by(nullptr, way), are_near);
    }
  }
  EXPECT_EQ(ends.size(), blocks.size() + 1) << "no two of them train alike";
  try {
    losses_by(lamb, {{"stage", 1}});
    ADD_FAILURE() << "LAMB needs whole parameters";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("is Lamb, which needs whole parameters, but stage 1"));
  }
}

TEST(ZeroTraining, WhatItRefusesChangesNothing) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    Json config = config_of({.zero = {{"stage", 3}}});
    config["train_batch_size"] = "auto";
    Accelerator accelerator({.mixed_precision = PrecisionType::kFp8,
                             .deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config},
                             .kwargs_handlers = {MSAMPRecipeKwargs{}}});
    lm::Lm net(tiny());
    torch::optim::AdamW adamw(net->parameters(), 0.1);
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(net, adamw); }),
                HasSubstr("but stage 3 divides them; use stage 0, 1 or 2, or the recipe AO or TE"));
    EXPECT_TRUE(accelerator.deepspeed_plugin()->is_auto("train_batch_size"));
    EXPECT_FALSE(net->parameters()[0].is_privateuseone());
  });
}

// The arrangement of ranks by a parallelism_config does not divide a model twice.
TEST(ZeroTraining, DividesAmongAllRanksWhereTheyAreArrangedAsReplicas) {
  const auto weights_of = [](bool arranged) {
    std::vector<Tensor> weights;
    Cluster("1x4:h100").run_on_every_rank([&](Rank& rank) {
      AcceleratorOptions options = options_of({.zero = {{"stage", 2}}});
      if (arranged) options.parallelism_config = ParallelismConfig({.dp_replicate_size = 4});
      Accelerator accelerator(options);
      torch::manual_seed(5);
      lm::Lm net(tiny());
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *net, step,
                                     rank.index(), accelerator.device()));
      }
      const auto whole = full_parameters(model, {.writeback = false});
      if (rank.index() != 0) return;
      for (const Tensor& each : net->parameters()) weights.push_back(each.detach().cpu());
    });
    return weights;
  };
  const std::vector<Tensor> usual = weights_of(false), arranged = weights_of(true);
  for (size_t i = 0; i < usual.size(); ++i) EXPECT_TRUE(torch::equal(arranged[i], usual[i])) << i;
}

TEST(ZeroTraining, StepsTheModelsOfALossAndNeedsNoHandles) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options_of({.zero = {{"stage", 2}}, .max_norm = 0.1}));
    lm::Lm first(tiny()), second(tiny());
    const auto prepare = [&](lm::Lm& net) {
      auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
      // The prepared optimizer's handle goes.
      auto model = std::get<0>(accelerator.prepare(net, sgd));
      return std::pair{model, sgd->param_groups()[0].params()[1]};
    };
    auto [first_model, first_shard] = prepare(first);
    auto [second_model, second_shard] = prepare(second);
    EXPECT_EQ(accelerator.clip_grad_norm_(first_model, 1.0).item<float>(), 0);
    for (int step = 0; step < 4; ++step) {
      auto& model = step % 2 == 0 ? first_model : second_model;
      const Tensor before = first_shard.detach().clone(), other = second_shard.detach().clone();
      accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *first, step,
                                   rank.index(), accelerator.device()));
      EXPECT_EQ(torch::equal(first_shard, before), step % 2 == 1);
      EXPECT_EQ(torch::equal(second_shard, other), step % 2 == 0);
    }
  });
}

TEST(ZeroTraining, DividesModelsByThePluginThatItsNameSelects) {
  const auto plugin = [](int stage, double max_norm = 0, int64_t accumulation = 1) {
    return DeepSpeedPlugin{
        .hf_ds_config =
            config_of({.zero = {{"stage", stage}, {"stage3_param_persistence_threshold", 0}},
                       .accumulation = accumulation,
                       .max_norm = max_norm})};
  };
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(
        {.deepspeed_plugins = {{"student", plugin(2)},
                               {"teacher", plugin(3, /*max_norm=*/1e-3)},
                               {"other steps", plugin(2, 0, /*accumulation=*/2)}}});
    AcceleratorState& state = AcceleratorState::get();
    const auto prepare = [&](lm::Lm& net) {
      auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
      auto model = std::get<0>(accelerator.prepare(net, sgd));
      return std::pair{model, sgd->param_groups()[0].params()[1]};
    };
    const auto held = [&] {
      return rank.device()
          ->memory()
          .by_category()[static_cast<size_t>(MemoryCategory::kParameters)];
    };
    lm::Lm student(tiny()), second(tiny()), teacher(tiny());
    int64_t whole = 0, shards = 0;
    for (const Tensor& each : student->parameters()) {
      const int64_t rows = each.size(0), most = (rows + 1) / 2;
      whole += blocks(4 * 2 * most * each.numel() / rows);
      shards += blocks(4 * most * each.numel() / rows);
    }
    // The first one is selected at first, and divides any number of models.
    auto [student_model, shard] = prepare(student);
    EXPECT_EQ(held(), whole);
    const auto more = prepare(second);
    EXPECT_EQ(held(), 2 * whole);
    state.select_deepspeed_plugin("teacher");
    EXPECT_EQ(accelerator.deepspeed_plugin()->deepspeed_config()["zero_optimization"]["stage"], 3);
    auto [teacher_model, teacher_shard] = prepare(teacher);
    EXPECT_EQ(held(), 2 * whole + shards);
    // Each one trains by its own.
    const auto pass = [&](auto& model) {
      accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *student, 0,
                                   rank.index(), accelerator.device()));
    };
    const Tensor before = shard.detach().clone();
    pass(student_model);
    EXPECT_FALSE(torch::equal(shard, before));
    EXPECT_EQ(held(), 2 * whole + shards);
    const Tensor start = teacher_shard.detach().clone();
    EXPECT_EQ(held(), 2 * whole + shards);
    pass(teacher_model);
    EXPECT_FALSE(torch::equal(teacher_shard, start));
    // The teacher is clipped, which the student is not.
    EXPECT_LE((teacher_shard - start).norm().item<double>(), 0.1 * 1e-3 * 1.001);
    EXPECT_GT((shard - before).norm().item<double>(), 0.1 * 1e-3);
    EXPECT_EQ(held(), 2 * whole + shards);
    accelerator.get_state_dict(student_model);
    EXPECT_THROW(accelerator.get_state_dict(teacher_model), c10::ValueError) << "stage 3";
    state.select_deepspeed_plugin("other steps");
    lm::Lm other(tiny());
    try {
      prepare(other);
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("has another gradient_accumulation_steps"));
    }
    EXPECT_EQ(held(), 2 * whole + shards);
    try {
      state.select_deepspeed_plugin("pupil");
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("there is no deepspeed_plugin \"pupil\", only [\"student\", "
                            "\"teacher\", \"other steps\"]"));
    }
    EXPECT_TRUE(state.get_deepspeed_plugin("other steps").selected());
  });
}

// A layer of experts, of which each rank's data reaches another one.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    for (int i = 0; i < 4; ++i) experts->push_back(torch::nn::Linear(8, 8));
    register_module("experts", experts);
  }
  Tensor forward(const Tensor& x, int chosen) {
    return experts[chosen]->as<torch::nn::Linear>()->forward(x);
  }
  torch::nn::ModuleList experts;
};
struct MoeImpl : torch::nn::Module {
  MoeImpl() {
    first = register_module("first", torch::nn::Linear(8, 8));
    layer = register_module("layer", std::make_shared<ExpertsImpl>());
    last = register_module("last", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x, int chosen) {
    return last(torch::tanh(layer->forward(torch::tanh(first(x)), chosen)));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::shared_ptr<ExpertsImpl> layer;
};

TEST(ZeroTraining, TrainsExpertsThatOnlySomeRanksUse) {
  const auto loss_of_rank = [](auto&& model, int step, int rank, c10::Device device) {
    const Tensor x = torch::sin(torch::arange(24.).view({3, 8}) + step + rank).to(device);
    // The last expert is never used, and rank 0 changes its own.
    return model(x, rank == 0 ? step % 2 : rank).square().mean();
  };
  torch::manual_seed(7);
  const auto alone = std::make_shared<MoeImpl>();
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    for (int rank = 0; rank < 3; ++rank) {
      const auto forward = [&](const Tensor& x, int chosen) { return alone->forward(x, chosen); };
      (loss_of_rank(forward, step, rank, c10::kCPU) / 3).backward();
    }
    sgd.step();
  }
  // The plug-in's classes come from its configuration, its field, or a variable.
  constexpr const char* kClasses = "Experts";
  for (const char* by : {"leaf_module", "field", "variable", "both"}) {
    SCOPED_TRACE(by);
    const bool is_both = std::string(by) == "both";
    Json zero = {{"stage", 3}, {"stage3_param_persistence_threshold", 0}};
    if (is_both || std::string(by) == "leaf_module") {
      zero["leaf_module"] = {{"classes", Json::array({kClasses})}};
    }
    AcceleratorOptions options = options_of({.zero = zero});
    if (is_both || std::string(by) == "field") {
      options.deepspeed_plugin->transformer_moe_cls_names = kClasses;
    }
    simulator::ClusterOptions cluster;
    if (std::string(by) == "variable") {
      cluster.environment.set("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", kClasses);
    }
    Cluster("1x3:h100", cluster).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options);
      torch::manual_seed(7);
      const auto net = std::make_shared<MoeImpl>();
      torch::optim::SGD own(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, own);
      for (int step = 0; step < 3; ++step) {
        const auto forward = [&](const Tensor& x, int chosen) { return model(x, chosen); };
        accelerator.backward(loss_of_rank(forward, step, rank.index(), accelerator.device()));
      }
      const auto whole = full_parameters(model, {.writeback = false});
      const auto expected = alone->named_parameters();
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(torch::allclose(item.value().cpu(), expected[item.key()], 1e-5, 1e-6))
            << item.key();
      }
    });
  }
}

// One unknown class among several; what fails changes nothing.
TEST(ZeroTraining, NamesAnExpertsClassThatTheModelDoesNotHave) {
  for (const int stage : {2, 3}) {
    AcceleratorOptions options = options_of({.zero = {{"stage", stage}}});
    options.deepspeed_plugin->transformer_moe_cls_names = "Experts,Expert";
    Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
      Accelerator accelerator(options);
      const auto net = std::make_shared<MoeImpl>();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      EXPECT_EQ(value_error_of([&] { accelerator.prepare(net, sgd); }),
                "Could not find a transformer layer class called 'Expert' to wrap in the model.");
      accelerator.deepspeed_plugin()->transformer_moe_cls_names = "Experts,Moe";
      EXPECT_EQ(value_error_of([&] { accelerator.prepare(net, sgd); }), "no error");
    });
  }
}

// A file with names that DeepSpeed takes besides those of its documentation, and with keys that it
// ignores.
TEST(ZeroTraining, TakesWhatDeepSpeedTakes) {
  const Json zero = {{"stage", 3},
                     {"max_live_parameters", 0},
                     {"max_reuse_distance", 0},
                     {"param_persistence_threshold", "auto"},
                     {"gather_16bit_weights_on_model_save", true},
                     {"cpu_offload", true}};
  AcceleratorOptions options = options_of(
      {.zero = zero,
       .more = {{"_comment", "small"}, {"fp16", {{"enabled", false}, {"opt_level", "O1"}}}}});
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    const RecordedWarnings warnings;
    Accelerator accelerator(options);
    const auto ignores = ::testing::Contains(
        HasSubstr("its configuration has _comment, fp16.opt_level, which DeepSpeed does not know"));
    if (rank.index() == 0) {
      EXPECT_THAT(warnings.texts(), ignores);
    } else {
      EXPECT_THAT(warnings.texts(), ::testing::Not(ignores));
    }
    lm::Lm net(tiny());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const DeepSpeedPlugin& plugin = *accelerator.deepspeed_plugin();
    EXPECT_EQ(plugin.get_value("zero_optimization.stage3_param_persistence_threshold"), 480);
    EXPECT_EQ(plugin.get_value("zero_optimization.max_live_parameters"), nullptr);
    EXPECT_EQ(*plugin.offload_optimizer_device, "cpu");
    EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_cpu());
    accelerator.backward(loss_of([&](const Tensor& x) { return model(x); }, *net, 0, rank.index(),
                                 accelerator.device()));
    EXPECT_EQ(accelerator.get_state_dict(model).empty(), rank.index() > 0);
  });
}

// The forward pass left gradients on their rank; the engine is told that this pass steps.
TEST(ZeroTraining, SynchronisesWhereTheEngineIsAskedTo) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options_of({.zero = {{"stage", 1}}, .accumulation = 2}));
    lm::Lm net(tiny());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor shard = sgd.param_groups()[0].params()[1], before = shard.detach().clone();
    const auto scope = accelerator.accumulate(model);
    const Tensor loss = loss_of([&](const Tensor& x) { return model(x); }, *net, 0, rank.index(),
                                accelerator.device());
    accelerator.deepspeed_engine_wrapped()->backward(loss, /*sync_gradients=*/true);
    EXPECT_FALSE(torch::equal(shard, before));
  });
}

TEST(ZeroTraining, RefusesPlaceholdersWithoutAConfiguration) {
  Cluster("1x1:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator;
    lm::Lm net(tiny());
    DummyOptim dummy(net->parameters());
    try {
      accelerator.prepare(net, dummy);
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("stand for what the configuration"));
    }
  });
}

}  // namespace
}  // namespace accelerate
