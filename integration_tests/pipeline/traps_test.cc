// Faults that other libraries had in pipelines, each with what is right instead.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/parallel/pipeline/pipeline_technique.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/step/train_batch.h"
#include "integration_tests/pipeline/small_pipeline.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;
using enum pipeline::ScheduleKind;

std::vector<TrainBatchOptions> steps_of(int steps, int micro_batches) {
  return std::vector<TrainBatchOptions>(static_cast<size_t>(steps),
                                        TrainBatchOptions{.micro_batches = micro_batches});
}

// That training in one process, in whole batches.
SmallOutcome in_one_process(SmallTraining training) {
  training.sizes = {};
  training.plan = {};
  for (TrainBatchOptions& window : training.windows) window = {};
  return train_small(training);
}

void expect_equal(const SmallOutcome& outcome, const SmallOutcome& expected,
                  const std::string& what) {
  ASSERT_EQ(outcome.losses.size(), expected.losses.size()) << what;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(outcome.losses[i], expected.losses[i], 1e-6 * expected.losses[i]) << what << i;
    EXPECT_NEAR(outcome.norms[i], expected.norms[i], 1e-5 * expected.norms[i]) << what << i;
  }
}

// As many micro-batches as there are, fewer than ranks among them, also where they do not divide by
// the ranks.
TEST(SmallWindows, RunInEachSchedule) {
  for (const int micro_batches : {1, 3, 7, 8}) {
    SmallTraining training = {.sizes = {.pp_size = 4}, .windows = steps_of(3, micro_batches)};
    const SmallOutcome expected = in_one_process(training);
    for (const pipeline::ScheduleKind kind : {kGpipe, k1f1b, kZeroBubbleH1}) {
      training.plan.schedule = kind;
      expect_equal(train_small(training), expected,
                   absl::StrCat(to_string(kind), " with ", micro_batches));
    }
  }
}

TEST(SmallWindows, RunInSchedulesWithSeveralStagesARank) {
  for (const int micro_batches : {1, 2, 3, 4, 6}) {
    SmallTraining training = {.sizes = {.pp_size = 2}, .windows = steps_of(3, micro_batches)};
    const SmallOutcome expected = in_one_process(training);
    for (const pipeline::ScheduleKind kind : {kInterleaved, kLoopedBreadthFirst}) {
      training.plan = {.schedule = kind, .stages_per_rank = 3};
      expect_equal(train_small(training), expected,
                   absl::StrCat(to_string(kind), " with ", micro_batches));
    }
  }
}

// The labels of a micro-batch are those of its rows, and each row counts once.
TEST(UnequalMicroBatches, WeighTheirRowsAlike) {
  SmallTraining training = {
      .sizes = {.pp_size = 2}, .windows = steps_of(3, 4), .batches = {{7, 4}}};
  expect_equal(train_small(training), in_one_process(training), "7 rows in 4");
}

// Shapes follow the batch, and are remembered for each.
TEST(BatchesOfOtherShapes, AreTrainedInTurn) {
  SmallTraining training = {.sizes = {.pp_size = 3},
                            .windows = steps_of(4, 3),
                            .batches = {{8, 5}, {3, 2}, {8, 5}, {4, 2}}};
  for (const pipeline::ScheduleKind kind : {kGpipe, k1f1b}) {
    training.plan.schedule = kind;
    expect_equal(train_small(training), in_one_process(training), to_string(kind));
  }
}

