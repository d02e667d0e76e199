// Inputs of column layers that two ranks along tp put together of sequence shards, and drop between
// the forward and the backward pass or keep: what training sends, and that it is the same. And
// models that begin with shards at their first block, give their caller parts of logits, or have
// fewer heads of keys than ranks.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/tensor/formula_model.h"
#include "integration_tests/tensor/small_layers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using lm::Blocks;
using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

// ---- Language models.

FormulaTraining training_of(Blocks blocks, bool keeps, bool computes_again) {
  const lm::Config config = lm::model_config("tiny", {.blocks = blocks});
  return {.config = config,
          .lm = {.activation_checkpointing = computes_again},
          .sizes = ParallelismOptions{.tp_size = 2},
          .cluster = "1x2:h100",
          .steps = 2,
          .rows = 4,
          .change =
              [config, keeps](AcceleratorOptions& options) {
                TensorParallelPlan plan = *lm::Lm(config)->tensor_parallel_plan();
                plan.sequence_parallel = true;
                plan.parallel_loss = true;
                plan.keep_gathered_inputs = keeps;
                options.kwargs_handlers.emplace_back(plan);
              },
          .parallel_loss = true,
          .clips = false};
}

// By one rank in one step.
double bytes_of_a_step(FormulaTraining training) {
  const double two = train_by_formula(training).bytes;
  training.steps = 1;
  return (two - train_by_formula(training).bytes) / 2;
}

TEST(GatheredInputs, ArePutTogetherAgainInTheBackwardPassUnlessTheyAreKept) {
  const auto bytes = [](Blocks blocks, bool keeps, bool computes_again = false) {
    return bytes_of_a_step(training_of(blocks, keeps, computes_again));
  };
  constexpr double kHalfOfActivations = 4 * 128 * 128 * 4 / 2;  // bytes
  EXPECT_EQ(bytes(Blocks::kGpt, /*keeps=*/true), 4'869'120);
  // Two inputs a layer, also where a perceptron has two matrices of one; and the head's.
  EXPECT_EQ(bytes(Blocks::kGpt, /*keeps=*/false), 6'048'768);
  EXPECT_EQ(bytes(Blocks::kLlama, false) - bytes(Blocks::kLlama, true),
            (4 * 2 + 1) * kHalfOfActivations);
  // What a block puts together when it is computed again is there for its backward pass.
  EXPECT_EQ(bytes(Blocks::kGpt, /*keeps=*/false, /*computes_again=*/true), 7'097'344);
  EXPECT_EQ(bytes(Blocks::kGpt, /*keeps=*/true, /*computes_again=*/true),
            7'097'344 - kHalfOfActivations);
}

TEST(GatheredInputs, ComputeTheSameWhetherTheyAreKept) {
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    for (const bool computes_again : {false, true}) {
      for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
        const auto losses = [&](bool keeps) {
          FormulaTraining training = training_of(blocks, keeps, computes_again);
          training.change = [change = training.change, precision](AcceleratorOptions& options) {
            change(options);
            options.mixed_precision = precision;
          };
          return train_by_formula(training).losses;
        };
        EXPECT_EQ(losses(false), losses(true)) << to_string(precision);
      }
    }
  }
}

// ---- One block.

// x + down(relu(up(x)))
class PerceptronImpl : public torch::nn::Module {
 public:
  PerceptronImpl() {
    up_ = register_module("up", torch::nn::Linear(8, 16));
    down_ = register_module("down", torch::nn::Linear(16, 8));
  }
  Tensor forward(const Tensor& x) {
    last_input = x.sizes().vec();
    return x + down_(up_(x).relu());
  }

  std::vector<int64_t> last_input;

 private:
  torch::nn::Linear up_{nullptr}, down_{nullptr};
};

// Words and their positions, a block, and a head. The block before divides nothing.
class BlocksImpl : public torch::nn::Module {
 public:
  BlocksImpl() {
    torch::manual_seed(5);
    first = register_module("first", std::make_shared<PerceptronImpl>());
    second = register_module("second", std::make_shared<PerceptronImpl>());
    third = register_module("third", std::make_shared<PerceptronImpl>());
    head_ = register_module("head", torch::nn::Linear(8, 12));
    positions_ = register_parameter("positions", torch::rand({16, 8}));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x + positions_.narrow(0, 0, x.size(1));
    y = block(first, y);
    y = block(second, y);
    y = block(third, y);
    if (adds_late) y = y + positions_.narrow(0, 0, x.size(1));
    const Tensor places = torch::arange(x.size(1), x.device());
    if (adds_looked_up) y = y + torch::embedding(positions_, places).detach();
    return head_(y);
  }

  std::shared_ptr<PerceptronImpl> first, second, third;
  bool adds_late = false, adds_looked_up = false;

 private:
  torch::nn::Linear head_{nullptr};
  Tensor positions_;
};

