// prepare_megatron_lm: what becomes of objects, and what the plug-in learns of them.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/megatron_lm.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/megatron/engine_training.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr int64_t kLength = 16;
constexpr int64_t kVocabulary = 100;
constexpr int64_t kPadded = 128;

// A model that says its sizes in the words of GPT-2.
class SmallGptImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& tokens) { return head_(embedding_(tokens)); }
  nlohmann::json transformers_config() const {
    return {{"model_type", "gpt2"}, {"n_layer", 1},      {"n_embd", 8},
            {"n_head", 1},          {"n_positions", 32}, {"vocab_size", kVocabulary},
            {"return_dict", true}};
  }

 private:
  torch::nn::Embedding embedding_ = register_module("embedding", torch::nn::Embedding(kPadded, 8));
  torch::nn::Linear head_ = register_module("head", torch::nn::Linear(8, kPadded));
};
TORCH_MODULE(SmallGpt);

// Sequences whose tokens are all the sequence's number.
std::vector<MegatronBatch> numbered(int64_t count) {
  std::vector<MegatronBatch> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back({{"input_ids", torch::full({kLength}, i, torch::kLong)}});
  }
  return samples;
}

class Numbered final : public MegatronDataset {
 public:
  explicit Numbered(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  MegatronBatch get(int64_t index) const override {
    return {{"text", torch::full({kLength + 1}, index, torch::kLong)}};
  }

 private:
  int64_t size_;
};

MegatronLMPlugin gpt_plugin() {
  MegatronLMPlugin plugin;
  plugin.train_iters = 4;
  return plugin;
}

torch::optim::AdamW adam_of(const SmallGpt& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-3));
}

TEST(PrepareMegatronLm, TrainsAsAnEngineThatIsMadeByHand) {
  constexpr int64_t kLayers = 2;
  const lm::Config config =
      lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = kLayers});
  const MegatronLMPlugin plugin = plugin_of_formula(kLayers, {.tp_degree = 2});
  at::Tensor text;
  double usual = 0;
  run_engines("1x2:h100", nullptr, config, plugin, {}, [&](EngineJob& job, int rank) {
    const double loss = job.engine().train_step(job.batch(0)).loss.item<double>();
    if (rank != 0) return;
    usual = loss;
    text = job.batch(0).at("text");
  });
  Cluster("1x2:h100").run_on_every_rank([&](Rank& /*rank*/) {
    Accelerator accelerator({.megatron_lm_plugin = plugin});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMegatronLm);
    EXPECT_EQ(accelerator.parallelism_config()->tp_size(), 2);
    lm::Lm net(config);
    fill_by_formula(*net);
    const torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-3));
    const DataLoader data(make_tensor_dataset(text), {.batch_size = 2});
    auto [model, optimizer, loader, scheduler] =
        prepare_megatron_lm(accelerator, net, adam, data, MegatronLMDummyScheduler{});
    EXPECT_EQ(loader.batch_size(), 8) << "four micro-batches of two rows";
    int steps = 0;
    for (auto& [rows] : loader) {
      const MegatronStep step = model->forward({{"text", rows}});
      EXPECT_NEAR(step.loss.item<double>(), usual, 1e-6 * usual);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      EXPECT_FALSE(optimizer.step_was_skipped());
      ++steps;
    }
    EXPECT_EQ(steps, 1);
    EXPECT_EQ(model->consumed_samples(), 8);
  });
}

TEST(PrepareMegatronLm, LearnsFromVariablesAndObjects) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& /*rank*/) {
    Environment& environment = Runtime::current().environment();
    environment.set("ACCELERATE_USE_MEGATRON_LM", "true");
    environment.set("MEGATRON_LM_NUM_MICRO_BATCHES", "2");
    Accelerator accelerator;
    const SmallGpt net;
    const DataLoader data(numbered(24), {.batch_size = 3});
    auto [scheduler, model, loader, optimizer] = prepare_megatron_lm(
        accelerator, MegatronLMDummyScheduler{.total_num_steps = 100}, net, data, adam_of(net));
    const MegatronLMPlugin& plugin = *accelerator.megatron_lm_plugin();
    EXPECT_EQ(plugin.micro_batch_size, 3);
    EXPECT_EQ(plugin.global_batch_size, 3 * 2 * 2);
    EXPECT_EQ(plugin.train_iters, 50) << "a share of the steps of all ranks";
    const Json& args = plugin.megatron_lm_default_args;
    EXPECT_EQ(args["seq_length"], kLength) << "the batch's, not n_positions";
    EXPECT_EQ(args["num_layers"], 1);
    EXPECT_EQ(args["padded_vocab_size"], kPadded);
    EXPECT_EQ(args["optimizer"], "adam");
    int steps = 0;
    for (const MegatronBatch& batch : loader) {
      EXPECT_EQ(batch.at("input_ids").size(0), 6);
      EXPECT_GT(model->train_step(batch).grad_norm.value(), 0);
      ++steps;
    }
    EXPECT_EQ(steps, 2) << "of 12 rows each";
    EXPECT_FALSE(optimizer.step_was_skipped());
    scheduler.step();
    // What an earlier Accelerator has read stays.
    const Accelerator second;
    EXPECT_EQ(second.megatron_lm_plugin(), &plugin);
  });
}

