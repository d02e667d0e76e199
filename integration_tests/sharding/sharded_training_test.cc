// A loop that trains replicas trains sharded models alike, on simulated clusters.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

// Each layer is a group: it has 1 MiB of weights.
struct MlpImpl : nn::Module {
  explicit MlpImpl(int layers = 3) {
    for (int i = 0; i < layers; ++i) {
      body->push_back(nn::Linear(512, 512));
      body->push_back(nn::Tanh());
    }
    register_module("body", body);
    head = register_module("head", nn::Linear(512, 3));
  }
  Tensor forward(const Tensor& x) { return head(body->forward(x)); }
  nn::Sequential body;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Mlp);

struct ConvnetImpl : nn::Module {
  ConvnetImpl() {
    // A bias before the batch norm would have no gradient but noise, which Adam enlarges.
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 7, 3).bias(false)));
    norm = register_module("norm", nn::BatchNorm2d(7));
    head = register_module("head", nn::Linear(7 * 14 * 14, 3));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = norm(conv(x.view({-1, 2, 16, 16})));
    return head(y.relu_().flatten(1));
  }
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Convnet);

// A language model of two blocks; all positions of its sequences are learned.
constexpr int64_t kTokens = 16, kVocabulary = 48;

struct Gpt : lm::Lm {
  explicit Gpt(lm::Blocks blocks = lm::Blocks::kGpt)
      : lm::Lm(lm::model_config("tiny", {.blocks = blocks,
                                         .layers = 2,
                                         .hidden = 32,
                                         .heads = 4,
                                         .sequence_length = kTokens,
                                         .vocabulary = kVocabulary})) {}
};
// Without biases: those of keys have no gradient but noise, which Adam enlarges.
struct Llama : Gpt {
  Llama() : Gpt(lm::Blocks::kLlama) {}
};

template <typename Net>
Tensor loss_of(PreparedModel<Net>& model, const Tensor& inputs, const Tensor& labels) {
  return torch::cross_entropy_loss(model(inputs), labels);
}

Tensor loss_of(PreparedModel<lm::LmImpl>& model, const Tensor& inputs, const Tensor& /*labels*/) {
  const Tensor tokens =
      (inputs.narrow(1, 0, kTokens + 1) * 1000).to(torch::kLong).remainder(kVocabulary);
  return torch::cross_entropy_loss(model(tokens.narrow(1, 0, kTokens)).flatten(0, 1),
                                   tokens.narrow(1, 1, kTokens).flatten());
}

struct Job {
  std::string shape;
  bool adam = false;
  int64_t accumulation = 1;
  bool sync_each_batch = false;
  double max_norm = 0;  // 0: gradients are not clipped
  double norm_type = 2;
  uint64_t seed = 0;
};

struct Outcome {
  std::vector<float> losses;  // the means over ranks
  std::vector<float> norms;
  std::vector<Tensor> weights;  // parameters and buffers
};

template <typename Net>
Outcome train(const Job& job, std::optional<ParallelismOptions> parallelism) {
  Outcome outcome;
  Cluster cluster(job.shape + ":h100", {.seed = job.seed});
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options{
        .gradient_accumulation_plugin = GradientAccumulationPlugin{
            .num_steps = job.accumulation, .sync_each_batch = job.sync_each_batch}};
    if (parallelism) options.parallelism_config = ParallelismConfig(*parallelism);
    // Several groups also in small models.
    options.kwargs_handlers = {ShardedDataParallelKwargs{.group_bytes = 2048}};
    Accelerator accelerator(options);
    // Rank 0's values count.
    torch::manual_seed(5 + static_cast<uint64_t>(rank.index()));
    Net net;
    std::shared_ptr<torch::optim::Optimizer> base;
    if (job.adam) {
      base =
          std::make_shared<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(1e-3));
    } else {
      base = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                 torch::optim::SGDOptions(0.05).momentum(0.9));
    }
    const int64_t samples = 2 * 4 * accelerator.state().data_share().count;
    const Tensor x = torch::sin(torch::arange(512. * samples).reshape({samples, 512}) * 0.37);
    const Tensor y = torch::arange(samples) % 3;
    auto [optimizer, model, loader] =
        accelerator.prepare(base, net, DataLoader(make_tensor_dataset(x, y), {.batch_size = 2}));
    std::vector<float> losses, norms;
    for (auto& [inputs, labels] : loader) {
      const auto scope = accelerator.accumulate(model);
      const Tensor loss = loss_of(model, inputs, labels);
      accelerator.backward(loss);
      if (job.max_norm > 0 && accelerator.sync_gradients()) {
        norms.push_back(
            accelerator.clip_grad_norm_(model, job.max_norm, job.norm_type).template item<float>());
      }
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(accelerator.reduce(loss.detach(), Reduction::kMean).template item<float>());
    }
    const auto whole = full_parameters(model, {.writeback = false});
    if (rank.index() != 0) return;
    outcome = {.losses = losses, .norms = norms};
    for (const Tensor& each : net->parameters()) outcome.weights.push_back(each.detach().cpu());
    for (const Tensor& each : net->buffers()) outcome.weights.push_back(each.cpu());
  });
  return outcome;
}

