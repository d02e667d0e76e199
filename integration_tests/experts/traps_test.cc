// What went wrong in other libraries with experts on several ranks, on clusters of the shape that
// the mesh needs: each case beside one process, or between ranks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/experts/expert_training.h"
#include "integration_tests/layouts/placed_parts.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

struct Layout {
  std::string name;
  std::string cluster;
  ParallelismOptions sizes;
};

// All with two shares of the data.
std::vector<Layout> layouts() {
  return {{"ep 1", "1x2:h100", {.dp_shard_size = 2}},
          {"ep 2", "1x2:h100", {.dp_shard_size = 2, .ep_size = 2}},
          {"ep 1 x tp 2", "1x4:h100", {.dp_shard_size = 2, .tp_size = 2}},
          {"ep 2 x tp 2", "1x4:h100", {.dp_shard_size = 2, .tp_size = 2, .ep_size = 2}}};
}

ExpertTraining one_process() { return {.steps = 1, .micro_steps = 2, .clips = false}; }

ExpertTraining on(const Layout& layout) {
  return {.sizes = layout.sizes, .cluster = layout.cluster, .steps = 1, .clips = false};
}

constexpr size_t kMostRanks = 8;

size_t rank_of(const ModelState& state) { return static_cast<size_t>(state.placements().rank); }

// The parts of the whole tensors that a rank has of the gradients, by name.
PlacedParts gradients_of(const ModelState& state) {
  PlacedParts parts;
  const ModelPlacements& placements = state.placements();
  for (const TrainedParameter& each : state.trained()) {
    std::vector<PlacedBox> boxes =
        boxes_of(*each.placement, placements.layout->mesh(), placements.rank);
    if (boxes.empty()) continue;  // of another stage
    EXPECT_TRUE(each.trained.grad().defined()) << each.name;
    if (!each.trained.grad().defined()) continue;
    parts.push_back({each.name, each.placement->shape, std::move(boxes),
                     each.trained.grad().detach().cpu().clone()});
  }
  return parts;
}

// The gradients of the whole model after one step of the training. Ranks that have the same
// elements must have the same bits.
WholeTensors whole_gradients(ExpertTraining training) {
  std::vector<PlacedParts> ranks(kMostRanks);
  training.look = [&ranks](const ModelState& state, int step) {
    if (step == 0) ranks[rank_of(state)] = gradients_of(state);
  };
  train_experts(training);
  return assembled(ranks);
}

void expect_gradients(const std::string& beside, const WholeTensors& actual,
                      const WholeTensors& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << beside;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << beside << ", " << name;
    const double scale = tensor.norm().item<double>();
    const double difference = (actual.at(name) - tensor).norm().item<double>();
    EXPECT_LE(difference, 1e-5 * scale) << beside << ", " << name;
  }
}

// Those of the routers of all blocks alone.
void expect_routers(const std::string& beside, const WholeTensors& actual,
                    const WholeTensors& expected, double tolerance) {
  for (int block = 0; block < 4; ++block) {
    const std::string name = absl::StrCat("blocks.", block, ".mlp.router.weight");
    ASSERT_TRUE(actual.contains(name)) << beside << ", " << name;
    const at::Tensor& of_one = expected.at(name);
    const double scale = of_one.norm().item<double>();
    EXPECT_GT(scale, 1e-7) << name;
    EXPECT_LE((actual.at(name) - of_one).norm().item<double>(), tolerance * scale)
        << beside << ", " << name;
  }
}

// Not as many times too large as there are ranks along ep, or shares.
TEST(GradientsOfExperts, AreThoseOfOneProcess) {
  for (const bool has_capacity : {false, true}) {
    ExpertTraining alone = one_process();
    if (has_capacity) alone.router.capacity_factor = 1.25;
    const WholeTensors expected = whole_gradients(alone);
    EXPECT_TRUE(expected.contains("blocks.0.mlp.experts.gate"));
    EXPECT_GT(expected.at("blocks.3.mlp.experts.down").norm().item<double>(), 0.01);
    for (const Layout& layout : layouts()) {
      ExpertTraining training = on(layout);
      training.router = alone.router;
      expect_gradients(layout.name, whole_gradients(training), expected);
    }
  }
}