// The line says the optimizer and the schedule, so that there is nothing else to prepare.
TEST(PrepareMegatronLm, TrainsByACommandLineOfMegatronLm) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& /*rank*/) {
    const MegatronCommandLine line = read_megatron_command_line(
        {"--micro-batch-size", "3", "--global-batch-size", "12", "--train-iters", "4", "--lr",
         "0.1", "--lr-decay-style", "constant", "--weight-decay", "0.25", "--seq-length", "16"},
        {.num_ranks = 2});
    Accelerator accelerator(
        {.mixed_precision = line.mixed_precision, .megatron_lm_plugin = line.plugin});
    const SmallGpt net;
    const DataLoader data(numbered(24), {.batch_size = 3});
    auto [model, loader] = prepare_megatron_lm(accelerator, net, data);
    const Json& args = accelerator.megatron_lm_plugin()->megatron_lm_default_args;
    EXPECT_EQ(args["global_batch_size"], 12);
    EXPECT_EQ(args["weight_decay"], 0.25);
    EXPECT_EQ(args["optimizer"], "adam");
    int steps = 0;
    for (const MegatronBatch& batch : loader) {
      EXPECT_EQ(batch.at("input_ids").size(0), 6);
      EXPECT_GT(model->train_step(batch).grad_norm.value(), 0);
      ++steps;
    }
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(model->consumed_samples(), 24);
  });
}

TEST(PrepareMegatronLm, PadsTheVocabularyForRanksAlongTp) {
  constexpr int64_t kLayers = 2;
  const lm::Config config =
      lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = kLayers});
  for (const bool has_divisor : {false, true}) {
    MegatronLMPlugin plugin = plugin_of_formula(kLayers, {.tp_degree = 2});
    Json& others = plugin.other_megatron_args.value();
    others["orig_vocab_size"] = 300;
    if (has_divisor) others["make_vocab_size_divisible_by"] = 7;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& /*rank*/) {
      Accelerator accelerator({.megatron_lm_plugin = plugin});
      const lm::Lm net(config);
      const torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-3));
      const DataLoader data(numbered(8), {.batch_size = 2});
      prepare_megatron_lm(accelerator, net, adam, data, MegatronLMDummyScheduler{});
      EXPECT_EQ(accelerator.megatron_lm_plugin()->megatron_lm_default_args["padded_vocab_size"],
                has_divisor ? 22 * 7 * 2 : 2 * 128 * 2);
    });
  }
}

TEST(PrepareMegatronLm, ReadsSetsOfTokens) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    MegatronLMPlugin plugin = gpt_plugin();
    plugin.num_micro_batches = 2;
    plugin.megatron_dataset_flag = true;
    plugin.eval_iters = 1;
    plugin.consumed_samples = std::vector<int64_t>{8};
    plugin.custom_megatron_datasets_provider_function =
        [](const std::array<int64_t, 3>& num_samples) {
          EXPECT_EQ(num_samples, (std::array<int64_t, 3>{32, 8, 8}));
          return std::array<std::shared_ptr<MegatronDataset>, 3>{
              std::make_shared<Numbered>(num_samples[0]), std::make_shared<Numbered>(9), nullptr};
        };
    Accelerator accelerator({.megatron_lm_plugin = plugin});
    const SmallGpt net;
    const MegatronLMDummyDataLoader tokens(Json{{"micro_batch_size", 2}});
    auto [training, validation, model, optimizer, scheduler] = prepare_megatron_lm(
        accelerator, tokens, tokens, net, adam_of(net), MegatronLMDummyScheduler{});
    int64_t next = 8;  // behind the samples that were consumed
    for (const MegatronBatch& batch : training) {
      const at::Tensor text = batch.at("text").cpu();
      ASSERT_EQ(text.size(0), 4);
      EXPECT_EQ(text[0][0].item<int64_t>(), next + 4 * rank.index());
      EXPECT_EQ(text[3][0].item<int64_t>(), next + 4 * rank.index() + 3);
      model->train_step(batch);
      next += 8;
    }
    EXPECT_EQ(next, 32);
    EXPECT_EQ(model->consumed_samples(), 24);
    EXPECT_EQ(validation.size(), 1) << "whole batches alone";
  });
}

TEST(PrepareMegatronLm, TakesTheModelOfTheProgramsFunctions) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    const SmallGpt made, given;
    MegatronLMPlugin plugin = gpt_plugin();
    plugin.custom_model_provider_function = [&](bool pre_process, bool post_process) {
      EXPECT_TRUE(pre_process && post_process) << "the engine divides a whole model";
      return made.ptr();
    };
    plugin.custom_prepare_model_function = [](const MegatronModelProvider& provider) {
      return std::vector<std::shared_ptr<torch::nn::Module>>{provider(true, true)};
    };
    Accelerator accelerator({.megatron_lm_plugin = plugin});
    const DataLoader data(numbered(4), {.batch_size = 2});
    auto [model, loader, optimizer, scheduler] =
        prepare_megatron_lm(accelerator, given, data, adam_of(given), MegatronLMDummyScheduler{});
    EXPECT_EQ(model->model().module(), made.ptr());
  });
}