int ranks_of(const std::string& shape) { return Cluster(shape).world_size(); }

constexpr double kNormTolerance = 1e-6;

void expect_near(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * std::abs(b.losses[i])) << i;
  }
  ASSERT_EQ(a.norms.size(), b.norms.size());
  for (size_t i = 0; i < a.norms.size(); ++i) {
    EXPECT_NEAR(a.norms[i], b.norms[i], kNormTolerance * std::abs(b.norms[i])) << i;
  }
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a.weights[i], b.weights[i], tolerance, tolerance))
        << i << ": " << (a.weights[i] - b.weights[i]).abs().max().template item<double>();
  }
}

// Among all ranks.
void expect_replicated_training(const Job& job) {
  SCOPED_TRACE(absl::StrCat(job.shape, job.adam ? ", Adam" : ", SGD", ", ", job.accumulation,
                            " micro-steps, norm ", job.max_norm));
  const ParallelismOptions shards{.dp_shard_size = ranks_of(job.shape)};
  const double tolerance = job.adam ? 1e-5 : 1e-6;
  expect_near(train<Mlp>(job, shards), train<Mlp>(job, std::nullopt), tolerance);
  expect_near(train<Convnet>(job, shards), train<Convnet>(job, std::nullopt), tolerance);
  expect_near(train<Llama>(job, shards), train<Llama>(job, std::nullopt), tolerance);
  if (!job.adam) expect_near(train<Gpt>(job, shards), train<Gpt>(job, std::nullopt), tolerance);
}

class ShardedTraining : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(On, ShardedTraining, ::testing::Values("1x2", "1x4", "2x4", "3x3"),
                         [](const auto& shape) { return std::string(shape.param); });

TEST_P(ShardedTraining, EqualsThatOfReplicas) {
  expect_replicated_training({.shape = GetParam()});
  expect_replicated_training({.shape = GetParam(), .adam = true});
}

TEST_P(ShardedTraining, EqualsThatOfReplicasWithAccumulationAndClipping) {
  expect_replicated_training({.shape = GetParam(), .accumulation = 2, .max_norm = 0.05});
  expect_replicated_training({.shape = GetParam(),
                              .adam = true,
                              .accumulation = 2,
                              .sync_each_batch = true,
                              .max_norm = 0.05});
}

TEST(ShardedModel, ClipsByNormsOfEveryOrder) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double norm_type : {0.0, 1.0, 3.5, kInfinity, -kInfinity}) {
    SCOPED_TRACE(norm_type);
    const Job job{.shape = "1x2", .max_norm = 0.01, .norm_type = norm_type};
    expect_near(train<Convnet>(job, ParallelismOptions{.dp_shard_size = 2}),
                train<Convnet>(job, std::nullopt), 1e-6);
  }
}

AcceleratorOptions shards(int ranks) {
  return {.parallelism_config = ParallelismConfig({.dp_shard_size = ranks})};
}

// Which of two layers of the same size comes first.
struct TurnedImpl : nn::Module {
  TurnedImpl() {
    a = register_module("a", nn::Linear(512, 512));
    b = register_module("b", nn::Linear(512, 512));
  }
  Tensor forward(const Tensor& x, bool turned) { return turned ? a(b(x)) : b(a(x)); }
  nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Turned);

TEST(ShardedModel, NamesTheParametersThatRanksUseInDifferentOrders) {
  Cluster cluster("1x2:h100");
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator(shards(2));
      auto model = accelerator.prepare(Turned());
      const Tensor x = torch::ones({2, 512}, accelerator.device());
      accelerator.backward(model(x, false).sum());
      model(x, rank.index() == 1);
    });
    ADD_FAILURE() << "rank 1 turned the layers";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameters \"a.weight\" to \"a.bias\""));
    EXPECT_THAT(error.what(), HasSubstr("parameters \"b.weight\" to \"b.bias\""));
  }
}