// Neither shapes nor dtypes of the training's messages are those of an evaluation between its
// steps, which changes nothing of the training.
TEST(EvaluatedBatches, HaveShapesOfTheirOwn) {
  struct Seen {
    std::vector<double> training, evaluation;
  };
  const auto seen = [](int64_t ranks, bool evaluates, bool by_tokens) {
    Cluster cluster(absl::StrCat("1x", ranks, ":h100"));
    std::vector<Seen> all(static_cast<size_t>(ranks));
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(with_stages({.pp_size = ranks}));
      torch::nn::Sequential made = small_sequential();
      made->push_back(torch::nn::Dropout(0.3));
      const std::shared_ptr<torch::optim::Optimizer> sgd =
          std::make_shared<torch::optim::SGD>(made->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
      Seen& own = all[static_cast<size_t>(rank.index())];
      const auto on_device = [&](int64_t rows, int64_t length, int step) {
        const auto [inputs, labels] = small_batch(rows, length, step);
        return std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device()));
      };
      const auto evaluate = [&](const TrainBatchOptions& options) {
        const auto batch = on_device(3, 6, 50);
        if (!by_tokens) return accelerator.evaluate_batch(model, batch, &small_loss, options);
        return accelerator.evaluate_batch(
            model, batch,
            [](const torch::Tensor& output, const torch::Tensor& labels) {
              return TokenLoss{.sum = small_loss(output, labels) * labels.numel(),
                               .tokens = labels.numel()};
            },
            options);
      };
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor loss = accelerator.train_batch(model, on_device(8, 4, step),
                                                           &small_loss, {.micro_batches = 4});
        own.training.push_back(loss.item<double>());
        optimizer.step();
        optimizer.zero_grad();
        if (!evaluates) continue;
        model->eval();
        for (const int micro_batches : {1, 2, 3}) {
          own.evaluation.push_back(evaluate({.micro_batches = micro_batches}).item<double>());
        }
        EXPECT_FALSE(model->parameters()[0].grad().defined() &&
                     model->parameters()[0].grad().any().item<bool>());
        model->train();
      }
    });
    for (const Seen& each : all) {
      EXPECT_EQ(each.training, all[0].training);
      EXPECT_EQ(each.evaluation, all[0].evaluation);
    }
    return all[0];
  };
  for (const bool by_tokens : {false, true}) {
    for (const int64_t ranks : {1, 2, 4}) {
      const Seen with = seen(ranks, true, by_tokens), without = seen(ranks, false, by_tokens);
      EXPECT_EQ(with.training, without.training) << ranks;
      ASSERT_EQ(with.evaluation.size(), 9U);
      for (size_t step = 0; step < 3; ++step) {
        // In however many micro-batches.
        const double whole = with.evaluation[3 * step];
        EXPECT_NEAR(with.evaluation[3 * step + 1], whole, 1e-6 * whole) << ranks;
        EXPECT_NEAR(with.evaluation[3 * step + 2], whole, 1e-6 * whole) << ranks;
      }
    }
  }
}

// In turn with windows of the same shape, whose outputs have gradients.
TEST(EvaluatedBatches, OfAModelInTrainingHaveNoGradients) {
  const auto losses = [](int64_t ranks) {
    std::vector<std::vector<double>> all(static_cast<size_t>(ranks));
    Cluster(absl::StrCat("1x", ranks, ":h100")).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(with_stages({.pp_size = ranks}));
      auto model = accelerator.prepare(small_sequential().ptr());
      const auto [inputs, labels] = small_batch(8, 4, 0);
      const auto batch =
          std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device()));
      const TrainBatchOptions window{.micro_batches = 4};
      std::vector<double>& own = all[static_cast<size_t>(rank.index())];
      for (int turn = 0; turn < 2; ++turn) {
        own.push_back(accelerator.train_batch(model, batch, &small_loss, window).item<double>());
        const torch::Tensor loss = accelerator.evaluate_batch(model, batch, &small_loss, window);
        EXPECT_FALSE(loss.requires_grad());
        own.push_back(loss.item<double>());
      }
    });
    for (const std::vector<double>& each : all) EXPECT_EQ(each, all[0]);
    return all[0];
  };
  const std::vector<double> one = losses(1), two = losses(2);
  ASSERT_EQ(two.size(), 4U);
  // No step is made in between.
  for (const double loss : one) EXPECT_NEAR(loss, one[0], 1e-6 * one[0]);
  for (const double loss : two) EXPECT_NEAR(loss, one[0], 1e-6 * one[0]);
}

