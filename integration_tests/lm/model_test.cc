// The example's model by itself: its size, its results, what it looks at, some of its heads, its
// positions, its parts, and its checkpointed blocks.
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/operators/operator_mode.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using lm::Blocks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using torch::Tensor;

constexpr Blocks kBothBlocks[] = {Blocks::kGpt, Blocks::kLlama};

// Llama's heads share keys and values in pairs.
lm::Config small(Blocks blocks) {
  return lm::model_config("tiny", {.blocks = blocks,
                                   .layers = 2,
                                   .hidden = 16,
                                   .heads = 4,
                                   .sequence_length = 6,
                                   .vocabulary = 11});
}

// Weights of 0.02 would hide positions and norms.
void enlarge_weights(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : module.parameters()) parameter.normal_(0, 0.4);
}

int64_t elements(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const Tensor& parameter : module.parameters()) sum += parameter.numel();
  return sum;
}

TEST(LmModel, HasAsManyParametersAsTheFormulaSays) {
  const DefaultDeviceScope without_memory(c10::kMeta);
  for (const Blocks blocks : kBothBlocks) {
    for (const int64_t tied : {0, 1}) {
      const lm::Config odd = lm::model_config("tiny", {.blocks = blocks,
                                                       .layers = 2,
                                                       .hidden = 12,
                                                       .heads = 6,
                                                       .kv_heads = 3,
                                                       .intermediate = 17,
                                                       .sequence_length = 5,
                                                       .vocabulary = 7,
                                                       .tied_head = tied});
      EXPECT_EQ(elements(*lm::Lm(odd)), lm::parameter_count(odd));
      if (blocks == Blocks::kLlama) {
        lm::Config mixed = odd;
        mixed.experts = 5;
        mixed.expert_intermediate = 3;
        mixed.shared_intermediate = 2;
        EXPECT_EQ(elements(*lm::Lm(mixed)), lm::parameter_count(mixed));
      }
      for (const std::string& name : lm::model_names()) {
        const lm::Config config = lm::model_config(name, {.blocks = blocks, .tied_head = tied});
        EXPECT_EQ(elements(*lm::Lm(config)), lm::parameter_count(config)) << name;
      }
    }
  }
}

TEST(LmModel, HasSizesThatAreNearTheirNames) {
  for (const Blocks blocks : kBothBlocks) {
    for (const std::string& name : lm::model_names()) {
      if (name == "tiny") continue;
      const double named = std::stod(name) * (name.ends_with("b") ? 1e9 : 1e6);
      const lm::Config config = lm::model_config(name, {.blocks = blocks});
      EXPECT_NEAR(static_cast<double>(lm::parameter_count(config)) / named, 1, 0.11) << name;
    }
  }
}

TEST(LmModel, NamesItsBlocksByTheirNumber) {
  const lm::Lm model(small(Blocks::kLlama));
  const auto parameters = model->named_parameters();
  for (const char* name :
       {"tokens.weight", "blocks.0.attention.qkv.weight", "blocks.1.attention.project.weight",
        "blocks.1.mlp.gate.weight", "blocks.1.norm2.weight", "norm.weight", "head.weight"}) {
    EXPECT_NE(parameters.find(name), nullptr) << name;
  }
  EXPECT_EQ(parameters.size(), 2 * 7 + 3);
}