// Those of ranks with the same experts are summed, whichever axis they are along.
TEST(GradientsOfExperts, AreSumsOverTheRanksThatHaveThem) {
  ExpertTraining alone = one_process();
  alone.micro_steps = 4;
  const WholeTensors expected = whole_gradients(alone);
  for (const Layout& layout : std::vector<Layout>{
           {"ep 2 x edp 2", "1x4:h100", {.dp_shard_size = 4, .ep_size = 2}},
           {"ep 4", "1x4:h100", {.dp_shard_size = 4, .ep_size = 4}},
           {"ep 2 along cp, edp 2", "1x4:h100", {.dp_shard_size = 2, .cp_size = 2, .ep_size = 2}},
           {"ep 4 along dp_shard and cp",
            "1x4:h100",
            {.dp_shard_size = 2, .cp_size = 2, .ep_size = 4}},
           {"ep 2 along half of sp x edp 4",
            "1x8:h100",
            {.dp_shard_size = 2, .sp_size = 4, .ep_size = 2}},
           {"ep 2 along sp x tp 2", "1x4:h100", {.tp_size = 2, .sp_size = 2, .ep_size = 2}},
           {"ep 2 x dp_replicate 2",
            "1x4:h100",
            {.dp_replicate_size = 2, .dp_shard_size = 2, .ep_size = 2}}}) {
    expect_gradients(layout.name, whole_gradients(on(layout)), expected);
  }
}

// Router and experts have whole sequences, and all other layers parts of them.
TEST(GradientsOfExperts, BesideSequenceShardsAreThoseOfOneProcess) {
  ExpertTraining alone = one_process();
  alone.config.shared_intermediate = 64;
  alone.router = {.capacity_factor = 1.25, .balance_loss = 0.01};
  const WholeTensors expected = whole_gradients(alone);
  EXPECT_GT(expected.at("blocks.0.mlp.shared.down.weight").norm().item<double>(), 0.01);
  for (const int64_t ep : {1, 2}) {
    for (const bool computes_again : {false, true}) {
      ExpertTraining training =
          on({"", "1x4:h100", {.dp_shard_size = 2, .tp_size = 2, .ep_size = ep}});
      training.config = alone.config;
      training.router = alone.router;
      training.computes_again = computes_again;
      training.change = with_modes({.sequence_shards = true}, alone.config);
      expect_gradients(absl::StrCat("ep ", ep, computes_again ? ", computed again" : ""),
                       whole_gradients(training), expected);
    }
  }
}

// Stages, layers, experts and rows are divided along four axes, and ranks add up one norm.
TEST(NormsOfGradients, OfStagesLayersAndExpertsAreThoseOfOneProcess) {
  const ExpertOutcome expected = train_experts({.steps = 2, .micro_steps = 4});
  // All ranks have the same 64 bits, as train_experts expects.
  const ExpertOutcome outcome = train_experts(
      {.sizes = ParallelismOptions{.dp_shard_size = 2, .tp_size = 2, .pp_size = 2, .ep_size = 2},
       .cluster = "1x8:h100",
       .steps = 2});
  ASSERT_EQ(outcome.norms.size(), 2);
  for (size_t step = 0; step < 2; ++step) {
    EXPECT_NEAR(outcome.norms[step], expected.norms[step], 1e-6 * expected.norms[step]) << step;
  }
}

// One of the first two experts is the best for every token, whatever the sign of its logit.
void never_choose_the_last(lm::LmImpl& net) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : net.named_parameters()) {
    if (!item.key().ends_with("router.weight")) continue;
    item.value()[0].copy_(item.value()[1].neg());
    item.value()[2].copy_(item.value()[1] * 0.5);
    item.value()[3].zero_();
  }
}