// The first and the last stage have a table of words each, whose gradients are summed: they remain
// one table.
TEST(TiedStages, HaveOneTableAfterManySteps) {
  lm::Config config = lm::model_config("tiny", {.layers = 2});
  std::vector<torch::Tensor> tables(2);
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(with_stages({.pp_size = 2}, {.micro_batches = 2}));
    lm::Lm made(config);
    fill_by_formula(*made);
    const torch::Tensor before = made->named_parameters()["tokens.weight"].clone();
    const std::shared_ptr<torch::optim::Optimizer> adam =
        std::make_shared<torch::optim::AdamW>(made->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(made.ptr(), adam);
    const auto [inputs, labels] = formula_batch(0, 4, 16);
    const auto batch = std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device()));
    for (int step = 0; step < 50; ++step) {
      accelerator.train_batch(model, batch, &small_loss);
      accelerator.clip_grad_norm_(model->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    torch::Tensor& table = tables[static_cast<size_t>(rank.index())];
    table = model->named_parameters()["tokens.weight"].detach().cpu().clone();
    EXPECT_FALSE(table.equal(before));
  });
  EXPECT_TRUE(tables[0].equal(tables[1]));
}

// Ranks may have made other values.
TEST(TiedStages, BeginWithTheValuesOfTheFirstStage) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(with_stages({.pp_size = 2}));
    lm::Lm made(lm::model_config("tiny", {.layers = 2}));
    {
      const torch::NoGradGuard no_grad;
      made->named_parameters()["tokens.weight"].fill_(rank.index() + 1);
    }
    auto model = accelerator.prepare(made.ptr());
    const torch::Tensor table = model->named_parameters()["tokens.weight"].detach();
    ASSERT_GT(table.numel(), 0);
    EXPECT_EQ(table.min().item<double>(), 1) << "rank " << rank.index();
    EXPECT_EQ(table.max().item<double>(), 1) << "rank " << rank.index();
  });
}

// What ranks have summed is of the gradients that they had; other ranks have none of these.
TEST(TiedStages, ForgetSumsThatOtherRanksHaveSaved) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(with_stages({.pp_size = 2}, {.micro_batches = 2}));
    lm::Lm made(lm::model_config("tiny", {.layers = 2}));
    fill_by_formula(*made);
    auto model = accelerator.prepare(made.ptr());
    const auto [inputs, labels] = formula_batch(0, 4, 16);
    accelerator.train_batch(
        model, std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device())),
        &small_loss);
    const auto& techniques = internal::Access::to(model)->techniques();
    const auto pipeline =
        std::ranges::find_if(techniques, [](const std::unique_ptr<Technique>& each) {
          return each->name() == PipelineTechnique::kName;
        });
    ASSERT_TRUE(pipeline != techniques.end());
    const StateDict summed = (*pipeline)->state_dict();
    ASSERT_EQ(summed.tensors.size(), 1U) << "the table of words";
    (*pipeline)->load_state_dict(summed, /*same_ranks=*/true);
    EXPECT_EQ((*pipeline)->state_dict().tensors.size(), 1U);
    (*pipeline)->load_state_dict(summed, /*same_ranks=*/false);
    EXPECT_TRUE((*pipeline)->state_dict().tensors.empty());
  });
}

// Every rank clips by the norm of all stages: train_small compares the ranks'.
TEST(ClippedStages, HaveTheNormOfTheWholeModel) {
  SmallTraining training = {.sizes = {.pp_size = 4}, .windows = steps_of(4, 2)};
  const SmallOutcome outcome = train_small(training);
  expect_equal(outcome, in_one_process(training), "pp 4");
  EXPECT_GT(outcome.norms[0], 0.5) << "nothing was clipped";
}

// Losses that are sums, over micro-batches, ranks and windows with different numbers of tokens.
TEST(SumsOverTokens, AreDividedOnceByAllTokens) {
  SmallTraining training = {.windows = steps_of(3, 3), .batches = {{8, 5}}, .by_tokens = true};
  SmallTraining whole = training;
  const SmallOutcome expected = in_one_process(whole);
  for (const ParallelismOptions& sizes :
       {ParallelismOptions{.pp_size = 2}, ParallelismOptions{.dp_replicate_size = 2},
        ParallelismOptions{.dp_replicate_size = 2, .pp_size = 2}}) {
    training.sizes = sizes;
    expect_equal(train_small(training), expected, "tokens");
  }
}