TEST(ShardedModel, HasReplicas) {
  const Job job{.shape = "2x2", .accumulation = 2, .max_norm = 0.05};
  expect_near(train<Mlp>(job, ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2}),
              train<Mlp>(job, std::nullopt), 1e-6);
}

template <typename Net>
void expect_same_bits_in_every_order_of_ranks() {
  const Job job{.shape = "1x4", .adam = true, .max_norm = 0.05};
  const Outcome first = train<Net>(job, ParallelismOptions{.dp_shard_size = 4});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Job again = job;
    again.seed = seed;
    const Outcome outcome = train<Net>(again, ParallelismOptions{.dp_shard_size = 4});
    EXPECT_EQ(outcome.losses, first.losses) << seed;
    for (size_t i = 0; i < first.weights.size(); ++i) {
      EXPECT_TRUE(torch::equal(outcome.weights[i], first.weights[i])) << seed;
    }
  }
}

TEST(ShardedModel, HasTheSameBitsInEveryOrderOfRanks) {
  expect_same_bits_in_every_order_of_ranks<Convnet>();
  expect_same_bits_in_every_order_of_ranks<Llama>();
  expect_same_bits_in_every_order_of_ranks<Gpt>();
}

TEST(ShardedModel, TakesItsShareOfMemoryAndTwoGroups) {
  Cluster("1x8:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(8));
    const auto& memory = rank.device()->memory();
    Mlp net(6);
    const int64_t before = memory.in_use();
    auto model = accelerator.prepare(net);
    int64_t expected = 0, largest = 0;
    for (const Tensor& each : net->parameters()) {
      const int64_t row = each.numel() / each.size(0) * 4;
      const int64_t bytes = (each.size(0) + 7) / 8 * row;
      expected += (bytes + 511) / 512 * 512;
      largest = std::max(largest, static_cast<int64_t>(each.nbytes()));
    }
    EXPECT_EQ(memory.in_use() - before, expected);
    const torch::NoGradGuard no_grad;
    model(torch::ones({2, 512}, accelerator.device()));
    EXPECT_EQ(memory.in_use() - before, expected);
    constexpr int64_t kActivations = 64 << 10;
    EXPECT_LE(memory.peak() - before, expected + 2 * (largest + 2048) + kActivations);
  });
}

// The peaks of memory of all ranks, and what is left of it.
std::vector<int64_t> memory_of_training(simulator::Numerics numerics) {
  std::vector<int64_t> bytes;
  Cluster cluster("1x4:h100", {.numerics = numerics});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(shards(4));
    Mlp net(4);
    torch::optim::AdamW adam(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model(torch::ones({2, 512}, accelerator.device())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
    rank.report("left", static_cast<double>(rank.device()->memory().in_use()));
  });
  for (const char* name : {"peak", "left"}) {
    for (const Tensor& each : cluster.reports(name)) bytes.push_back(each.item<int64_t>());
  }
  return bytes;
}

TEST(ShardedModel, TakesTheSameMemoryWithoutValues) {
  EXPECT_EQ(memory_of_training(simulator::Numerics::kShapes),
            memory_of_training(simulator::Numerics::kReal));
}

struct HeadOnlyImpl : MlpImpl {
  Tensor forward(const Tensor& x) { return head(body->forward(x).detach()); }
};
TORCH_MODULE(HeadOnly);

TEST(ShardedModel, SkipsAStepOnAllRanksWhereOneShardOverflows) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    AcceleratorOptions options = shards(2);
    options.mixed_precision = PrecisionType::kFp16;
    Accelerator accelerator(options);
    HeadOnly net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (const bool overflows : {false, true, false}) {
      // The first row of the head is in rank 0's shard alone. The others fit fp16 when scaled.
      constexpr float kSmall = 1e-3f;
      const float first = overflows ? std::numeric_limits<float>::infinity() : kSmall;
      const Tensor factors = torch::tensor({first, kSmall, kSmall});
      const Tensor out = model(torch::ones({2, 512}, accelerator.device()));
      accelerator.backward((out * factors.to(accelerator.device())).sum());
      optimizer.step();
      EXPECT_EQ(accelerator.optimizer_step_was_skipped(), overflows) << rank.index();
      optimizer.zero_grad();
    }
  });
}

