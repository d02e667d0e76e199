// Convolutions with batch norm, attention, recurrent layers and embeddings, each with its blocks
// compiled operator by operator and as it is: bit by bit the same training, replicated with
// accumulation and divided among ranks, for many seeds.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/testing/transformer_blocks.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::IsEmpty;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 20;
constexpr int kSeeds = 20;

// ---- Blocks.

struct ConvBlockImpl : nn::Module {
  Tensor forward(const Tensor& x) { return torch::relu(norm(conv(x))); }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 2, 3).padding(1)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(2));
};

struct AttentionImpl : DroppingAttentionImpl {
  AttentionImpl() : DroppingAttentionImpl(/*width=*/8) {}
};

struct CellImpl : nn::Module {
  Tensor forward(const Tensor& x) { return std::get<0>(lstm(x)); }
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(4, 4).batch_first(true)));
};

struct WordsImpl : nn::Module {
  Tensor forward(const Tensor& tokens) { return torch::tanh(embed(tokens)); }
  nn::Embedding embed = register_module("embed", nn::Embedding(11, 6));
};

template <typename Block>
struct StackImpl : nn::Module {
  StackImpl(int count, int64_t features) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_shared<Block>());
      blocks->push_back(layers.back());
    }
    head = register_module("head", nn::Linear(features, 3));
  }
  Tensor forward(const Tensor& input) {
    Tensor x = input;
    for (const std::shared_ptr<Block>& layer : layers) x = block(layer, x);
    return head(x.dim() == 4 ? x.flatten(1) : x.mean(1));
  }
  std::vector<std::shared_ptr<Block>> layers;
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::Linear head{nullptr};
};

// A model of so many blocks, and what it is fed with.
template <typename Block>
struct Kind {
  const char* name;  // of the block's class
  int count;
  int64_t features;
  Tensor (*input)();
};

const Kind<ConvBlockImpl> kImages = {"ConvBlock", 2, 50, [] { return torch::randn({4, 2, 5, 5}); }};
const Kind<AttentionImpl> kSequences = {"Attention", 2, 8, [] { return torch::randn({4, 5, 8}); }};
const Kind<CellImpl> kSeries = {"Cell", 2, 4, [] { return torch::randn({4, 5, 4}); }};
const Kind<WordsImpl> kTexts = {"Words", 1, 6, [] { return torch::randint(11, {4, 5}); }};

// ---- Training.

// Losses, parameters and buffers after 20 steps.
template <typename Block>
Tensor trained(Rank& rank, const Kind<Block>& kind, const AcceleratorOptions& options, int seed) {
  Accelerator accelerator(options);
  torch::manual_seed(seed);
  auto net = std::make_shared<StackImpl<Block>>(kind.count, kind.features);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  torch::manual_seed(1000 * seed + rank.index());
  const int passes = kSteps * static_cast<int>(options.gradient_accumulation_steps.value_or(1));
  std::vector<Tensor> values;
  for (int pass = 0; pass < passes; ++pass) {
    const auto scope = accelerator.accumulate(model);
    const Tensor target = torch::randint(3, {4});
    const Tensor loss = nn::functional::cross_entropy(model(kind.input()), target);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    values.push_back(loss.detach().flatten());
  }
  if (const auto report = compile_report(model)) {
    EXPECT_THAT(report->not_compiled, IsEmpty());
    EXPECT_EQ(report->regions, kind.count);
    // The blocks are equal, but the first one's input needs no gradient.
    EXPECT_EQ(report->programs, std::min(kind.count, 2));
    EXPECT_EQ(report->compiled_calls, kind.count * (passes - 2));
  }
  const auto whole = full_parameters(model, {.writeback = false});
  for (const Tensor& each : net->parameters()) values.push_back(each.detach().flatten().clone());
  for (const Tensor& each : net->buffers()) values.push_back(each.flatten().to(torch::kFloat));
  return torch::cat(values);
}

// Row by seed, for each rank.
template <typename Block>
std::vector<Tensor> trained_on(const char* topology, const Kind<Block>& kind,
                               const AcceleratorOptions& options) {
  Cluster cluster(topology, {.seed = 2});
  cluster.run_on_every_rank([&](Rank& rank) {
    std::vector<Tensor> rows;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      rows.push_back(trained(rank, kind, options, seed));
    }
    rank.report("values", torch::stack(rows));
  });
  return cluster.reports("values");
}

template <typename Block>
void expect_equal_training(const char* topology, const Kind<Block>& kind,
                           const AcceleratorOptions& plain) {
  AcceleratorOptions compiled = plain;
  compiled.dynamo_plugin = TorchDynamoPlugin{
      .backend = DynamoBackend::kAotEager, .fullgraph = true, .use_regional_compilation = true};
  const std::vector<Tensor> expected = trained_on(topology, kind, plain);
  const std::vector<Tensor> got = trained_on(topology, kind, compiled);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t rank = 0; rank < got.size(); ++rank) {
    EXPECT_TRUE(expected[rank].isfinite().all().template item<bool>());
    EXPECT_FALSE(torch::equal(expected[rank][0], expected[rank][1])) << "seeds differ";
    for (int seed = 0; seed < kSeeds; ++seed) {
      EXPECT_TRUE(torch::equal(got[rank][seed], expected[rank][seed]))
          << kind.name << ", rank " << rank << ", seed " << seed + 1;
    }
  }
}

template <typename Block>
void expect_equal_replicas(const Kind<Block>& kind) {
  expect_equal_training("2x4", kind, {.gradient_accumulation_steps = 2});
}

template <typename Block>
void expect_equal_shards(const Kind<Block>& kind) {
  expect_equal_training(
      "1x4", kind,
      {.fsdp_plugin = FullyShardedDataParallelPlugin{
           .fsdp_version = 2,
           .auto_wrap_policy = "transformer_based_wrap",
           .transformer_cls_names_to_wrap = std::vector<std::string>{kind.name}}});
}

TEST(CompiledModels, ConvolutionsWithBatchNormTrainAsReplicas) { expect_equal_replicas(kImages); }
TEST(CompiledModels, AttentionTrainsAsReplicas) { expect_equal_replicas(kSequences); }
TEST(CompiledModels, RecurrentLayersTrainAsReplicas) { expect_equal_replicas(kSeries); }
TEST(CompiledModels, EmbeddingsTrainAsReplicas) { expect_equal_replicas(kTexts); }

TEST(CompiledModels, ConvolutionsWithBatchNormTrainDivided) { expect_equal_shards(kImages); }
TEST(CompiledModels, AttentionTrainsDivided) { expect_equal_shards(kSequences); }
TEST(CompiledModels, RecurrentLayersTrainDivided) { expect_equal_shards(kSeries); }
TEST(CompiledModels, EmbeddingsTrainDivided) { expect_equal_shards(kTexts); }

}  // namespace
}  // namespace accelerate