TEST(AnExpertWithoutTokens, HasGradientsOfZerosAndDecays) {
  const auto adamw = [](std::vector<at::Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(1e-3));
  };
  const auto weights_after = [&](ExpertTraining training) {
    training.config.experts_per_token = 1;
    training.optimizer = adamw;
    training.change_model = never_choose_the_last;
    std::vector<PlacedParts> ranks(kMostRanks);
    training.look = [&](const ModelState& state, int step) {
      if (step == 0) {
        for (const PlacedPartOfRank& each : gradients_of(state)) {
          if (each.name != "blocks.0.mlp.experts.up") continue;
          for (const PlacedBox& box : each.boxes) {
            const int64_t last = 3 - box.whole.offsets[0];
            if (last >= box.whole.lengths[0]) continue;
            EXPECT_EQ(each.values[last].abs().max().item<double>(), 0);
          }
        }
      }
      if (step != -1) return;
      PlacedParts parts;
      const ModelPlacements& placements = state.placements();
      for (const TrainedParameter& each : state.trained()) {
        parts.push_back({each.name, each.placement->shape,
                         boxes_of(*each.placement, placements.layout->mesh(), placements.rank),
                         each.trained.detach().cpu().clone()});
      }
      ranks[rank_of(state)] = std::move(parts);
    };
    const ExpertOutcome outcome = train_experts(training);
    EXPECT_EQ(outcome.taken[0][3], 0);
    return assembled(ranks);
  };
  const WholeTensors expected = weights_after(one_process());
  for (const Layout& layout : layouts()) {
    const WholeTensors actual = weights_after(on(layout));
    const at::Tensor last = actual.at("blocks.0.mlp.experts.up")[3];
    EXPECT_TRUE(last.equal(expected.at("blocks.0.mlp.experts.up")[3])) << layout.name;
  }
}

// The first expert has all tokens.
TEST(ARankWithoutRows, TakesPartInThePass) {
  ExpertTraining training = on(layouts()[1]);
  training.router = {.routing = Routing::kSkewed, .skew = 100};
  training.config.experts_per_token = 1;
  const ExpertOutcome outcome = train_experts(training);
  EXPECT_EQ(outcome.taken[0], (std::vector<int64_t>{512, 0, 0, 0}));
}

// The losses of routers alone: not as many times as there are ranks along tp, and no count twice.
TEST(LossesOfRouters, HaveTheGradientsOfOneProcess) {
  for (const bool is_z : {false, true}) {
    ExpertTraining alone = one_process();
    alone.loss_factor = 0;
    (is_z ? alone.router.z_loss : alone.router.balance_loss) = 0.01;
    const WholeTensors expected = whole_gradients(alone);
    EXPECT_GT(expected.at("blocks.0.mlp.router.weight").norm().item<double>(), 1e-7);
    for (const Layout& layout : layouts()) {
      ExpertTraining training = on(layout);
      training.loss_factor = 0;
      training.router = alone.router;
      const WholeTensors actual = whole_gradients(training);
      const at::Tensor router = actual.at("blocks.0.mlp.router.weight");
      const at::Tensor of_one = expected.at("blocks.0.mlp.router.weight");
      EXPECT_LE((router - of_one).norm().item<double>(), 1e-5 * of_one.norm().item<double>())
          << layout.name << (is_z ? ", z" : ", balance");
    }
  }
}

// A stage's routers have losses of their own, whose gradients reach the stages before. Each of two
// shares has two micro-batches.
TEST(LossesOfRouters, OfStagesHaveTheGradientsOfOneProcess) {
  for (const bool is_z : {false, true}) {
    ExpertTraining alone = one_process();
    alone.micro_steps = 4;
    alone.loss_factor = 0;
    (is_z ? alone.router.z_loss : alone.router.balance_loss) = 0.01;
    const WholeTensors expected = whole_gradients(alone);
    for (const Layout& layout : std::vector<Layout>{
             {"pp 2 x dp_replicate 2", "1x4:h100", {.dp_replicate_size = 2, .pp_size = 2}},
             {"pp 2 x ep 2", "1x4:h100", {.dp_shard_size = 2, .pp_size = 2, .ep_size = 2}},
             {"pp 2 x ep 2 x tp 2",
              "1x8:h100",
              {.dp_shard_size = 2, .tp_size = 2, .pp_size = 2, .ep_size = 2}}}) {
      ExpertTraining training = on(layout);
      training.loss_factor = 0;
      training.router = alone.router;
      const WholeTensors actual = whole_gradients(training);
      for (int block = 0; block < 4; ++block) {
        const std::string name = absl::StrCat("blocks.", block, ".mlp.router.weight");
        ASSERT_TRUE(actual.contains(name)) << layout.name << ", " << name;
        const at::Tensor& router = actual.at(name);
        const at::Tensor& of_one = expected.at(name);
        EXPECT_GT(of_one.norm().item<double>(), 1e-7) << name;
        EXPECT_LE((router - of_one).norm().item<double>(), 1e-5 * of_one.norm().item<double>())
            << layout.name << ", " << name << (is_z ? ", z" : ", balance");
      }
    }
  }
}