// Windows of a step have different numbers of tokens as well.
TEST(SumsOverTokens, AreDividedByTheTokensOfAllWindows) {
  SmallTraining training = {.windows = steps_of(3, 3), .batches = {{12, 5}}, .by_tokens = true};
  const SmallOutcome expected = in_one_process(training);
  training.accumulation = 2;
  for (const ParallelismOptions& sizes :
       {ParallelismOptions{}, ParallelismOptions{.pp_size = 2},
        ParallelismOptions{.dp_replicate_size = 2, .pp_size = 2}}) {
    training.sizes = sizes;
    const SmallOutcome outcome = train_small(training);
    ASSERT_EQ(outcome.norms.size(), expected.norms.size());
    // A window's loss is that of its own tokens.
    for (size_t i = 0; i < expected.norms.size(); ++i) {
      EXPECT_NEAR(outcome.norms[i], expected.norms[i], 1e-5 * expected.norms[i]) << i;
    }
  }
}

TEST(AccumulatedWindows, AreOneBatch) {
  for (const bool replicas : {false, true}) {
    SmallTraining training = {.sizes = {.pp_size = 2}, .windows = steps_of(3, 2)};
    if (replicas) training.sizes.dp_replicate_size = 2;
    const SmallOutcome expected = in_one_process(training);
    training.accumulation = 2;
    expect_equal(train_small(training), expected, replicas ? "replicas" : "stages");
  }
}

// A window that is not the last one leaves all gradients on their rank, and the last one reduces
// those of all windows once.
TEST(AccumulatedWindows, AreOneBatchWhereRanksReduceBehindWindows) {
  const std::vector<PipelinePlan> plans = {
      {.schedule = kZeroBubbleH1},
      {.schedule = kZeroBubbleV, .stages_per_rank = 2},
      {.schedule = kInterleaved, .stages_per_rank = 2},
  };
  for (const ParallelismOptions& sizes :
       {ParallelismOptions{.dp_replicate_size = 2, .pp_size = 2},
        ParallelismOptions{.dp_shard_size = 2, .pp_size = 2},
        ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .pp_size = 2}}) {
    SmallTraining training = {.sizes = sizes, .windows = steps_of(3, 2), .batches = {{16, 4}}};
    const SmallOutcome expected = in_one_process(training);
    training.accumulation = 2;
    for (const PipelinePlan& plan : plans) {
      training.plan = plan;
      expect_equal(train_small(training), expected, to_string(plan.schedule));
    }
  }
}

// Replicas train by themselves, with and without stages, until their weights are averaged.
TEST(WindowsInLocalSgd, SendReplicasNothing) {
  for (const int64_t stages : {1, 2}) {
    SCOPED_TRACE(stages);
    Cluster cluster(absl::StrCat("1x", 2 * stages, ":h100"));
    cluster.run_on_every_rank([stages](Rank& rank) {
      Accelerator accelerator(with_stages({.dp_replicate_size = 2, .pp_size = stages}));
      torch::nn::Sequential net = small_sequential();
      const std::shared_ptr<torch::optim::Optimizer> sgd =
          std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net.ptr(), sgd);
      const auto report = [&net, &rank](const char* when) {
        std::vector<torch::Tensor> all;
        for (const torch::Tensor& each : net->parameters()) {
          all.push_back(each.detach().flatten().cpu());
        }
        rank.report(when, torch::cat(all));
      };
      {
        LocalSGD local_sgd(accelerator, model, /*local_sgd_steps=*/2);
        const int share = accelerator.state().data_share().index;
        const auto [inputs, labels] = small_batch(/*rows=*/8, /*length=*/4, /*step=*/share);
        accelerator.train_batch(
            model, std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device())),
            &small_loss, {.micro_batches = 2});
        optimizer.step();
        local_sgd.step();
        report("alone");
      }
      report("averaged");
    });
    const std::vector<torch::Tensor> alone = cluster.reports("alone");
    const std::vector<torch::Tensor> averaged = cluster.reports("averaged");
    // The replicas of a stage are neighbours.
    for (size_t i = 0; i < alone.size(); i += 2) {
      EXPECT_FALSE(torch::equal(alone[i], alone[i + 1])) << i;
      EXPECT_TRUE(torch::allclose(averaged[i], (alone[i] + alone[i + 1]) / 2)) << i;
      EXPECT_TRUE(torch::equal(averaged[i], averaged[i + 1])) << i;
    }
  }
}