TEST(LmModel, KeepsTheProportionsOfSizesThatAreNotGiven) {
  const lm::Config wide = lm::model_config("7b", {.blocks = Blocks::kLlama, .hidden = 8192});
  EXPECT_EQ(wide.intermediate, 22'016);
  EXPECT_EQ(lm::model_config("70b", {.blocks = Blocks::kLlama, .heads = 128}).kv_heads, 16);
  EXPECT_EQ(lm::model_config("tiny", {.hidden = 64}).intermediate, 256);
}

// ---- Llama's blocks once more, a token and a head at a time, in double precision.

Tensor rms_normed(const Tensor& x, const Tensor& weight) {
  return x / (x.pow(2).mean() + 1e-5).sqrt() * weight;
}

// The head's vector at `position`, of which element i and i + size / 2 are the two coordinates of a
// point.
Tensor turned(const Tensor& vector, int64_t position) {
  const int64_t half = vector.size(0) / 2;
  Tensor result = torch::empty_like(vector);
  for (int64_t i = 0; i < half; ++i) {
    const double x = vector[i].item<double>(), y = vector[i + half].item<double>();
    const double angle = static_cast<double>(position) *
                         std::pow(10'000.0, -static_cast<double>(i) / static_cast<double>(half));
    result[i] = x * std::cos(angle) - y * std::sin(angle);
    result[i + half] = x * std::sin(angle) + y * std::cos(angle);
  }
  return result;
}

class Reference {
 public:
  Reference(const lm::Config& config, const torch::nn::Module& model)
      : config_(config), size_(config.hidden / config.heads) {
    for (const auto& item : model.named_parameters()) {
      weights_.insert(item.key(), item.value().detach().to(torch::kDouble));
    }
  }

  // Logits [length, vocabulary] of tokens [length].
  Tensor logits(const std::vector<int64_t>& tokens) const {
    std::vector<Tensor> stream;
    for (const int64_t token : tokens) stream.push_back(weights_["tokens.weight"][token]);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      const std::string block = "blocks." + std::to_string(layer) + ".";
      const std::vector<Tensor> attended = attention(block, stream);
      for (size_t position = 0; position < stream.size(); ++position) {
        stream[position] = stream[position] + attended[position];
        const Tensor x = rms_normed(stream[position], weights_[block + "norm2.weight"]);
        const Tensor gate = weights_[block + "mlp.gate.weight"].mv(x);
        const Tensor inner = gate / (1 + (-gate).exp()) * weights_[block + "mlp.up.weight"].mv(x);
        stream[position] = stream[position] + weights_[block + "mlp.down.weight"].mv(inner);
      }
    }
    std::vector<Tensor> rows;
    for (const Tensor& x : stream) {
      rows.push_back(weights_["head.weight"].mv(rms_normed(x, weights_["norm.weight"])));
    }
    return torch::stack(rows);
  }

 private:
  std::vector<Tensor> attention(const std::string& block, const std::vector<Tensor>& stream) const {
    const Tensor& qkv = weights_[block + "attention.qkv.weight"];
    const int64_t group = config_.heads / config_.kv_heads;
    // Row `row` of head `head` of keys and values: its queries come first, then keys and values.
    const auto part = [&](int64_t head, int64_t row, size_t position) {
      const Tensor x = rms_normed(stream[position], weights_[block + "norm1.weight"]);
      return qkv.narrow(0, (head * (group + 2) + row) * size_, size_).mv(x);
    };
    std::vector<Tensor> results;
    for (size_t position = 0; position < stream.size(); ++position) {
      std::vector<Tensor> heads;
      for (int64_t head = 0; head < config_.heads; ++head) {
        const int64_t shared = head / group;
        const Tensor query = turned(part(shared, head % group, position), position);
        std::vector<Tensor> scores, values;
        for (size_t earlier = 0; earlier <= position; ++earlier) {
          const Tensor key = turned(part(shared, group, earlier), earlier);
          scores.push_back(query.dot(key) / std::sqrt(static_cast<double>(size_)));
          values.push_back(part(shared, group + 1, earlier));
        }
        heads.push_back(torch::stack(scores).softmax(0).matmul(torch::stack(values)));
      }
      results.push_back(weights_[block + "attention.project.weight"].mv(torch::cat(heads)));
    }
    return results;
  }

  const lm::Config config_;
  const int64_t size_;
  torch::OrderedDict<std::string, Tensor> weights_;
};

TEST(LmModel, ComputesWhatLlamaDoes) {
  torch::manual_seed(3);
  const lm::Config config = small(Blocks::kLlama);
  ASSERT_EQ(config.kv_heads, 2);
  lm::Lm model(config);
  enlarge_weights(*model);
  const std::vector<int64_t> tokens = {3, 1, 4, 1, 5, 9};
  const Tensor found = model(torch::tensor(tokens).unsqueeze(0))[0].to(torch::kDouble);
  const Tensor expected = Reference(config, *model).logits(tokens);
  EXPECT_GT(expected.abs().max().item<double>(), 0.5);
  EXPECT_TRUE(torch::allclose(found, expected, 1e-5, 1e-5))
      << (found - expected).abs().max().item<double>();
}

TEST(LmModel, LooksAtEarlierTokensOnly) {
  for (const Blocks blocks : kBothBlocks) {
    torch::manual_seed(3);
    lm::Lm model(small(blocks));
    const Tensor tokens = torch::tensor({{1, 2, 3, 4, 5, 6}});
    const Tensor other = torch::tensor({{1, 2, 3, 9, 5, 6}});
    const Tensor before = model(tokens), after = model(other);
    EXPECT_EQ(before.sizes(), (std::vector<int64_t>{1, 6, 11}));
    EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 3), after.narrow(1, 0, 3)));
    for (int position = 3; position < 6; ++position) {
      EXPECT_FALSE(torch::allclose(before.select(1, position), after.select(1, position)))
          << position;
    }
    // A shorter sequence is the beginning of a longer one.
    EXPECT_TRUE(torch::allclose(model(tokens.narrow(1, 0, 4)), before.narrow(1, 0, 4), 1e-4, 1e-6));
  }
}

