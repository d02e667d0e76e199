// What an engine does besides training as Megatron-Core does: rates, evaluation, checkpoints of
// other degrees, and what it refuses.
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/megatron/preparation.h"
#include "accelerate/megatron_lm.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/megatron/engine_training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFolder[] = "/sim/run/saved";
constexpr int64_t kRows = 8;

MegatronLMPlugin plugin_of(const MegatronLMPlugin& degrees) {
  return plugin_of_formula(kSmallLayers, degrees);
}

struct Layout {
  int ranks = 1;
  MegatronLMPlugin degrees = {};
};

// ---- Steps.

TEST(Engine, FollowsTheScheduleOfItsArguments) {
  MegatronLMPlugin plugin = plugin_of({});
  plugin.lr_decay_style = "linear";
  plugin.lr_warmup_iters = 2;
  run_engines("1x1:h100", nullptr, small_model(), plugin, {}, [](EngineJob& job, int) {
    const auto weights = [&] { return job.whole(); };
    const NamedTensors before = weights();
    EXPECT_EQ(job.engine().train_step(job.batch(0)).skipped, false);
    EXPECT_EQ(job.engine().consumed_samples(), kRows);
    const NamedTensors after = weights();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].second.equal(before[i].second)) << "the first rate of a warmup is 0";
    }
    job.engine().train_step(job.batch(1));
    EXPECT_FALSE(weights()[0].second.equal(before[0].second));
  });
}

TEST(Engine, EvaluatesWithoutTraining) {
  for (const MegatronLMPlugin& degrees :
       {MegatronLMPlugin{.tp_degree = 2}, MegatronLMPlugin{.pp_degree = 2}}) {
    run_engines("1x2:h100", nullptr, small_model(), plugin_of(degrees), {},
                [](EngineJob& job, int) {
                  job.engine().eval();
                  const double loss = job.engine().forward(job.batch(0)).loss.item<double>();
                  EXPECT_EQ(job.engine().consumed_samples(), 0);
                  job.engine().train();
                  const MegatronStep step = job.engine().forward(job.batch(0));
                  EXPECT_NEAR(step.loss.item<double>(), loss, 1e-6 * loss);
                  EXPECT_GT(step.grad_norm.value(), 0);
                  EXPECT_LT(job.engine().eval_step(job.batch(0)).loss.item<double>(), loss);
                });
  }
}

// Ranks that divide rows of parameters make as many passes, whatever their rows are.
TEST(Engine, EvaluatesOtherNumbersOfRowsOnEachShare) {
  double expected = 0;
  run_engines("1x1:h100", nullptr, small_model(), plugin_of({}), {}, [&](EngineJob& job, int) {
    const MegatronBatch rows = {{"text", job.batch(0).at("text").narrow(0, 0, 5)}};
    expected = job.engine().eval_step(rows).loss.item<double>();
  });
  run_engines("1x2:h100", nullptr, small_model(), plugin_of({.use_distributed_optimizer = true}),
              {}, [&](EngineJob& job, int rank) {
                // Four of the first share, and one of the other.
                const MegatronBatch rows = {
                    {"text", job.batch(0).at("text").narrow(0, 0, rank == 0 ? 4 : 1)}};
                EXPECT_NEAR(job.engine().eval_step(rows).loss.item<double>(), expected,
                            2e-6 * expected);
              });
}

TEST(Engine, ReturnsLogitsOfTheLastStage) {
  at::Tensor of_stages;
  for (const MegatronLMPlugin& degrees :
       {MegatronLMPlugin{.pp_degree = 2}, MegatronLMPlugin{.context_parallel_size = 2}}) {
    MegatronLMPlugin plugin = plugin_of(degrees);
    plugin.return_logits = true;
    plugin.other_megatron_args.value()["return_logits"] = true;
    run_engines("1x2:h100", nullptr, small_model(), plugin, {}, [&](EngineJob& job, int rank) {
      const MegatronStep step = job.engine().eval_step(job.batch(0));
      ASSERT_EQ(step.logits.defined(), rank == 1 || !degrees.pp_degree);
      if (rank == 0) return;
      EXPECT_EQ(step.logits.size(0), kRows);
      if (degrees.pp_degree) {
        of_stages = step.logits.cpu();
      } else {
        EXPECT_TRUE(torch::allclose(step.logits.cpu(), of_stages, 1e-4, 1e-5))
            << "of whole sequences, in their order";
      }
    });
  }
}