// ---- Bad input.

// A scheduler that is not the dummy would follow none of the engine's steps: it does not compile,
// in whatever form it is given.
static_assert(internal::IsOtherScheduler<torch::optim::StepLR>);
static_assert(internal::IsOtherScheduler<std::shared_ptr<torch::optim::StepLR>>);
static_assert(internal::IsOtherScheduler<std::shared_ptr<torch::optim::LRScheduler>>);
static_assert(internal::IsOtherScheduler<torch::optim::ReduceLROnPlateauScheduler>);
static_assert(internal::IsOtherScheduler<AcceleratedScheduler>);
static_assert(internal::IsOtherScheduler<DummyScheduler>);
static_assert(!internal::IsOtherScheduler<MegatronLMDummyScheduler>);
static_assert(!internal::IsOtherScheduler<std::shared_ptr<torch::optim::AdamW>>);
static_assert(!internal::IsOtherScheduler<SmallGpt>);

TEST(PrepareMegatronLmBadInput, WhatIsMissingIsNamed) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    Accelerator accelerator({.megatron_lm_plugin = gpt_plugin()});
    const SmallGpt net;
    const MegatronLMDummyScheduler scheduler;
    EXPECT_THAT(
        value_error_of([&] { prepare_megatron_lm(accelerator, net, adam_of(net), scheduler); }),
        HasSubstr("You must specify a training or evaluation dataloader"));
    EXPECT_EQ(accelerator.megatron_lm_plugin()->micro_batch_size, std::nullopt);
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(net); }),
                HasSubstr("is prepared by prepare_megatron_lm"));
    const DataLoader data(numbered(4), {.batch_size = 2});
    const auto prepared = prepare_megatron_lm(accelerator, net, data, adam_of(net), scheduler);
    const SmallGpt second;
    EXPECT_THAT(value_error_of([&] {
                  prepare_megatron_lm(accelerator, second, data, adam_of(second), scheduler);
                }),
                HasSubstr("multiple models"));
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(second); }),
                HasSubstr("an Accelerator has one engine"));
  });
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    Accelerator accelerator;
    const SmallGpt net;
    EXPECT_THAT(value_error_of([&] { prepare_megatron_lm(accelerator, net); }),
                HasSubstr("has no megatron_lm_plugin"));
  });
}

TEST(PrepareMegatronLmBadInput, AFunctionThatMakesAnotherModelIsNamed) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    MegatronLMPlugin plugin = gpt_plugin();
    plugin.custom_model_provider_function = [](bool /*pre_process*/, bool /*post_process*/) {
      return std::make_shared<torch::nn::LinearImpl>(2, 2);
    };
    Accelerator accelerator({.megatron_lm_plugin = plugin});
    const SmallGpt net;
    const DataLoader data(numbered(4), {.batch_size = 2});
    EXPECT_THAT(value_error_of([&] {
                  prepare_megatron_lm(accelerator, net, data, adam_of(net),
                                      MegatronLMDummyScheduler{});
                }),
                HasSubstr("a model of another class"));
  });
}

TEST(PrepareMegatronLmBadInput, OptionsBesideThePluginAreNamed) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& /*rank*/) {
    const auto refused = [](const AcceleratorOptions& options) {
      return value_error_of([&] { Accelerator accelerator(options); });
    };
    const MegatronLMPlugin plugin = {.tp_degree = 2};
    EXPECT_THAT(refused({.parallelism_config = ParallelismConfig({.tp_size = 2}),
                         .megatron_lm_plugin = plugin}),
                AllOf(HasSubstr("megatron_lm_plugin (ACCELERATE_USE_MEGATRON_LM)"),
                      HasSubstr("there is a parallelism_config")));
    EXPECT_THAT(refused({.split_batches = true, .megatron_lm_plugin = plugin}),
                HasSubstr("there is split_batches as well"));
    EXPECT_THAT(refused({.megatron_lm_plugin = plugin, .kwargs_handlers = {PipelinePlan{}}}),
                HasSubstr("there is a PipelinePlan as well"));
    EXPECT_THAT(refused({.megatron_lm_plugin = MegatronLMPlugin{.tp_degree = 4}}),
                HasSubstr("the nearest number that they divide is 4"));
    const Accelerator first({.megatron_lm_plugin = plugin});
    EXPECT_THAT(
        refused({.megatron_lm_plugin = MegatronLMPlugin{.tp_degree = 2, .gradient_clipping = 0.5}}),
        HasSubstr("contradicts an earlier Accelerator of this rank"));
  });
}

}  // namespace
}  // namespace accelerate