TEST(LmModel, RefusesSizesAndSequencesThatDoNotFit) {
  const auto error_of = [](const std::string& model, const lm::Config& sizes) -> std::string {
    try {
      lm::model_config(model, sizes);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of("8b", {}), HasSubstr("known models: tiny, 125m, 1b, 7b, 70b"));
  EXPECT_THAT(error_of("tiny", {.hidden = 8, .heads = 3}),
              HasSubstr("3 heads cannot share a hidden size of 8"));
  EXPECT_THAT(error_of("tiny", {.kv_heads = 3}),
              HasSubstr("4 heads cannot share 3 heads of keys and values"));
  EXPECT_THAT(error_of("tiny", {.blocks = Blocks::kLlama, .hidden = 12}),
              HasSubstr("a head's size of 3 is odd"));
  EXPECT_THAT(error_of("tiny", {.vocabulary = 0}), HasSubstr("vocabulary is 0, not at least 1"));
  EXPECT_THAT(error_of("tiny", {.tied_head = 2}), HasSubstr("tied_head is 2, neither 0 nor 1"));
  EXPECT_THAT(error_of("tiny", {.experts = 4}), HasSubstr("experts are for Llama's blocks"));
  EXPECT_THAT(error_of("tiny", {.blocks = Blocks::kLlama, .experts = 4, .experts_per_token = 5}),
              HasSubstr("5 of 4 experts a token"));
  lm::Lm model(small(Blocks::kGpt));
  EXPECT_THROW(model(torch::zeros({1, 7}, torch::kLong)), c10::ValueError);
}

// ---- Heads.

// The attention with these groups of heads alone. The bias behind the heads is the first one's.
lm::Attention slice_of(const lm::Attention& whole, const lm::Config& config, int64_t index,
                       int64_t count) {
  lm::Attention slice(config);
  const auto from = whole->named_parameters();
  auto to = slice->named_parameters();
  const auto cut = [&](const std::string& name, int64_t dim) {
    if (from.find(name) == nullptr) return;
    const int64_t size = from[name].size(dim) / count;
    to[name].set_data(from[name].detach().narrow(dim, index * size, size).clone());
  };
  cut("qkv.weight", 0);
  cut("qkv.bias", 0);
  cut("project.weight", 1);
  if (Tensor* bias = to.find("project.bias"); bias != nullptr) {
    const torch::NoGradGuard no_grad;
    bias->copy_(from["project.bias"]);
    if (index > 0) bias->zero_();
  }
  return slice;
}

TEST(LmModel, AttentionOfSomeHeadsIsAPartOfTheWhole) {
  for (const Blocks blocks : kBothBlocks) {
    torch::manual_seed(3);
    const lm::Config config = small(blocks);
    ASSERT_EQ(config.kv_heads % 2, 0);
    lm::Attention whole(config);
    enlarge_weights(*whole);
    const Tensor x = torch::randn({2, 6, config.hidden});
    lm::Rotation rotation;
    if (blocks == Blocks::kLlama) {
      rotation = lm::rotation_of_positions(6, config.hidden / config.heads, c10::kCPU);
    }
    const Tensor expected = whole(x, rotation);
    std::vector<Tensor> parts;
    for (const int64_t index : {0, 1}) {
      lm::Attention half = slice_of(whole, config, index, 2);
      EXPECT_EQ(half->named_parameters()["project.weight"].size(1), config.hidden / 2);
      parts.push_back(half(x, rotation));
    }
    EXPECT_TRUE(torch::allclose(parts[0] + parts[1], expected, 1e-4, 1e-5))
        << (parts[0] + parts[1] - expected).abs().max().item<double>();
    for (const Tensor& part : parts) EXPECT_FALSE(torch::allclose(part, expected, 1e-2, 1e-2));
  }
}

// Keeps, for each attention, the number of key heads and enable_gqa.
class AttentionCalls : public OperatorHandler {
 public:
  AttentionCalls() : OperatorHandler(OperatorOrder::kConstruction) {}

  void call(const OperatorCall& call) override {
    if (call.op().schema().name() == "aten::scaled_dot_product_attention") {
      const auto arguments = torch::jit::last(call.stack(), call.op().schema().arguments().size());
      seen.emplace_back(arguments[1].toTensor().size(1), arguments[7].toBool());
    }
    call.proceed();
  }

  std::vector<std::pair<int64_t, bool>> seen;
};

TEST(LmModel, RepeatsSharedKeyHeadsUnlessAHandlerWantsThemOnce) {
  const Tensor tokens = torch::tensor({{1, 2, 3, 4, 5, 6}});
  const lm::Config config = small(Blocks::kLlama);
  ASSERT_EQ(config.kv_heads, 2);
  Tensor logits[2];
  for (const bool shares : {false, true}) {
    torch::manual_seed(3);
    lm::Lm model(config, lm::LmOptions{.shares_key_heads = shares});
    enlarge_weights(*model);
    const auto calls = std::make_shared<AttentionCalls>();
    const OperatorModeScope scope(calls);
    logits[shares] = model(tokens);
    EXPECT_EQ(calls->seen.size(), 2u);
    EXPECT_THAT(calls->seen, Each(Pair(shares ? 2 : 4, shares)));
  }
  EXPECT_TRUE(torch::allclose(logits[1], logits[0], 1e-4, 1e-4))
      << (logits[1] - logits[0]).abs().max().item<double>();
  // Heads that share nothing are an ordinary attention.
  lm::Lm model(small(Blocks::kGpt), lm::LmOptions{.shares_key_heads = true});
  const auto calls = std::make_shared<AttentionCalls>();
  const OperatorModeScope scope(calls);
  model(tokens);
  EXPECT_THAT(calls->seen, Each(Pair(4, false)));
}

// ---- Positions.

TEST(LmModel, PositionsOfAChunkAreRowsOfTheWhole) {
  const Tensor chunk = torch::tensor({5, 1, 2});
  const lm::Rotation whole = lm::rotation_of_positions(6, 8, c10::kCPU);
  const lm::Rotation rows = lm::rotation_of_positions(chunk, 8);
  EXPECT_TRUE(rows.cos.equal(whole.cos.index_select(0, chunk)));
  EXPECT_TRUE(rows.sin.equal(whole.sin.index_select(0, chunk)));
  const Tensor tokens = torch::tensor({{1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1}});
  for (const Blocks blocks : kBothBlocks) {
    torch::manual_seed(3);
    lm::Lm model(small(blocks));
    const Tensor embedded = model->forward_part({0, 1}, tokens);
    const Tensor of_chunk =
        model->forward_part({0, 1}, tokens.index_select(1, chunk), {.positions = chunk});
    EXPECT_TRUE(of_chunk.equal(embedded.index_select(1, chunk)));
  }
}

TEST(LmModel, PositionsThatAreGivenTakeTheirEffect) {
  const Tensor tokens = torch::tensor({{1, 2, 3, 4}, {4, 3, 2, 1}});
  const Tensor usual = torch::arange(4), moved = torch::arange(2, 6);
  const Tensor apart = torch::tensor({0, 2, 3, 5});
  for (const Blocks blocks : kBothBlocks) {
    torch::manual_seed(3);
    lm::Lm model(small(blocks));
    enlarge_weights(*model);
    const Tensor absent = model(tokens);
    EXPECT_TRUE(model(tokens, usual).equal(absent));
    // Rotations depend on the distances of positions alone.
    EXPECT_EQ(torch::allclose(model(tokens, moved), absent, 1e-3, 1e-3), blocks == Blocks::kLlama);
    EXPECT_FALSE(torch::allclose(model(tokens, apart), absent, 1e-3, 1e-3));
    // Each sequence has its own.
    const Tensor both = model(tokens, torch::stack({usual, apart}));
    EXPECT_TRUE(torch::allclose(both[0], absent[0], 1e-4, 1e-4));
    EXPECT_TRUE(torch::allclose(both[1], model(tokens, apart)[1], 1e-4, 1e-4));
  }
}

TEST(LmModel, RefusesPositionsThatAreNotThoseOfTheTokens) {
  lm::Lm model(small(Blocks::kLlama));
  const Tensor tokens = torch::zeros({2, 4}, torch::kLong);
  for (const Tensor& positions :
       {torch::arange(3), torch::arange(4).repeat({3, 1}), torch::arange(4.0), torch::tensor(0)}) {
    EXPECT_THROW(model(tokens, positions), c10::ValueError) << positions;
  }
}

// ---- Parts.

// The result of all parts, each computed from the one before and the positions.
Tensor by_parts(lm::Lm& model, const std::vector<int64_t>& cuts, Tensor x,
                const Tensor& positions) {
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    x = model->forward_part({cuts[i], cuts[i + 1]}, x, {.positions = positions});
  }
  return x;
}

