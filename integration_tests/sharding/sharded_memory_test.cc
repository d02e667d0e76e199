// What a sharded model holds on its devices, to the byte, and what happens where it does not fit.
// One shape of the cluster each: the bytes are those of a number of ranks.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/fused_optimizers.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::ClusterOptions;
using simulator::MemoryCategory;
using simulator::MemorySample;
using simulator::Numerics;
using simulator::Rank;
using simulator::RankFailure;
using simulator::Trace;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using torch::Tensor;
namespace nn = torch::nn;

// Each of its layers is a group: it has 1 MiB of weights.
struct MlpImpl : nn::Module {
  explicit MlpImpl(int layers) {
    for (int i = 0; i < layers; ++i) body->push_back(nn::Linear(512, 512));
    register_module("body", body);
    head = register_module("head", nn::Linear(512, 3));
  }
  Tensor forward(const Tensor& x) { return head(body->forward(x)); }
  nn::Sequential body;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Mlp);

constexpr int64_t kFloatBytes = 4;

// The device's allocator gives memory in blocks of 512 bytes.
int64_t blocks(int64_t elements) { return (elements * kFloatBytes + 511) / 512 * 512; }

// The bytes of a rank by what they are for.
struct Held {
  int64_t parameters = 0;
  int64_t gathered = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;

  bool operator==(const Held&) const = default;
  friend void PrintTo(const Held& held, std::ostream* out) {
    *out << held.parameters << " parameters, " << held.gathered << " gathered, " << held.gradients
         << " gradients, " << held.optimizer_state << " optimizer state";
  }
};

// At the end of a backward pass. The memory of a shard and of its gradient has ceil(rows / ranks)
// rows on all ranks; the two moments of AdamW have the rank's own.
Held formula(const std::vector<Tensor>& parameters, int ranks, int rank) {
  Held held;
  for (const Tensor& each : parameters) {
    const int64_t rows = each.size(0), row = each.numel() / rows;
    const int64_t most = (rows + ranks - 1) / ranks;
    held.parameters += blocks(most * row);
    held.optimizer_state += 2 * blocks(std::clamp<int64_t>(rows - most * rank, 0, most) * row);
  }
  held.gradients = held.parameters;
  return held;
}

Held held_by(const std::array<int64_t, simulator::kNumMemoryCategories>& bytes) {
  const auto in = [&](MemoryCategory category) { return bytes[static_cast<size_t>(category)]; };
  return {.parameters = in(MemoryCategory::kParameters),
          .gathered = in(MemoryCategory::kGatheredParameters),
          .gradients = in(MemoryCategory::kGradients),
          .optimizer_state = in(MemoryCategory::kOptimizerState)};
}

Held held_by(Rank& rank) { return held_by(rank.device()->memory().by_category()); }

AcceleratorOptions shards(int ranks) {
  return {.parallelism_config = ParallelismConfig({.dp_shard_size = ranks})};
}

ClusterOptions recorded(Numerics numerics) {
  return {
      .numerics = numerics,
      .record = true,
      .unknown_value = numerics == Numerics::kShapes
                           ? [](const std::string&) { return std::nan(""); }
                           : simulator::UnknownValue(),
  };
}

Tensor loss_of(PreparedModel<MlpImpl>& model, const c10::Device& device) {
  return model(torch::ones({2, 512}, device)).square().mean();
}

Tensor loss_of(PreparedModel<lm::LmImpl>& model, const c10::Device& device) {
  const Tensor tokens = (torch::arange(34) % 7).view({2, 17}).to(device);
  return torch::cross_entropy_loss(model(tokens).flatten(0, 1), tokens.flatten());
}