TEST(Engine, TakesFunctionsOfTheProgram) {
  MegatronLMPlugin plugin = plugin_of({.tp_degree = 2});
  plugin.custom_get_batch_function = [](const MegatronBatch& batch) {
    const at::Tensor text = batch.at("text");
    const int64_t length = text.size(1) - 1;
    return std::vector<at::Tensor>{text.narrow(1, 0, length), text.narrow(1, 1, length)};
  };
  plugin.custom_loss_function = [](const std::vector<at::Tensor>& inputs) {
    return MegatronLoss{
        .loss = torch::cross_entropy_loss(inputs[1].flatten(0, 1), inputs[0].flatten())};
  };
  double usual = 0;
  run_engines("1x2:h100", nullptr, small_model(), plugin_of({.tp_degree = 2}), {},
              [&](EngineJob& job, int rank) {
                const double loss = job.engine().train_step(job.batch(0)).loss.item<double>();
                if (rank == 0) usual = loss;
              });
  run_engines("1x2:h100", nullptr, small_model(), plugin, {}, [&](EngineJob& job, int) {
    EXPECT_NEAR(job.engine().train_step(job.batch(0)).loss.item<double>(), usual, 1e-6 * usual);
  });
}

class StepOfTheProgram final : public AbstractTrainStep {
 public:
  const char* name() const override { return "StepOfTheProgram"; }
  std::vector<at::Tensor> get_batch(const MegatronBatch& batch) const override {
    const at::Tensor text = batch.at("text");
    const int64_t length = text.size(1) - 1;
    return {text.narrow(1, 0, length), text.narrow(1, 1, length)};
  }
  MegatronLoss loss(const std::vector<at::Tensor>& inputs) const override {
    return {.loss = 2 * torch::cross_entropy_loss(inputs[1].flatten(0, 1), inputs[0].flatten())};
  }
};

TEST(Engine, TakesATrainStepOfTheProgram) {
  MegatronLMPlugin plugin = plugin_of({});
  plugin.custom_train_step_kwargs = nlohmann::ordered_json{{"factor", 2}};
  plugin.custom_train_step_class = [](const nlohmann::ordered_json& args,
                                      const nlohmann::ordered_json& kwargs) {
    EXPECT_EQ(args.at("num_layers"), kSmallLayers);
    EXPECT_EQ(kwargs.at("factor"), 2);
    return std::make_shared<StepOfTheProgram>();
  };
  double usual = 0;
  run_engines("1x1:h100", nullptr, small_model(), plugin_of({}), {}, [&](EngineJob& job, int) {
    usual = job.engine().eval_step(job.batch(0)).loss.item<double>();
  });
  run_engines("1x1:h100", nullptr, small_model(), plugin, {}, [&](EngineJob& job, int) {
    const double loss = job.engine().eval_step(job.batch(0)).loss.item<double>();
    EXPECT_NEAR(loss, 2 * usual, 2e-6 * usual);
  });
}

// The engine has stepped; what a program calls behind that has no effect.
TEST(Engine, StepsByItself) {
  run_engines("1x1:h100", nullptr, small_model(), plugin_of({}), {}, [](EngineJob& job, int) {
    job.engine().train_step(job.batch(0));
    const NamedTensors before = job.whole();
    const auto optimizer = job.engine().optimizer();
    optimizer.step();
    optimizer.zero_grad();
    job.engine().scheduler().step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    const NamedTensors after = job.whole();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].second.equal(before[i].second)) << before[i].first;
    }
  });
}