std::vector<Tensor> gradients_of(lm::Lm& model, const Tensor& logits) {
  return torch::autograd::grad({logits.logsumexp(-1).sum()}, model->parameters());
}

TEST(LmModel, PartsGiveWhatTheWholeGives) {
  simulator::Cluster("1x1").run_on_every_rank([](simulator::Rank&) {
    const Tensor tokens = torch::tensor({{1, 2, 3, 4, 5}, {7, 7, 0, 1, 10}});
    for (const Blocks blocks : kBothBlocks) {
      for (const bool tied : {false, true}) {
        lm::Config config = small(blocks);
        config.layers = 3;
        config.tied_head = tied ? 1 : 0;
        torch::manual_seed(3);
        lm::Lm model(config, /*activation_checkpointing=*/tied);
        ASSERT_EQ(model->num_pieces(), 5);
        for (const Tensor& positions : {Tensor(), torch::tensor({0, 2, 3, 4, 5})}) {
          const Tensor whole = model(tokens, positions);
          const std::vector<Tensor> gradients = gradients_of(model, whole);
          for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{
                   {0, 5}, {0, 1, 5}, {0, 2, 5}, {0, 4, 5}, {0, 1, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}) {
            const Tensor logits = by_parts(model, cuts, tokens, positions);
            EXPECT_TRUE(logits.equal(whole)) << ::testing::PrintToString(cuts);
            const std::vector<Tensor> of_parts = gradients_of(model, logits);
            for (size_t i = 0; i < gradients.size(); ++i) {
              EXPECT_TRUE(of_parts[i].equal(gradients[i])) << ::testing::PrintToString(cuts) << i;
            }
          }
        }
      }
    }
  });
}