// Trains three steps with AdamW and checks what is held when.
template <typename Net>
void expect_formula(const std::string& spec, Numerics numerics, const std::function<Net()>& make) {
  Cluster cluster(spec, recorded(numerics));
  const int ranks = cluster.world_size();
  SCOPED_TRACE(spec + (numerics == Numerics::kShapes ? ", shapes" : ""));
  std::vector<Held> expected(ranks);
  std::vector<int64_t> prepared_ns(ranks);
  int64_t step_bytes = 0;  // the optimizer's counters of steps
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(shards(ranks));
    Net net = make();
    expected[rank.index()] = formula(net->parameters(), ranks, rank.index());
    const Held& full = expected[rank.index()];
    optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    EXPECT_EQ(held_by(rank), (Held{.parameters = full.parameters}));
    EXPECT_EQ(rank.device()->memory().in_use(), full.parameters);
    prepared_ns[rank.index()] = rank.device()->host_ns();
    Held state;
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(loss_of(model, accelerator.device()));
      Held now = held_by(rank);
      EXPECT_EQ(now.optimizer_state, state.optimizer_state) << step;
      now.optimizer_state = full.optimizer_state;
      EXPECT_EQ(now, full) << step;
      optimizer.step();
      optimizer.zero_grad();
      if (step == 0) {
        step_bytes = held_by(rank).optimizer_state - full.optimizer_state;
        EXPECT_THAT(step_bytes, ::testing::AnyOf(0, 512));
      }
      state = {.parameters = full.parameters, .optimizer_state = full.optimizer_state + step_bytes};
      EXPECT_EQ(held_by(rank), state) << step;
      EXPECT_EQ(rank.device()->memory().in_use(), state.parameters + state.optimizer_state);
    }
  });
  // The report shows the same.
  const Trace& trace = cluster.trace();
  EXPECT_EQ(trace.steps.size(), 2);
  for (int rank = 0; rank < ranks; ++rank) {
    Held highest, full = expected[rank];
    full.optimizer_state += step_bytes;
    bool is_complete = false;
    for (const MemorySample& each : trace.memory) {
      if (each.rank != rank || each.at_ns < prepared_ns[rank]) continue;
      const Held held = held_by(each.bytes);
      highest.parameters = std::max(highest.parameters, held.parameters);
      highest.gradients = std::max(highest.gradients, held.gradients);
      highest.optimizer_state = std::max(highest.optimizer_state, held.optimizer_state);
      is_complete |= held == full;
    }
    EXPECT_EQ(highest, full) << rank;
    EXPECT_TRUE(is_complete) << rank;
  }
}

TEST(ShardedMemory, OfAPerceptronEqualsTheFormulaToTheByte) {
  for (const char* spec : {"1x4:h100", "1x8:h100"}) {
    for (const Numerics numerics : {Numerics::kReal, Numerics::kShapes}) {
      expect_formula<Mlp>(spec, numerics, [] { return Mlp(3); });
    }
  }
}

TEST(ShardedMemory, OfALanguageModelEqualsTheFormulaToTheByte) {
  for (const char* spec : {"1x4:h100", "1x8:h100"}) {
    for (const Numerics numerics : {Numerics::kReal, Numerics::kShapes}) {
      for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
        // Rows that no number of ranks divides, and a second group.
        expect_formula<lm::Lm>(spec, numerics, [blocks] {
          return lm::Lm(lm::model_config("tiny", {.blocks = blocks,
                                                  .layers = 3,
                                                  .hidden = 150,
                                                  .heads = 3,
                                                  .kv_heads = 1,
                                                  .sequence_length = 17,
                                                  .vocabulary = 101,
                                                  .tied_head = 1}));
        });
      }
    }
  }
}