TEST(ShardedModel, CountsTokensOfAllMicroStepsAndRanks) {
  const auto gradients = [](std::optional<ParallelismOptions> parallelism) {
    std::vector<Tensor> all;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      AcceleratorOptions options{.gradient_accumulation_steps = 2};
      if (parallelism) options.parallelism_config = ParallelismConfig(*parallelism);
      Accelerator accelerator(options);
      torch::manual_seed(2);
      Convnet net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 4; ++step) {
        const auto scope = accelerator.accumulate(model);
        const Tensor x = torch::sin(torch::arange(1024.) + step).to(accelerator.device());
        const int64_t tokens = 1 + step + 3 * rank.index();
        accelerator.backward_tokens(model(x).square().mean() * tokens, tokens);
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto whole = full_parameters(model);
      if (rank.index() != 0) return;
      for (const Tensor& each : net->parameters()) all.push_back(each.detach().cpu());
    });
    return all;
  };
  const auto a = gradients(ParallelismOptions{.dp_shard_size = 2}), b = gradients(std::nullopt);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-5, 1e-6)) << i;
}

// The weights alone are twice the device's memory, and with gradients four times.
TEST(ShardedModel, TrainsWhereNoReplicaFits) {
  const auto run = [](std::optional<int> ranks) {
    Cluster("1x8:h100,mem=12MiB,efficiency=ideal").run_on_every_rank([&](Rank&) {
      Accelerator accelerator(ranks ? shards(*ranks) : AcceleratorOptions());
      Mlp net(24);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const Tensor loss = model(torch::ones({2, 512}, accelerator.device())).square().mean();
      accelerator.backward(loss);
      optimizer.step();
    });
  };
  EXPECT_ANY_THROW(run(std::nullopt));
  EXPECT_NO_THROW(run(8));
}

TEST(ShardedModel, GivesItsShardsToOptimizersInAnyOrder) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(2));
    Mlp net;
    torch::optim::SGD first(net->parameters(), 0.1), second(net->parameters(), 0.1);
    auto early = accelerator.prepare(first);
    auto model = accelerator.prepare(net);
    auto late = accelerator.prepare(second);
    for (const torch::optim::Optimizer* optimizer : {&first, &second}) {
      const std::vector<Tensor>& trained = optimizer->param_groups()[0].params();
      EXPECT_EQ(trained[0].sizes(), (std::vector<int64_t>{256, 512}));
      EXPECT_EQ(trained.back().size(0), rank.index() == 0 ? 2 : 1);
      EXPECT_TRUE(trained[0].is_same(first.param_groups()[0].params()[0]));
    }
  });
}

TEST(ShardedModel, ForgetsWholeGradientsWithThoseOfItsOptimizer) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(shards(2));
    Mlp net(1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x = torch::ones({2, 512}, accelerator.device());
    for (const bool set_to_none : {true, false}) {
      {
        const auto scope = accelerator.no_sync(model);
        accelerator.backward(model(x).sum() * std::numeric_limits<double>::quiet_NaN());
      }
      EXPECT_TRUE(net->head->weight.grad().isnan().any().item<bool>());
      optimizer.zero_grad(set_to_none);
      accelerator.backward(model(x).sum());
      for (const Tensor& shard : sgd.param_groups()[0].params()) {
        EXPECT_TRUE(shard.grad().isfinite().all().item<bool>());
        EXPECT_TRUE(shard.grad().any().item<bool>());
      }
      optimizer.zero_grad(set_to_none);
    }
  });
}

// Two parameters of 2 MiB in one group.
struct PairImpl : nn::Module {
  PairImpl() {
    a = register_parameter("a", torch::ones({1024, 512}));
    b = register_parameter("b", torch::ones({1024, 512}));
  }
  Tensor forward(const Tensor& x) { return x.matmul(a) + x.matmul(b); }
  Tensor a, b;
};
TORCH_MODULE(Pair);

TEST(ShardedModel, GoesOnAfterAGatherThatRanOutOfMemory) {
  Cluster("1x2:h100,mem=16MiB,efficiency=ideal").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(2));
    Pair net;
    auto model = accelerator.prepare(net);
    const Tensor x = torch::ones({1, 1024}, accelerator.device());
    const auto& memory = rank.device()->memory();
    const torch::NoGradGuard no_grad;
    const int64_t before = memory.in_use(), room_for_a = int64_t{3} << 20;
    Tensor hog = torch::empty({memory.capacity() - before - room_for_a},
                              torch::dtype(torch::kByte).device(accelerator.device()));
    EXPECT_THROW(model(x), c10::OutOfMemoryError);
    hog.reset();
    EXPECT_EQ(memory.in_use(), before);
    EXPECT_TRUE(model(x).eq(2048).all().item<bool>());
  });
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