// No gradient goes back to stages that want none.
TEST(FrozenStages, TrainTheOthers) {
  const auto freeze_until = [](size_t end) {
    return [end](torch::nn::SequentialImpl& layers) {
      for (size_t i = 0; i < end; ++i) {
        for (const torch::Tensor& each : layers[i]->parameters()) {
          each.set_requires_grad(false);
        }
      }
    };
  };
  for (const size_t frozen : {size_t{2}, size_t{4}, size_t{5}}) {
    SmallTraining training = {
        .sizes = {.pp_size = 4}, .windows = steps_of(3, 3), .change = freeze_until(frozen)};
    expect_equal(train_small(training), in_one_process(training), absl::StrCat(frozen, " frozen"));
  }
}

// In zb_v the second and the third of four stages are on one rank, which sends itself nothing.
TEST(FrozenStages, TrainTheOthersWhereNeighboursAreOnOneRank) {
  for (const size_t frozen : {size_t{2}, size_t{4}, size_t{6}}) {
    SmallTraining training = {.sizes = {.pp_size = 2},
                              .plan = {.schedule = kZeroBubbleV, .stages_per_rank = 2},
                              .windows = steps_of(3, 3)};
    training.change = [frozen](torch::nn::SequentialImpl& layers) {
      for (size_t i = 0; i < frozen; ++i) {
        for (const torch::Tensor& each : layers[i]->parameters()) each.set_requires_grad(false);
      }
    };
    expect_equal(train_small(training), in_one_process(training), absl::StrCat(frozen, " frozen"));
  }
}

// A stage whose loss does not depend on its input has no gradient for the stage before, which waits
// for one.
TEST(StagesThatUseNoGradientOfTheirInput, SendZeros) {
  SmallTraining training = {
      .sizes = {.pp_size = 2}, .plan = {.split_points = {"8"}}, .windows = steps_of(3, 2)};
  training.change = [](torch::nn::SequentialImpl& layers) {
    layers.push_back(torch::nn::Functional([](const torch::Tensor& x) { return x.detach(); }));
    layers.push_back(torch::nn::Linear(3, 3));
  };
  for (const pipeline::ScheduleKind kind : {kGpipe, k1f1b, kZeroBubbleH1}) {
    training.plan.schedule = kind;
    expect_equal(train_small(training), in_one_process(training), to_string(kind));
  }
}

// What a stage draws for a micro-batch does not depend on the order of the passes.
TEST(DroppedOutFeatures, AreTheSameInEachSchedule) {
  SmallTraining training = {.sizes = {.pp_size = 2}, .windows = steps_of(3, 4)};
  const SmallOutcome all = train_small(training);
  training.change = [](torch::nn::SequentialImpl& layers) {
    layers.push_back(torch::nn::Dropout(0.5));
  };
  training.plan.schedule = kGpipe;
  const SmallOutcome gpipe = train_small(training);
  training.plan.schedule = k1f1b;
  const SmallOutcome steady = train_small(training);
  EXPECT_EQ(steady.losses, gpipe.losses);
  EXPECT_EQ(steady.norms, gpipe.norms);
  EXPECT_NE(steady.losses, all.losses) << "nothing is left out";
}

TEST(CutsByNamesBytesAndWeights, TrainTheSame) {
  SmallTraining training = {.sizes = {.pp_size = 2}, .windows = steps_of(2, 2)};
  const SmallOutcome expected = in_one_process(training);
  training.plan.split_points = {"last"};
  expect_equal(train_small(training), expected, "names");
  training.plan = {.balance = StageBalance::kBytes};
  expect_equal(train_small(training), expected, "bytes");
  training.plan = {.weights = {7, 1, 1, 1, 1, 1, 1, 1}};
  expect_equal(train_small(training), expected, "weights");
}