TEST(ShardedMemory, OfParametersIsThatOfShardsAndTwoGroups) {
  Cluster cluster("1x8:h100", {.record = true});
  Held shard;
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(shards(8));
    Mlp net(6);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    if (rank.index() == 0) shard = formula(net->parameters(), 8, 0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(loss_of(model, accelerator.device()));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  const int64_t group = blocks(512 * 512) + blocks(512);
  int64_t highest = 0, gathered = 0;
  for (const MemorySample& each : cluster.trace().memory) {
    const Held held = held_by(each.bytes);
    highest = std::max(highest, held.parameters + held.gathered);
    gathered = std::max(gathered, held.gathered);
  }
  EXPECT_LE(highest, shard.parameters + 2 * group);
  EXPECT_EQ(gathered, 2 * group);
}

TEST(ShardedMemory, OfASecondModelIsToldAsThatOfTheFirst) {
  Cluster cluster("1x2:h100", {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(shards(2));
    Held expected;
    std::vector<std::function<void()>> steps;
    for (const int layers : {1, 2}) {
      auto net = std::make_shared<MlpImpl>(layers);
      auto adamw = std::make_shared<torch::optim::AdamW>(net->parameters());
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      steps.push_back([&accelerator, model = model, optimizer = optimizer]() mutable {
        accelerator.backward(loss_of(model, accelerator.device()));
        optimizer.step();
        optimizer.zero_grad();
      });
      const Held more = formula(net->parameters(), 2, rank.index());
      expected.parameters += more.parameters;
      expected.optimizer_state += more.optimizer_state;
      for (int i = 0; i < 2; ++i) {
        for (const auto& step : steps) step();
      }
      // The state of the second one is known when the next step begins.
      const Tensor next = torch::ones({1}, accelerator.device()) + 1;
      EXPECT_EQ(held_by(rank), expected) << layers;
    }
  });
  // Two of the first model, then four with both.
  EXPECT_EQ(cluster.trace().steps.size(), 6);
}

// A pass without synchronisation leaves whole gradients, and the next one their shards.
TEST(ShardedMemory, OfGradientsIsWholeUntilTheyAreReduced) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(4));
    Mlp net(2);
    auto model = accelerator.prepare(net);
    int64_t whole = 0;
    for (const Tensor& each : net->parameters()) whole += blocks(each.numel());
    {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(loss_of(model, accelerator.device()));
    }
    EXPECT_EQ(held_by(rank).gradients, whole);
    accelerator.backward(loss_of(model, accelerator.device()));
    EXPECT_EQ(held_by(rank).gradients, formula(net->parameters(), 4, rank.index()).gradients);
    const auto& bytes = rank.device()->memory().by_category();
    EXPECT_EQ(bytes[static_cast<size_t>(MemoryCategory::kBuckets)], 0);
  });
}

// Trains `layers` layers, of which every `trained_every`-th one is not frozen.
void train_on(const std::string& spec, int layers, int trained_every) {
  Cluster cluster(spec);
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(shards(cluster.world_size()));
    Mlp net(layers);
    for (int i = 0; i < layers; ++i) {
      if (i % trained_every == 0) continue;
      for (const Tensor& each : net->body[i]->parameters()) each.requires_grad_(false);
    }
    int64_t bytes = 0;
    for (const Tensor& each : net->parameters()) bytes += static_cast<int64_t>(each.nbytes());
    EXPECT_GE(bytes, 4 * rank.device()->memory().capacity());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(loss_of(model, accelerator.device()));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

// On 8 ranks the shards of such a model take half of the memory, and those of all its gradients
// would take the other half.
TEST(ShardedMemory, FitsAModelOfFourTimesTheDevicesMemory) {
  EXPECT_NO_THROW(train_on("1x8:h100,mem=12MiB,efficiency=ideal", 48, /*trained_every=*/4));
  EXPECT_NO_THROW(train_on("2x8:h100,mem=10MiB,efficiency=ideal", 40, /*trained_every=*/1));
}

// The failures of a job of 4 ranks in which rank 2 has no memory left in a forward pass, or in the
// backward pass.
std::vector<RankFailure> failures_without_memory(bool sharded, bool in_backward) {
  Cluster cluster("1x4:h100,mem=64MiB,efficiency=ideal");
  try {
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(sharded ? shards(4) : AcceleratorOptions());
      Mlp net(4);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        Tensor hog;
        const auto take_memory = [&] {
          const auto& memory = rank.device()->memory();
          if (rank.index() != 2 || step != 1) return;
          hog = torch::empty({memory.capacity() - memory.in_use() - 1024},
                             torch::dtype(torch::kByte).device(accelerator.device()));
        };
        if (!in_backward) take_memory();
        const Tensor loss = loss_of(model, accelerator.device());
        if (in_backward) take_memory();
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith("rank 2 failed: rank 2's sim:2 (h100) is out of "
                                               "memory: "),
                                    HasSubstr("also failed: ")));
    return error.failures();
  }
  return {};
}