// Tells the numbers of its blocks.
class NumberedLm : public lm::LmImpl {
 public:
  using LmImpl::LmImpl;
  std::vector<int64_t> numbers;

 protected:
  Tensor after_block(int64_t block, Tensor x) override {
    numbers.push_back(block);
    return x;
  }
};

TEST(LmModel, BlocksHaveTheirNumbersInEveryPart) {
  lm::Config config = small(Blocks::kLlama);
  config.layers = 3;
  const auto model = std::make_shared<NumberedLm>(config);
  const Tensor x = model->forward_part({0, 2}, torch::tensor({{1, 2, 3}}));
  EXPECT_THAT(model->numbers, ElementsAre(0));
  model->forward_part({2, 5}, x);
  EXPECT_THAT(model->numbers, ElementsAre(0, 1, 2));
}

TEST(LmModel, RefusesPartsThatItDoesNotHave) {
  lm::Lm model(small(Blocks::kGpt));
  const Tensor tokens = torch::zeros({1, 4}, torch::kLong);
  for (const lm::PieceRange& pieces :
       {lm::PieceRange{-1, 2}, lm::PieceRange{2, 2}, lm::PieceRange{3, 2}, lm::PieceRange{0, 5}}) {
    EXPECT_THROW(model->forward_part(pieces, tokens), c10::ValueError)
        << pieces.begin << " to " << pieces.end;
  }
}