// By their numbers, parts would be two and one, and two and two.
TEST(CutsByBytes, CountTheElementsOfTensorsAndTheirDtypes) {
  using Rows = std::vector<std::vector<int64_t>>;
  const auto rows_of_ranks = [](const std::function<torch::nn::Sequential()>& make) {
    Rows rows(2);
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(with_stages({.pp_size = 2}, {.balance = StageBalance::kBytes}));
      const torch::nn::Sequential layers = make();
      accelerator.prepare(layers.ptr());
      for (const torch::Tensor& each : layers->parameters()) {
        if (each.dim() == 2) rows[static_cast<size_t>(rank.index())].push_back(each.size(0));
      }
    });
    return rows;
  };
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto with_doubles = [] {
    Sequential layers(Linear(16, 16), Linear(16, 16), Linear(16, 16));
    layers[0]->to(torch::kDouble);
    return layers;
  };
  EXPECT_EQ(rows_of_ranks(with_doubles), (Rows{{16, 0, 0}, {0, 16, 16}}));
  const auto with_a_large_one = [] {
    return Sequential(Linear(64, 64), Linear(4, 4), Linear(4, 4), Linear(4, 4));
  };
  EXPECT_EQ(rows_of_ranks(with_a_large_one), (Rows{{64, 0, 0, 0}, {0, 4, 4, 4}}));
}

// However many micro-batches there are: what its receiver took before it sent something back is
// kept no longer.
TEST(MessagesOfAWindow, AreNotKeptToItsEnd) {
  static constexpr int64_t kWidth = 512, kRows = 64;
  const auto peaks = [](int micro_batches) {
    std::vector<int64_t> peaks(2);
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(with_stages({.pp_size = 2}));
      torch::nn::Sequential made(torch::nn::Linear(8, kWidth), torch::nn::Tanh(),
                                 torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, 3));
      auto model = accelerator.prepare(made.ptr());
      const auto [inputs, labels] = small_batch(kRows * micro_batches, /*length=*/1, 0);
      const auto batch =
          std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device()));
      accelerator.train_batch(model, batch, &small_loss, {.micro_batches = micro_batches});
      peaks[static_cast<size_t>(rank.index())] = rank.device()->memory().peak();
    });
    return peaks;
  };
  constexpr int64_t kMessage = kRows * kWidth * 4;  // bytes
  const std::vector<int64_t> few = peaks(8), many = peaks(24);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_GT(few[rank], 2 * kMessage) << rank;
    EXPECT_LT(many[rank] - few[rank], 4 * kMessage) << rank;
  }
}

// What a stage is sent may change in place, as what modules hand each other in one process does.
TEST(StagesThatBeginInPlace, TrainTheSame) {
  SmallTraining training = {
      .sizes = {.pp_size = 2}, .plan = {.split_points = {"8"}}, .windows = steps_of(3, 2)};
  training.change = [](torch::nn::SequentialImpl& layers) {
    layers.push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
  };
  expect_equal(train_small(training), in_one_process(training), "in place");
}

// As a table of the program's own.
TEST(OwnSchedules, Run) {
  SmallTraining training = {.sizes = {.pp_size = 2}, .windows = steps_of(2, 2)};
  const SmallOutcome expected = in_one_process(training);
  using enum pipeline::Pass;
  const pipeline::Schedule own = {
      .stages = 2,
      .micro_batches = 2,
      .ranks = {{{kForward, 0, 1}, {kForward, 0, 0}, {kBackward, 0, 0}, {kBackward, 0, 1}},
                {{kForward, 1, 0}, {kForward, 1, 1}, {kBackward, 1, 0}, {kBackward, 1, 1}}}};
  for (TrainBatchOptions& window : training.windows) window.own_schedule = own;
  expect_equal(train_small(training), expected, "own");
}