// The file has tensors of the CPU.
TEST(ShardedModel, TakesOverAFileThatIsLoadedInAScope) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(shards(2));
    Convnet net, other;
    std::stringstream file;
    torch::save(other, file);
    auto model = accelerator.prepare(net);
    {
      const auto whole = full_parameters(model);
      torch::load(net, file);
    }
    EXPECT_TRUE(is_absent(net->head->weight));
    {
      const auto whole = full_parameters(model, {.writeback = false});
      for (const auto& item : net->named_parameters()) {
        EXPECT_EQ(item.value().device(), accelerator.device());
        EXPECT_TRUE(torch::equal(item.value().cpu(), other->named_parameters()[item.key()]));
      }
    }
    EXPECT_THAT(error_of([&] {
                  const auto whole = full_parameters(model);
                  net->to(torch::kHalf);
                }),
                HasSubstr("\"conv.weight\" on rank "));
    EXPECT_TRUE(is_absent(net->head->weight));
  });
}

TEST(ShardedModel, StaysAsItWasWhereItIsRefused) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(shards(2));
    Mlp net;
    {
      auto lamb = accelerator.prepare(std::make_shared<optim::Lamb>(net->parameters()));
      EXPECT_THAT(error_of([&] { accelerator.prepare(net); }), HasSubstr("LBFGS, LAMB and LOMO"));
    }
    // Whatever comes first, and together with what can be prepared.
    torch::optim::LBFGS lbfgs(net->parameters());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto refused = HasSubstr("\"body.0.weight\" is sharded over ranks, but LBFGS");
    EXPECT_THAT(error_of([&] { accelerator.prepare(net, lbfgs); }), refused);
    EXPECT_THAT(error_of([&] { accelerator.prepare(sgd, net, lbfgs); }), refused);
    EXPECT_THAT(error_of([&] { accelerator.prepare(lbfgs, sgd, net); }), refused);
    EXPECT_FALSE(is_absent(net->body->parameters()[0]));
    for (const torch::optim::Optimizer* each :
         std::initializer_list<const torch::optim::Optimizer*>{&sgd, &lbfgs}) {
      EXPECT_TRUE(each->param_groups()[0].params()[0].is_same(net->parameters()[0]));
    }
    torch::optim::Adam adam(net->parameters());
    net->forward(torch::ones({1, 512})).sum().backward();
    adam.step();
    EXPECT_THAT(error_of([&] { accelerator.prepare(net, adam); }),
                HasSubstr("the optimizer has state for parameter \"body.0.weight\""));
    EXPECT_FALSE(is_absent(net->body->parameters()[0]));
    const Tensor bias = net->head->bias;
    const Tensor count = net->head->register_buffer("count", torch::ones({2}));
    net->head->bias = net->head->register_parameter("again", bias.detach());
    EXPECT_THAT(error_of([&] { accelerator.prepare(net); }), HasSubstr("share memory"));
    EXPECT_FALSE(is_absent(net->body->parameters()[0]));
    EXPECT_TRUE(count.is_cpu());
    net->head->bias.set_data(bias.detach().clone());
    auto model = accelerator.prepare(net);
    EXPECT_TRUE(is_absent(net->head->bias));
    EXPECT_EQ(count.device(), accelerator.device());
  });
}

TEST(ShardedModel, RefusesStepsThatAScopeWouldUndo) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(shards(2));
    Mlp net(1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({2, 512}, accelerator.device())).sum());
    const Tensor bias = sgd.param_groups()[0].params().back(), before = bias.clone();
    for (const bool offload : {false, true}) {
      const auto whole = full_parameters(model, {.offload_to_cpu = offload});
      EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("step: the end of a full_param"));
    }
    EXPECT_TRUE(torch::equal(bias, before));
    {
      const auto whole = full_parameters(model, {.writeback = false});
      optimizer.step();
    }
    EXPECT_FALSE(torch::equal(bias, before));
  });
}