TEST(Engine, GivesTheBatchAndTheLossOfItsTrainStep) {
  run_engines("1x1:h100", nullptr, small_model(), plugin_of({}), {}, [](EngineJob& job, int) {
    std::vector<at::Tensor> inputs = job.engine().get_batch(job.batch(0));
    ASSERT_EQ(inputs.size(), 3U) << "tokens, labels and their mask";
    const at::Tensor logits = torch::zeros({inputs[0].size(0), inputs[0].size(1), 256},
                                           inputs[0].options().dtype(torch::kFloat));
    inputs.erase(inputs.begin());
    EXPECT_NEAR(job.engine().loss_func(inputs, logits).item<double>(), std::log(256), 1e-5);
  });
}

struct CountedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return torch::tanh(linear(x));
  }
  int calls = 0;
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 8));
};
TORCH_MODULE(Counted);

struct ThreeBlocksImpl : torch::nn::Module {
  ThreeBlocksImpl() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Counted()));
    }
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embedding(tokens);
    for (const Counted& each : blocks) x = block(each, x);
    return head(x);
  }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(256, 8));
  std::vector<Counted> blocks;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 256));
};
TORCH_MODULE(ThreeBlocks);

// How often blocks compute in a step of one micro-batch.
int calls_of_a_step(MegatronLMPlugin plugin, const nlohmann::ordered_json& others = {}) {
  plugin.num_micro_batches = 1;
  plugin = plugin_of(plugin);
  if (!others.is_null()) plugin.other_megatron_args.value().update(others);
  int calls = 0;
  run_engine_of<ThreeBlocks>("1x1:h100", plugin, [&calls](auto& engine, const auto& net, int) {
    engine.train_step(MegatronBatch{{"text", torch::ones({2, 5}, at::kLong)}});
    for (const Counted& each : net.blocks) calls += each->calls;
  });
  return calls;
}

TEST(Engine, ComputesAsManyBlocksAgainAsItIsTold) {
  using Json = nlohmann::ordered_json;
  EXPECT_EQ(calls_of_a_step({}), 3);
  EXPECT_EQ(calls_of_a_step({.recompute_activations = true}), 6);
  EXPECT_EQ(calls_of_a_step({.recompute_method = "block", .recompute_activations = true}), 4);
  EXPECT_EQ(
      calls_of_a_step(
          {.recompute_method = "block", .recompute_num_layers = 2, .recompute_activations = true}),
      5);
  EXPECT_EQ(calls_of_a_step({.recompute_granularity = "selective", .recompute_activations = true}),
            3);
  EXPECT_EQ(calls_of_a_step({}, Json{{"recompute_granularity", "full"}}), 6);
  EXPECT_EQ(calls_of_a_step({}, Json{{"recompute_granularity", "selective"}}), 3);
}

// Rows have more and more of it, so that micro-batches and shares of the data differ.
TEST(Engine, CountsNoTokenThatIsPadding) {
  constexpr int64_t kPadding = 255;
  const auto padded = [](const EngineJob& job, int64_t first_row) {
    const at::Tensor text = job.batch(0).at("text").clone();
    for (int64_t row = 0; row < text.size(0); ++row) {
      const int64_t count = 3 * (first_row + row);
      text[row].narrow(0, text.size(1) - count, count).fill_(kPadding);
    }
    return MegatronBatch{{"text", text}};
  };
  double expected = 0;
  run_engines("1x1:h100", nullptr, small_model(), plugin_of({}), {}, [&](EngineJob& job, int) {
    const MegatronBatch batch = padded(job, 0);
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> inputs = job.engine().get_batch(batch);
    auto model = job.engine().model();
    const at::Tensor losses = torch::cross_entropy_loss(
        model(inputs[0]).flatten(0, 1), inputs[1].flatten(), /*weight=*/{}, at::Reduction::None);
    const at::Tensor counts = inputs[0].flatten().ne(kPadding);
    expected = losses.masked_select(counts).mean().item<double>();
  });
  ASSERT_GT(expected, 0);
  for (const char* cluster : {"1x1:h100", "1x2:h100"}) {
    run_engines(cluster, nullptr, small_model(), plugin_of({}), {}, [&](EngineJob& job, int rank) {
      const MegatronBatch batch = padded(job, rank * job.batch(0).at("text").size(0));
      const double loss = job.engine().train_step(batch).loss.item<double>();
      EXPECT_NEAR(loss, expected, 2e-6 * expected) << cluster;
    });
  }
}