TEST(ShardedMemory, ThatEndsOnOneRankEndsTheJobAndNamesTheRank) {
  for (const bool sharded : {false, true}) {
    for (const bool in_backward : {false, true}) {
      SCOPED_TRACE(std::string(sharded ? "sharded" : "replicas") +
                   (in_backward ? ", backward" : ", forward"));
      const std::vector<RankFailure> failures = failures_without_memory(sharded, in_backward);
      ASSERT_THAT(failures, SizeIs(4));
      EXPECT_EQ(failures[0].rank, 2);
      EXPECT_THROW(std::rethrow_exception(failures[0].exception), c10::OutOfMemoryError);
      for (size_t i = 1; i < failures.size(); ++i) {
        EXPECT_THROW(std::rethrow_exception(failures[i].exception), c10::DistError)
            << failures[i].message;
      }
    }
  }
}

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(ShardedMemory, OfAnAbsentParameterIsNamedWhereItIsRead) {
  for (const Numerics numerics : {Numerics::kReal, Numerics::kShapes}) {
    Cluster("1x2:h100", recorded(numerics)).run_on_every_rank([](Rank& rank) {
      Accelerator accelerator(shards(2));
      Mlp net(1);
      auto model = accelerator.prepare(net);
      accelerator.backward(loss_of(model, accelerator.device()));
      const torch::NoGradGuard no_grad;
      const UnwatchedOperators unwatched;
      const Tensor& weight = net->head->weight;
      const std::string index = std::to_string(rank.index());
      EXPECT_THAT(error_of([&] { (void)weight.sum(); }),
                  HasSubstr("aten::sum on rank " + index + "'s sim:" + index +
                            " (h100) uses absent parameter \"head.weight\""));
      EXPECT_THAT(error_of([&] { weight.fill_(1); }),
                  HasSubstr("absent parameter \"head.weight\""));
      EXPECT_THAT(error_of([&] { (void)weight.cpu(); }),
                  HasSubstr("absent parameter \"head.weight\""));
      EXPECT_THAT(error_of([&] { (void)weight.grad().neg(); }),
                  HasSubstr("absent gradient of parameter \"head.weight\""));
      EXPECT_EQ(weight.t().sizes(), (std::vector<int64_t>{512, 3}));
      EXPECT_EQ(torch::zeros_like(weight).sizes(), weight.sizes());
    });
  }
}

TEST(ShardedMemory, OfAModelThatSurvivesIsThatOfItsShards) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(2));
    auto net = std::make_shared<MlpImpl>(1);
    net->register_buffer("buffer", torch::ones({5}));
    auto model = accelerator.prepare(net);
    auto copy = model;
    const MemoryReport report = accelerator.free_memory(model);
    ASSERT_THAT(report.survivors, SizeIs(1));
    // Rank 0 has two rows of the head's three.
    const int64_t elements = 256 * 512 + 256 + (rank.index() == 0 ? 2 : 1) * (512 + 1) + 5;
    EXPECT_EQ(report.survivors[0].bytes, kFloatBytes * elements);
    // The weights are gone with the last handle.
    const MemoryReport later = accelerator.free_memory(copy);
    EXPECT_THAT(later.survivors, SizeIs(0));
    EXPECT_EQ(later.device->in_use, 512);
  });
}

}  // namespace
}  // namespace accelerate