TEST(ShardedModel, ShowsValuesOnTheFirstRankAlone) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(2));
    torch::manual_seed(4);
    Convnet net;
    torch::manual_seed(4);
    Convnet same;
    auto model = accelerator.prepare(net);
    EXPECT_THAT(error_of([&] { (void)full_parameters(model, {.rank0_only = true}); }),
                HasSubstr("rank0_only needs writeback = false"));
    for (const bool offload : {false, true}) {
      const auto whole = full_parameters(
          model, {.writeback = false, .rank0_only = true, .offload_to_cpu = offload});
      for (const auto& item : net->named_parameters()) {
        EXPECT_EQ(is_absent(item.value()), rank.index() != 0);
        if (rank.index() != 0) continue;
        EXPECT_EQ(item.value().is_cpu(), offload);
        EXPECT_TRUE(torch::equal(item.value().cpu(), same->named_parameters()[item.key()]));
      }
      EXPECT_THAT(error_of([&] { model(torch::ones({1, 512}, accelerator.device())); }),
                  HasSubstr("the model makes no passes inside"));
    }
    model(torch::ones({2, 512}, accelerator.device()));
  });
}

// One group at a time: the device lacks memory for two.
TEST(ShardedModel, ShowsValuesInHostMemoryWhereTheDeviceHasRoomForOneGroup) {
  Cluster("1x2:h100,mem=32MiB,efficiency=ideal").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(shards(2));
    Pair first, second;
    torch::nn::Sequential net(first, second);
    auto model = accelerator.prepare(net);
    const auto& memory = rank.device()->memory();
    const int64_t before = memory.in_use(), group = int64_t{4} << 20;
    Tensor hog = torch::empty({memory.capacity() - before - group * 3 / 2},
                              torch::dtype(torch::kByte).device(accelerator.device()));
    {
      const auto whole = full_parameters(model, {.offload_to_cpu = true});
      EXPECT_EQ(memory.in_use() - before, hog.numel());
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(second->b.is_cpu());
      second->b.mul_(3);
    }
    {
      const auto whole =
          full_parameters(model, {.writeback = false, .rank0_only = true, .offload_to_cpu = true});
      if (rank.index() == 0) {
        EXPECT_TRUE(second->b.eq(3).all().item<bool>());
        EXPECT_TRUE(first->b.eq(1).all().item<bool>());
      }
    }
    EXPECT_ANY_THROW((void)full_parameters(model));
    EXPECT_EQ(memory.in_use() - before, hog.numel());
  });
}

TEST(ShardedModel, RefusesCommunicationHooks) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    using Hook = DDPCommunicationHookType;
    for (const auto& ddp : {DistributedDataParallelKwargs{.comm_hook = Hook::kBf16},
                            DistributedDataParallelKwargs{.comm_wrapper = Hook::kFp16}}) {
      AcceleratorOptions options = shards(2);
      options.kwargs_handlers = {ddp};
      Accelerator accelerator(options);
      Mlp net(1);
      EXPECT_THAT(error_of([&] { accelerator.prepare(net); }),
                  HasSubstr("dp_shard: comm_hook and comm_wrapper"));
      EXPECT_FALSE(is_absent(net->head->bias));
    }
  });
}

TEST(ShardedModel, RefusesWhatNeedsWholeParameters) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(shards(2));
    Mlp net;
    auto model = accelerator.prepare(net);
    EXPECT_TRUE(is_absent(net->head->weight));
    EXPECT_THAT(
        error_of([&] { const auto scope = accelerator.join_uneven_inputs(model); }),
        AllOf(HasSubstr("is divided along dp_shard, and rank "), HasSubstr("need each other")));
    EXPECT_THAT(error_of([&] { LocalSGD(accelerator, model, 2); }), HasSubstr("LocalSGD: "));
    EXPECT_THAT(error_of([&] { accelerator.prepare(optim::Lamb(net->parameters())); }),
                HasSubstr("\"body.0.weight\" is sharded over ranks, but LBFGS, LAMB and LOMO"));
    EXPECT_THAT(error_of([&] { accelerator.prepare(optim::Lomo(net->parameters())); }),
                HasSubstr("LOMO need whole parameters"));
    EXPECT_THAT(error_of([&] { (void)net->head->weight.sum(); }),
                HasSubstr("uses parameter \"head.weight\" on rank "));
    const auto whole = full_parameters(model);
    EXPECT_EQ(accelerator.get_state_dict(model).size(), 8);
  });
}

}  // namespace
}  // namespace accelerate