TEST(AverageLosses, AreMeansOverDataParallelRanks) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(
        {.parallelism_config = ParallelismConfig({.dp_replicate_size = 2, .tp_size = 2})});
    const double own = rank.index() < 2 ? 0 : 1;  // ranks along tp have the same loss
    const std::vector<at::Tensor> means = average_losses_across_data_parallel_group(
        accelerator, {torch::tensor(own), torch::tensor(3 * own)});
    EXPECT_EQ(means.size(), 2U);
    EXPECT_EQ(means[0].item<double>(), 0.5);
    EXPECT_EQ(means[1].item<double>(), 1.5);
    const at::Tensor all = gather_across_data_parallel_groups(
        accelerator, torch::tensor({own}).to(accelerator.device()));
    EXPECT_TRUE(all.cpu().equal(torch::tensor({0.0, 1.0}))) << "one of each share of the data";
  });
}

// ---- Checkpoints.

using ByName = std::map<std::string, at::Tensor>;

// Two steps of a training that has had two, on rank 0.
struct Going {
  ByName before;  // weights
  std::vector<double> losses;
  ByName after;
};

Going going_on(EngineJob& job) {
  const NamedTensors before = job.whole();
  Going going = {.before = ByName(before.begin(), before.end()), .losses = {}, .after = {}};
  for (int step = 2; step < 4; ++step) {
    going.losses.push_back(job.engine().train_step(job.batch(step)).loss.item<double>());
  }
  const NamedTensors after = job.whole();
  going.after = ByName(after.begin(), after.end());
  return going;
}

void expect_same_bits(const ByName& got, const ByName& expected) {
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.at(name).equal(tensor)) << name << ", to the bit";
  }
}

// A job saves, one of other degrees loads that and saves it again, and the first one goes on from
// there: as if it had not been away.
TEST(EngineCheckpoint, GoesOnWithOtherDegrees) {
  const Layout one = {}, tp2 = {2, {.tp_degree = 2}}, pp2 = {2, {.pp_degree = 2}},
               both = {4, {.tp_degree = 2, .pp_degree = 2}};
  constexpr char kOther[] = "/sim/run/saved_again";
  int pair = 0;
  for (const auto& [from, to] :
       {std::pair(tp2, pp2), std::pair(pp2, tp2), std::pair(both, tp2), std::pair(pp2, both),
        std::pair(both, one), std::pair(one, both)}) {
    SCOPED_TRACE("pair " + std::to_string(pair++));
    const auto disk = std::make_shared<SimDisk>();
    Going saved, other, again;
    const auto run = [&disk](const Layout& layout, Going& going,
                             const std::function<void(EngineJob&)>& begin) {
      run_engines("1x" + std::to_string(layout.ranks) + ":h100", disk, small_model(),
                  plugin_of(layout.degrees), {}, [&](EngineJob& job, int rank) {
                    begin(job);
                    EXPECT_EQ(job.engine().consumed_samples(), 2 * kRows);
                    Going own = going_on(job);
                    if (rank == 0) going = std::move(own);
                  });
    };
    run(from, saved, [](EngineJob& job) {
      for (int step = 0; step < 2; ++step) job.engine().train_step(job.batch(step));
      job.engine().save_checkpoint(kFolder);
    });
    run(to, other, [&](EngineJob& job) {
      job.engine().load_checkpoint(kFolder);
      job.engine().save_checkpoint(kOther);
    });
    run(from, again, [&](EngineJob& job) { job.engine().load_checkpoint(kOther); });
    ASSERT_FALSE(saved.before.empty());
    expect_same_bits(other.before, saved.before);
    ASSERT_EQ(other.losses.size(), saved.losses.size());
    for (size_t i = 0; i < saved.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], saved.losses[i], 1e-6 * saved.losses[i]) << "step " << i;
    }
    // The optimizer's state as well, on which the second loss and these weights depend.
    expect_same_bits(again.before, saved.before);
    EXPECT_EQ(again.losses, saved.losses);
    expect_same_bits(again.after, saved.after);
  }
}