// A window's micro-batches have two rows and one, and a step has two windows.
TEST(LossesOfRouters, OfStagesWeighTheRowsOfAllWindowsAlike) {
  ExpertTraining alone = one_process();
  alone.rows = 6;
  alone.loss_factor = 0;
  alone.router.z_loss = 0.01;
  ExpertTraining training = on({"pp 2", "1x2:h100", {.pp_size = 2}});
  training.rows = alone.rows;
  training.micro_steps = 2;
  training.loss_factor = 0;
  training.router = alone.router;
  expect_routers("two windows", whole_gradients(training), whole_gradients(alone), 1e-4);
}

// As all that a backward pass begins with.
TEST(LossesOfRouters, OfStagesAreScaledInHalfPrecision) {
  ExpertTraining alone = one_process();
  alone.loss_factor = 0;
  alone.router.z_loss = 0.01;
  alone.change = [](AcceleratorOptions& options) {
    options.mixed_precision = PrecisionType::kFp16;
    options.kwargs_handlers.emplace_back(GradScalerKwargs{.init_scale = 1024});
  };
  ExpertTraining training = on({"pp 2", "1x2:h100", {.pp_size = 2}});
  training.loss_factor = 0;
  training.router = alone.router;
  training.change = alone.change;
  expect_routers("fp16", whole_gradients(training), whole_gradients(alone), 1e-2);
}

// A program's loss function may add what train_batch would.
TEST(LossesOfRouters, AreAddedOnceByTrainBatch) {
  enum class Adds { kBackward, kTrainBatch, kLossFunction };
  std::vector<at::Tensor> gradients;
  for (const Adds adds : {Adds::kBackward, Adds::kTrainBatch, Adds::kLossFunction}) {
    simulator::Cluster("1x1:h100").run_on_every_rank([&](simulator::Rank&) {
      Accelerator accelerator;
      lm::Lm net(tiny_experts(1), lm::LmOptions{.router = {.balance_loss = 0.01}});
      fill_experts_by_formula(*net, {});
      auto model = accelerator.prepare(net.ptr());
      const auto [inputs, labels] = formula_batch(0, 4, 128);
      const at::Tensor tokens = inputs.to(accelerator.device());
      const at::Tensor targets = labels.to(accelerator.device());
      const auto loss = [&](const at::Tensor& logits, const at::Tensor& of_rows) {
        at::Tensor sum = torch::cross_entropy_loss(logits.flatten(0, 1), of_rows.flatten());
        if (adds == Adds::kTrainBatch) return sum;
        return sum + model->take_router_loss();
      };
      if (adds == Adds::kBackward) {
        accelerator.backward(loss(model(tokens), targets));
      } else {
        accelerator.train_batch(model, std::pair(tokens, targets), loss);
      }
      const at::Tensor router = net->named_parameters()["blocks.0.mlp.router.weight"];
      gradients.push_back(router.grad().cpu().clone());
    });
  }
  ASSERT_EQ(gradients.size(), 3);
  EXPECT_GT(gradients[0].norm().item<double>(), 1e-7);
  EXPECT_TRUE(gradients[1].equal(gradients[0]));
  EXPECT_TRUE(gradients[2].equal(gradients[0]));
}

// A rank that begins with other values gets those of the first rank with the same experts, which
// stands beside it among the shards, or among the replicas.
TEST(ValuesOfExperts, AreThoseOfTheFirstRankThatHasThem) {
  for (const ParallelismOptions& sizes :
       {ParallelismOptions{.dp_shard_size = 4, .ep_size = 2},
        ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .ep_size = 2}}) {
    ExpertTraining training = on({"", "1x4:h100", sizes});
    training.steps = 0;
    training.look = [](const ModelState& state, int) {
      for (const TrainedParameter& each : state.trained()) {
        if (each.name != "blocks.0.mlp.experts.gate") continue;
        EXPECT_EQ(each.trained.size(0), 2);
        // Ranks 0 and 1 made the values.
        const auto first = static_cast<double>(state.placements().rank % 2);
        EXPECT_EQ(each.trained.min().item<double>(), first);
        EXPECT_EQ(each.trained.max().item<double>(), first);
      }
    };
    training.change_model = [](lm::LmImpl& net) {
      const torch::NoGradGuard no_grad;
      net.named_parameters()["blocks.0.mlp.experts.gate"].fill_(
          static_cast<double>(Runtime::current().topology().rank));
    };
    train_experts(training);
  }
}

}  // namespace
}  // namespace accelerate