// A gradient that is infinite in one stage alone, also where another one trains nothing.
TEST(StagesInHalfPrecision, SkipTheSameStepsAndHaveTheSameScale) {
  for (const bool freezes : {false, true}) {
    Cluster("1x4:h100").run_on_every_rank([freezes](Rank& rank) {
      AcceleratorOptions options = with_stages({.pp_size = 4});
      options.mixed_precision = PrecisionType::kFp16;
      options.kwargs_handlers.emplace_back(GradScalerKwargs{.init_scale = 256});
      Accelerator accelerator(options);
      torch::nn::Sequential made = small_sequential();
      if (freezes) {
        for (const torch::Tensor& each : (*made)[0]->parameters()) each.set_requires_grad(false);
      }
      const std::shared_ptr<torch::optim::Optimizer> sgd =
          std::make_shared<torch::optim::SGD>(made->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
      bool overflows = false;
      if (rank.index() == 3) {
        made->named_parameters()["last.weight"].register_hook(
            [&overflows](const torch::Tensor& gradient) {
              return overflows ? gradient * std::numeric_limits<double>::infinity() : gradient;
            });
      }
      for (int step = 0; step < 3; ++step) {
        const auto [inputs, labels] = small_batch(8, 4, step);
        const double scale = accelerator.scaler()->get_scale();
        overflows = step == 1;
        accelerator.train_batch(
            model, std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device())),
            &small_loss, {.micro_batches = 4});
        optimizer.step();
        EXPECT_EQ(accelerator.optimizer_step_was_skipped(), step == 1)
            << "rank " << rank.index() << ", step " << step;
        EXPECT_EQ(accelerator.scaler()->get_scale(), step == 1 ? scale / 2 : scale)
            << "rank " << rank.index() << ", step " << step;
        optimizer.zero_grad();
      }
    });
  }
}

// The numbers of its input with the other sign, in memory that has them as they were.
struct FlaggedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x._neg_view(); }
};
TORCH_MODULE(Flagged);

TEST(FlagsOfOutputs, AreResolvedBeforeTheNextStageHasThem) {
  Cluster cluster("1x3");
  cluster.run_on_every_rank([](Rank& /*rank*/) {
    Accelerator accelerator(with_stages({.pp_size = 3}));
    torch::manual_seed(5);
    torch::nn::Sequential made(torch::nn::Linear(8, 16), Flagged(), torch::nn::Linear(16, 3));
    const auto [inputs, labels] = small_batch(4, 5, 0);
    const double expected = small_loss(made->forward(inputs), labels).item<double>();
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(made->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
    const torch::Tensor loss = accelerator.train_batch(
        model, std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device())),
        &small_loss, {.micro_batches = 2});
    EXPECT_NEAR(loss.item<double>(), expected, 1e-6);
  });
}

// A stage that throws ends all ranks, those before and behind it, with its text.
TEST(StagesThatThrow, EndTheJobWithTheirText) {
  for (const int64_t ranks : {2, 4}) {
    std::vector<char> ended(static_cast<size_t>(ranks));
    const auto run = [&] {
      Cluster(absl::StrCat("1x", ranks, ":h100")).run_on_every_rank([&](Rank& rank) {
        Accelerator accelerator(with_stages({.pp_size = ranks}));
        auto model = accelerator.prepare(small_sequential().ptr());
        const auto [inputs, labels] = small_batch(4, 2, 0);
        const absl::Cleanup end = [&] { ended[static_cast<size_t>(rank.index())] = 1; };
        accelerator.train_batch(
            model, std::pair(inputs.to(accelerator.device()), labels.to(accelerator.device())),
            [&rank](const at::Tensor& output, const at::Tensor& of_rows) {
              TORCH_CHECK(false, "the loss of rank ", rank.index());
              return small_loss(output, of_rows);
            },
            {.micro_batches = 2});
      });
    };
    try {
      run();
      FAIL() << "no error";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr(absl::StrCat("the loss of rank ", ranks - 1)));
    }
    EXPECT_EQ(std::ranges::count(ended, 1), ranks);
  }
}

}  // namespace
}  // namespace accelerate