// ---- Bad input: what all ranks are told.

std::string refused(const MegatronLMPlugin& plugin, int ranks = 2,
                    const lm::Config& config = small_model()) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  Cluster cluster("1x" + std::to_string(ranks) + ":h100");
  cluster.run_on_every_rank([&](Rank& rank) {
    errors[static_cast<size_t>(rank.index())] =
        value_error_of([&] { EngineJob(config, plugin, {}); });
  });
  EXPECT_THAT(errors, ::testing::Each(errors[0]));
  return errors[0];
}

TEST(EngineBadInput, ArgumentsThatItDoesNotFollowAreNamed) {
  MegatronLMPlugin plugin = plugin_of({.optimizer_cpu_offload = true});
  plugin.other_megatron_args.value()["reset_position_ids"] = true;
  EXPECT_THAT(refused(plugin),
              AllOf(HasSubstr("optimizer_cpu_offload"), HasSubstr("reset_position_ids")));
  for (const char* name : {"use_custom_fsdp", "no_load_optim", "no_save_optim",
                           "use_precision_aware_optimizer", "reset_attention_mask"}) {
    MegatronLMPlugin other = plugin_of({});
    other.other_megatron_args.value()[name] = true;
    EXPECT_THAT(refused(other), HasSubstr(name));
  }
  EXPECT_THAT(refused(plugin_of({.pp_degree = 2, .decoder_last_pipeline_num_layers = 1})),
              HasSubstr("decoder_last_pipeline_num_layers=1"));
  EXPECT_THAT(refused(plugin_of({.context_parallel_size = 2, .calculate_per_token_loss = false})),
              HasSubstr("context_parallel_size is 2"));
  plugin = plugin_of({});
  plugin.custom_loss_function = [](const std::vector<at::Tensor>& inputs) {
    return MegatronLoss{.loss = inputs.back().sum()};
  };
  EXPECT_THAT(refused(plugin), HasSubstr("but no custom_get_batch_function"));
}

TEST(EngineBadInput, WordsThatNoFieldMayHaveAreNamed) {
  for (const char* name : {"recompute_granularity", "recompute_method"}) {
    MegatronLMPlugin plugin = plugin_of({});
    plugin.other_megatron_args.value()[name] = "blocks";
    EXPECT_THAT(refused(plugin), AllOf(HasSubstr(name), HasSubstr("got \"blocks\"")));
  }
}

// An argument does not choose what a model computes in, and must not seem to.
TEST(EngineBadInput, APrecisionThatIsNotTheAcceleratorsIsNamed) {
  const auto problem = [](const char* name, PrecisionType precision) {
    std::string message;
    Cluster("1x1:h100").run_on_every_rank([&](Rank& /*rank*/) {
      MegatronLMPlugin plugin = plugin_of({});
      plugin.other_megatron_args.value()[name] = true;
      Accelerator accelerator({.mixed_precision = precision, .megatron_lm_plugin = plugin});
      torch::nn::Sequential layers(torch::nn::Embedding(256, 8), torch::nn::Linear(8, 256));
      const torch::optim::SGD sgd(layers->parameters(), torch::optim::SGDOptions(0.1));
      set_prepared_args(*accelerator.megatron_lm_plugin(),
                        {.optimizer = megatron_optimizer_facts(sgd),
                         .scheduler = MegatronLMDummyScheduler{},
                         .batch_sizes = {1}},
                        1);
      message = value_error_of([&] { MegatronEngine(accelerator, layers.ptr()); });
    });
    return message;
  };
  EXPECT_THAT(problem("bf16", PrecisionType::kNo), HasSubstr("set mixed_precision to \"bf16\""));
  EXPECT_THAT(problem("fp16", PrecisionType::kNo), HasSubstr("set mixed_precision to \"fp16\""));
  EXPECT_THAT(problem("fp16", PrecisionType::kBf16), HasSubstr("set mixed_precision to \"fp16\""));
  EXPECT_EQ(problem("bf16", PrecisionType::kBf16), "no error");
}