// Those of routers, too, which blocks give besides their results.
TEST(LmModel, HasTheSameGradientsWithCheckpointedExperts) {
  simulator::Cluster("1x1").run_on_every_rank([](simulator::Rank&) {
    lm::Config config = small(Blocks::kLlama);
    config.experts = 3;
    config.expert_intermediate = 4;
    const lm::LmOptions kept{.router = {.balance_loss = 0.5, .z_loss = 0.5}};
    lm::LmOptions again = kept;
    again.activation_checkpointing = true;
    std::vector<Tensor> gradients[2];
    for (const bool checkpointed : {false, true}) {
      torch::manual_seed(3);
      lm::Lm model(config, checkpointed ? again : kept);
      const Tensor logits = model(torch::tensor({{1, 2, 3, 4, 5, 6}}));
      const Tensor loss = model->take_router_loss();
      EXPECT_GT(loss.item<double>(), 0);
      (logits.logsumexp(-1).sum() + loss).backward();
      EXPECT_FALSE(model->take_router_loss().defined());
      for (const Tensor& parameter : model->parameters()) {
        gradients[checkpointed].push_back(parameter.grad());
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << i;
    }
  });
}

TEST(LmModel, HasTheSameGradientsWithCheckpointedBlocks) {
  simulator::Cluster("1x1").run_on_every_rank([](simulator::Rank&) {
    for (const Blocks blocks : kBothBlocks) {
      std::vector<Tensor> gradients[2];
      for (const bool checkpointed : {false, true}) {
        torch::manual_seed(3);
        lm::Lm model(small(blocks), checkpointed);
        model(torch::tensor({{1, 2, 3, 4, 5, 6}})).logsumexp(-1).sum().backward();
        for (const Tensor& parameter : model->parameters()) {
          gradients[checkpointed].push_back(parameter.grad());
        }
      }
      for (size_t i = 0; i < gradients[0].size(); ++i) {
        EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << i;
      }
    }
  });
}

}  // namespace
}  // namespace accelerate