AcceleratorOptions options_with_shards() {
  using enum TensorStyle;
  TensorParallelPlan plan = {{.pattern = "second.up", .style = kColumn},
                             {.pattern = "second.down", .style = kRow},
                             {.pattern = "third.up", .style = kColumn},
                             {.pattern = "third.down", .style = kRow},
                             {.pattern = "head", .style = kColumn, .gather_output = true}};
  plan.sequence_parallel = true;
  return {.parallelism_config = ParallelismConfig({.tp_size = 2}), .kwargs_handlers = {plan}};
}

Tensor numbers(int64_t length) {
  return torch::arange(2 * length * 8, torch::kFloat).sin().view({2, length, 8});
}

TEST(FirstBlocks, BeginWithShardsOfSequences) {
  const auto whole = std::make_shared<BlocksImpl>();
  const Tensor expected = whole->forward(numbers(6));
  expected.square().sum().backward();
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator(options_with_shards());
    const auto module = std::make_shared<BlocksImpl>();
    auto model = accelerator.prepare(module);
    const Tensor output = model(numbers(6).to(accelerator.device()));
    EXPECT_TRUE(torch::allclose(output.cpu(), expected, 1e-5, 1e-6));
    accelerator.backward(output.square().sum());
    EXPECT_EQ(module->first->last_input, (std::vector<int64_t>{2, 6, 8}));
    EXPECT_EQ(module->second->last_input, (std::vector<int64_t>{2, 3, 8}));
    EXPECT_EQ(module->third->last_input, (std::vector<int64_t>{2, 3, 8}));
    for (const char* name : {"positions", "first.up.weight", "second.down.bias"}) {
      EXPECT_TRUE(torch::allclose(module->named_parameters()[name].grad().cpu(),
                                  whole->named_parameters()[name].grad(), 1e-4, 1e-5))
          << name;
    }
  });
}

TEST(FirstBlocks, RefuseWhatShardsDoNotAllow) {
  const auto error_in = [](int64_t length, bool adds_late, bool adds_looked_up) {
    std::string error;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_with_shards());
      const auto module = std::make_shared<BlocksImpl>();
      module->adds_late = adds_late;
      module->adds_looked_up = adds_looked_up;
      auto model = accelerator.prepare(module);
      const std::string own =
          value_error_of([&] { model(numbers(length).to(accelerator.device())); });
      if (rank.index() == 1) error = own;
    });
    return error;
  };
  EXPECT_THAT(error_in(5, false, false),
              AllOf(HasSubstr("rank 1: sequences of 5 tokens"), HasSubstr("pad them to 6")));
  EXPECT_THAT(error_in(6, /*adds_late=*/true, false),
              AllOf(HasSubstr("aten::add uses \"positions\", which all ranks have"),
                    HasSubstr("use it before shard_sequence, as positions")));
  EXPECT_THAT(error_in(6, false, /*adds_looked_up=*/true),
              AllOf(HasSubstr("rank 1: aten::add computes with dim -2 of sequences, of which each "
                              "rank along tp has 3 of 6"),
                    HasSubstr("compute it before shard_sequence")));
}

// ---- Outputs of which ranks have parts.

TEST(CutOutputs, RefuseALossByHand) {
  TensorParallelPlan plan = {
      {.pattern = "head", .style = TensorStyle::kColumn, .gather_output = true}};
  plan.parallel_loss = true;
  const Tensor labels = torch::arange(12);
  const auto whole = std::make_shared<BlocksImpl>();
  const Tensor expected =
      torch::cross_entropy_loss(whole->forward(numbers(6)).flatten(0, 1), labels);
  expected.backward();
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator(
        {.parallelism_config = ParallelismConfig({.tp_size = 2}), .kwargs_handlers = {plan}});
    const auto module = std::make_shared<BlocksImpl>();
    auto model = accelerator.prepare(module);
    const Tensor logits = model(numbers(6).to(accelerator.device())).flatten(0, 1);
    const Tensor targets = labels.to(accelerator.device());
    EXPECT_THAT(value_error_of([&] { torch::cross_entropy_loss(logits, targets); }),
                AllOf(HasSubstr("aten::cross_entropy_loss on rank"),
                      HasSubstr("of which each rank along tp has 6 of 12"),
                      HasSubstr("parallel_cross_entropy(model, ...)")));
    EXPECT_THAT(value_error_of([&] { logits.max(-1); }), HasSubstr("aten::max on rank"));
    EXPECT_THAT(value_error_of([&] { logits.cumsum(-1); }), HasSubstr("aten::cumsum on rank"));
    EXPECT_THAT(value_error_of([&] { torch::layer_norm(logits, {6}); }),
                HasSubstr("aten::layer_norm on rank"));
    const Tensor loss = parallel_cross_entropy(model, logits, targets);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
    accelerator.backward(loss);
    EXPECT_TRUE(torch::allclose(module->named_parameters()["positions"].grad().cpu(),
                                whole->named_parameters()["positions"].grad(), 1e-4, 1e-6));
  });
}