// The model's mixtures are divided along tp; a plug-in that says nothing asks for nothing.
TEST(EngineBadInput, ExpertsThatTpDividesOtherwiseAreNamed) {
  const lm::Config experts = tiny_model(lm::Blocks::kLlama, /*has_experts=*/true);
  MegatronLMPlugin plugin = plugin_of_formula(experts.layers, {.tp_degree = 2});
  EXPECT_EQ(refused(plugin, 2, experts), "no error");
  plugin.other_megatron_args.value()["expert_tensor_parallel_size"] = 1;
  EXPECT_THAT(refused(plugin, 2, experts),
              AllOf(HasSubstr("expert_tensor_parallel_size is 1"), HasSubstr("blocks.0.mlp"),
                    HasSubstr("set it to 2, or divides_along_tp")));
  plugin.other_megatron_args.value()["expert_tensor_parallel_size"] = 2;
  EXPECT_EQ(refused(plugin, 2, experts), "no error");
}

TEST(EngineBadInput, AModelWithoutBlocksCannotBeComputedAgain) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    torch::nn::Sequential layers(torch::nn::Embedding(256, 8), torch::nn::Linear(8, 256));
    const torch::optim::SGD sgd(layers->parameters(), torch::optim::SGDOptions(0.1));
    Accelerator accelerator({.megatron_lm_plugin = plugin_of({.recompute_activations = true})});
    set_prepared_args(*accelerator.megatron_lm_plugin(),
                      {.optimizer = megatron_optimizer_facts(sgd),
                       .scheduler = MegatronLMDummyScheduler{},
                       .batch_sizes = {1}},
                      1);
    MegatronEngine engine(accelerator, layers.ptr());
    const MegatronBatch batch = {{"text", torch::ones({4, 5}, torch::kLong)}};
    EXPECT_THAT(value_error_of([&] { engine.train_step(batch); }), HasSubstr("accelerate::block"));
  });
}

TEST(EngineBadInput, StagesThatDoNotDivideTheLayersAreNamed) {
  EXPECT_THAT(refused(plugin_of({.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 2})),
              HasSubstr("does not divide num_layers=2"));
  EXPECT_THAT(refused(plugin_of({.num_layers_per_virtual_pipeline_stage = 1})),
              HasSubstr("pipeline_model_parallel_size is 1"));
}

TEST(EngineBadInput, DegreesThatDoNotDivideTheJobAreNamed) {
  EXPECT_THAT(refused(plugin_of({.tp_degree = 4})), HasSubstr("is 4"));
}

TEST(EngineBadInput, ABatchOfOtherRowsIsNamed) {
  run_engines("1x1:h100", nullptr, small_model(), plugin_of({}), {}, [](EngineJob& job, int) {
    const MegatronBatch part = {{"text", job.batch(0).at("text").narrow(0, 0, 3)}};
    EXPECT_THAT(
        value_error_of([&] { job.engine().train_step(part); }),
        AllOf(HasSubstr("num_micro_batches=4 times micro_batch_size=2"), HasSubstr("has 3")));
    EXPECT_GT(job.engine().eval_step(part).loss.item<double>(), 0);
  });
}

TEST(EngineBadInput, AnAcceleratorWithoutThePluginIsNamed) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    const lm::Lm net(small_model());
    Accelerator accelerator;
    EXPECT_THAT(value_error_of([&] { MegatronEngine(accelerator, net.ptr()); }),
                HasSubstr("rank 0's Accelerator has no megatron_lm_plugin"));
  });
}

}  // namespace
}  // namespace accelerate