// In mixed precision the caller gets other tensors than the layers gave, and classes may be dim 1.
TEST(CutOutputs, RefuseALossByHandInMixedPrecision) {
  TensorParallelPlan plan = SmallLayersImpl::plan();
  plan.parallel_loss = true;
  for (const bool moves_classes : {false, true}) {
    Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
      AcceleratorOptions options = with_tp(2, plan);
      options.mixed_precision = PrecisionType::kBf16;
      Accelerator accelerator(options);
      auto model = accelerator.prepare(
          std::make_shared<SmallLayersImpl>([&](SmallLayersImpl& m, const Tensor& x) {
            const Tensor logits = m.head(x);
            return moves_classes ? logits.transpose(1, 2) : logits.flatten(0, 1);
          }));
      const Tensor logits = model(small_inputs().to(accelerator.device()));
      EXPECT_EQ(logits.scalar_type(), torch::kFloat);
      const Tensor targets = torch::zeros({6, 4}, torch::kLong).to(accelerator.device());
      EXPECT_THAT(value_error_of([&] {
                    torch::cross_entropy_loss(logits, moves_classes ? targets : targets.flatten());
                  }),
                  HasSubstr("aten::cross_entropy_loss on rank"));
    });
  }
}

// ---- Fewer heads of keys than ranks.

// Four heads of queries, of which pairs share one of keys and values.
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl() {
    torch::manual_seed(6);
    queries_ = register_module("queries", torch::nn::Linear(8, 16));
    keys_ = register_module("keys", torch::nn::Linear(8, 8));
    values_ = register_module("values", torch::nn::Linear(8, 8));
    project_ = register_module("project", torch::nn::Linear(16, 8));
  }
  Tensor forward(const Tensor& x) {
    const auto heads = [](const Tensor& features) {
      return features.unflatten(-1, {-1, 4}).transpose(1, 2);
    };
    const Tensor queries = heads(queries_(x));
    Tensor keys = heads(keys_(x)), values = heads(values_(x));
    const int64_t times = queries.size(1) / keys.size(1);
    if (times > 1) {
      const auto repeated = [times](const Tensor& y) {
        return y.unsqueeze(2)
            .expand({y.size(0), y.size(1), times, y.size(2), y.size(3)})
            .flatten(1, 2);
      };
      keys = repeated(keys);
      values = repeated(values);
    }
    const Tensor weights = queries.matmul(keys.transpose(-2, -1)).softmax(-1);
    return project_(weights.matmul(values).transpose(1, 2).flatten(2, 3));
  }

 private:
  torch::nn::Linear queries_{nullptr}, keys_{nullptr}, values_{nullptr}, project_{nullptr};
};

TEST(FewerHeadsOfKeysThanRanks, AreOnNeighboursThatSumTheirGradients) {
  using enum TensorStyle;
  const TensorParallelPlan plan = {{.pattern = "queries", .style = kColumn, .groups = 4},
                                   {.pattern = "keys", .style = kColumn, .groups = 2},
                                   {.pattern = "values", .style = kColumn, .groups = 2},
                                   {.pattern = "project", .style = kRow}};
  AttentionImpl whole;
  const Tensor expected = whole.forward(numbers(6));
  expected.square().sum().backward();
  double squares = 0;
  for (const Tensor& parameter : whole.parameters()) {
    squares += parameter.grad().square().sum().item<double>();
  }
  for (const int64_t tp : {2, 4}) {
    Cluster("1x" + std::to_string(tp) + ":h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(
          {.parallelism_config = ParallelismConfig({.tp_size = tp}), .kwargs_handlers = {plan}});
      const auto module = std::make_shared<AttentionImpl>();
      auto model = accelerator.prepare(module);
      const Tensor output = model(numbers(6).to(accelerator.device()));
      EXPECT_TRUE(torch::allclose(output.cpu(), expected, 1e-5, 1e-6)) << tp;
      accelerator.backward(output.square().sum());
      // Rank r of four has the rows of head r / 2.
      const Tensor own = module->named_parameters()["keys.weight"].grad().cpu();
      ASSERT_EQ(own.sizes(), (std::vector<int64_t>{4, 8}));
      const Tensor all = whole.named_parameters()["keys.weight"].grad();
      EXPECT_TRUE(torch::allclose(own, all.narrow(0, rank.index() * 2 / tp * 4, 4), 1e-4, 1e-5))
          << "rank " << rank.index() << " of " << tp;
      // Each element counts once.
      const Tensor norm = accelerator.clip_grad_norm_(model, 1e9);
      EXPECT_NEAR(norm.item<double>(), std::sqrt(squares), 1e-4 * std::sqrt(squares)) << tp;
      const auto state = accelerator.get_state_dict(model);
      for (const auto& [name, tensor] : state) {
        EXPECT_TRUE(torch::equal(tensor.cpu(), whole.named_parameters()[name].detach())) << name;
      }
    });
  }
}

}  // namespace
}  // namespace accelerate
