#include "accelerate/megatron/weights.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 8;
constexpr int64_t kInside = 12;
constexpr int64_t kVocabulary = 10;

MegatronModelShape gpt2_shape() {
  return {.kind = MegatronModelKind::kGpt2,
          .num_layers = 4,
          .num_attention_heads = 4,
          .num_query_groups = 4,
          .vocab_size = kVocabulary,
          .padded_vocab_size = 12,
          .is_tied = true};
}

MegatronModelShape llama_shape() {
  return {.kind = MegatronModelKind::kLlama,
          .num_layers = 4,
          .num_attention_heads = 4,
          .num_query_groups = 2,
          .vocab_size = kVocabulary,
          .padded_vocab_size = 12,
          .is_tied = false};
}

// Every value is another one.
class Maker {
 public:
  void add(const std::string& name, const std::vector<int64_t>& sizes) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    tensors_.emplace_back(name, at::arange(next_, next_ + count, at::kFloat).view(sizes));
    next_ += count;
  }
  NamedTensors take() { return std::move(tensors_); }

 private:
  NamedTensors tensors_;
  int64_t next_ = 1;
};

NamedTensors gpt2() {
  Maker maker;
  maker.add("transformer.wte.weight", {kVocabulary, kHidden});
  maker.add("transformer.wpe.weight", {6, kHidden});
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = absl::StrCat("transformer.h.", i, ".");
    for (const char* norm : {"ln_1", "ln_2"}) {
      maker.add(absl::StrCat(layer, norm, ".weight"), {kHidden});
      maker.add(absl::StrCat(layer, norm, ".bias"), {kHidden});
    }
    maker.add(layer + "attn.c_attn.weight", {kHidden, 3 * kHidden});
    maker.add(layer + "attn.c_attn.bias", {3 * kHidden});
    maker.add(layer + "attn.c_proj.weight", {kHidden, kHidden});
    maker.add(layer + "attn.c_proj.bias", {kHidden});
    maker.add(layer + "mlp.c_fc.weight", {kHidden, kInside});
    maker.add(layer + "mlp.c_fc.bias", {kInside});
    maker.add(layer + "mlp.c_proj.weight", {kInside, kHidden});
    maker.add(layer + "mlp.c_proj.bias", {kHidden});
  }
  maker.add("transformer.ln_f.weight", {kHidden});
  maker.add("transformer.ln_f.bias", {kHidden});
  return maker.take();
}

NamedTensors llama() {
  Maker maker;
  maker.add("model.embed_tokens.weight", {kVocabulary, kHidden});
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    maker.add(layer + "input_layernorm.weight", {kHidden});
    maker.add(layer + "self_attn.q_proj.weight", {kHidden, kHidden});
    maker.add(layer + "self_attn.k_proj.weight", {kHidden / 2, kHidden});
    maker.add(layer + "self_attn.v_proj.weight", {kHidden / 2, kHidden});
    maker.add(layer + "self_attn.o_proj.weight", {kHidden, kHidden});
    maker.add(layer + "post_attention_layernorm.weight", {kHidden});
    maker.add(layer + "mlp.gate_proj.weight", {kInside, kHidden});
    maker.add(layer + "mlp.up_proj.weight", {kInside, kHidden});
    maker.add(layer + "mlp.down_proj.weight", {kHidden, kInside});
  }
  maker.add("model.norm.weight", {kHidden});
  maker.add("lm_head.weight", {kVocabulary, kHidden});
  return maker.take();
}

std::map<std::string, at::Tensor> by_name(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

void expect_equal(const NamedTensors& expected, const NamedTensors& got) {
  const auto right = by_name(got);
  EXPECT_EQ(right.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = right.find(name);
    ASSERT_NE(found, right.end()) << name;
    EXPECT_TRUE(at::equal(found->second, tensor)) << name;
  }
}

std::vector<NamedTensors> cut_all(const NamedTensors& whole, const MegatronModelShape& shape,
                                  const MegatronDivision& division) {
  std::vector<NamedTensors> parts;
  for (int64_t pp = 0; pp < division.pp; ++pp) {
    for (int64_t chunk = 0; chunk < division.chunks; ++chunk) {
      for (int64_t tp = 0; tp < division.tp; ++tp) {
        parts.push_back(cut_megatron(whole, shape, division, {.tp = tp, .pp = pp, .chunk = chunk}));
      }
    }
  }
  return parts;
}

TEST(MegatronWeights, GoToMegatronAndBack) {
  expect_equal(gpt2(), hf_from_megatron(megatron_from_hf(gpt2(), gpt2_shape()), gpt2_shape()));
  expect_equal(llama(), hf_from_megatron(megatron_from_hf(llama(), llama_shape()), llama_shape()));
}

TEST(MegatronWeights, FuseQueriesKeysAndValuesByGroups) {
  const auto hf = by_name(llama());
  const at::Tensor q = hf.at("model.layers.1.self_attn.q_proj.weight");
  const at::Tensor k = hf.at("model.layers.1.self_attn.k_proj.weight");
  const at::Tensor v = hf.at("model.layers.1.self_attn.v_proj.weight");
  const auto megatron = by_name(megatron_from_hf(llama(), llama_shape()));
  // Heads of 2 rows, 2 of which share a key.
  const at::Tensor expected = at::cat({q.narrow(0, 0, 4), k.narrow(0, 0, 2), v.narrow(0, 0, 2),
                                       q.narrow(0, 4, 4), k.narrow(0, 2, 2), v.narrow(0, 2, 2)});
  EXPECT_TRUE(
      at::equal(megatron.at("decoder.layers.1.self_attention.linear_qkv.weight"), expected));
  const at::Tensor gate = hf.at("model.layers.1.mlp.gate_proj.weight");
  const at::Tensor up = hf.at("model.layers.1.mlp.up_proj.weight");
  EXPECT_TRUE(
      at::equal(megatron.at("decoder.layers.1.mlp.linear_fc1.weight"), at::cat({gate, up})));
}

TEST(MegatronWeights, TransposeGpt2sLayers) {
  const auto hf = by_name(gpt2());
  const auto megatron = by_name(megatron_from_hf(gpt2(), gpt2_shape()));
  const at::Tensor fused = hf.at("transformer.h.0.attn.c_attn.weight").t();
  const at::Tensor expected = at::cat({fused.narrow(0, 0, 2), fused.narrow(0, 8, 2),
                                       fused.narrow(0, 16, 2), fused.narrow(0, 2, 2)});
  EXPECT_TRUE(at::equal(
      megatron.at("decoder.layers.0.self_attention.linear_qkv.weight").narrow(0, 0, 8), expected));
  EXPECT_TRUE(at::equal(megatron.at("decoder.layers.0.mlp.linear_fc1.weight"),
                        hf.at("transformer.h.0.mlp.c_fc.weight").t()));
  const at::Tensor embedding = megatron.at("embedding.word_embeddings.weight");
  EXPECT_EQ(embedding.size(0), 12);
  EXPECT_TRUE(at::equal(embedding.narrow(0, 10, 2), at::zeros({2, kHidden})));
}

TEST(MegatronWeights, AreJoinedAsTheyWereCut) {
  for (const auto& [hf, shape] :
       {std::pair(gpt2(), gpt2_shape()), std::pair(llama(), llama_shape())}) {
    const NamedTensors whole = megatron_from_hf(hf, shape);
    for (const MegatronDivision& division :
         {MegatronDivision{}, MegatronDivision{.tp = 2}, MegatronDivision{.pp = 2},
          MegatronDivision{.pp = 2, .chunks = 2}, MegatronDivision{.tp = 2, .pp = 4},
          MegatronDivision{.tp = 2, .pp = 2, .chunks = 2}}) {
      SCOPED_TRACE(
          absl::StrCat("tp ", division.tp, " pp ", division.pp, " chunks ", division.chunks));
      expect_equal(whole, join_megatron(cut_all(whole, shape, division), shape, division));
    }
  }
}

TEST(MegatronWeights, PartsHaveTheLayersOfTheirChunk) {
  const NamedTensors whole = megatron_from_hf(gpt2(), gpt2_shape());
  const auto all = by_name(whole);
  // Stage 1's second chunk has the last layer, as layer 0; stage 0 has layers 0 and 2.
  const MegatronDivision division = {.tp = 2, .pp = 2, .chunks = 2};
  const auto last =
      by_name(cut_megatron(whole, gpt2_shape(), division, {.tp = 1, .pp = 1, .chunk = 1}));
  EXPECT_TRUE(at::equal(last.at("decoder.layers.0.mlp.linear_fc2.weight"),
                        all.at("decoder.layers.3.mlp.linear_fc2.weight").narrow(1, 6, 6)));
  EXPECT_TRUE(at::equal(last.at("output_layer.weight"),
                        all.at("embedding.word_embeddings.weight").narrow(0, 6, 6)));
  EXPECT_TRUE(last.contains("decoder.final_layernorm.weight"));
  const auto second =
      by_name(cut_megatron(whole, gpt2_shape(), division, {.tp = 0, .pp = 0, .chunk = 1}));
  EXPECT_TRUE(at::equal(second.at("decoder.layers.0.input_layernorm.weight"),
                        all.at("decoder.layers.2.input_layernorm.weight")));
  EXPECT_FALSE(second.contains("embedding.word_embeddings.weight"));
}

TEST(MegatronWeights, CutGateAndUpEachForItself) {
  const NamedTensors whole = megatron_from_hf(llama(), llama_shape());
  const auto hf = by_name(llama());
  const auto part = by_name(cut_megatron(whole, llama_shape(), {.tp = 2}, {.tp = 1}));
  EXPECT_TRUE(at::equal(part.at("decoder.layers.0.mlp.linear_fc1.weight"),
                        at::cat({hf.at("model.layers.0.mlp.gate_proj.weight").narrow(0, 6, 6),
                                 hf.at("model.layers.0.mlp.up_proj.weight").narrow(0, 6, 6)})));
}

// Models such as Qwen2 have them.
TEST(MegatronWeights, DivideBiasesOfQueriesKeysAndValues) {
  const auto range = [](int64_t begin, int64_t count) {
    return at::arange(begin, begin + count, at::kFloat);
  };
  NamedTensors hf = llama();
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".self_attn.");
    hf.emplace_back(layer + "q_proj.bias", range(100 * i, kHidden));
    hf.emplace_back(layer + "k_proj.bias", range(100 * i + 20, kHidden / 2));
    hf.emplace_back(layer + "v_proj.bias", range(100 * i + 40, kHidden / 2));
  }
  const NamedTensors whole = megatron_from_hf(hf, llama_shape());
  expect_equal(hf, hf_from_megatron(whole, llama_shape()));
  expect_equal(whole, join_megatron(cut_all(whole, llama_shape(), {.tp = 2, .pp = 2}),
                                    llama_shape(), {.tp = 2, .pp = 2}));
  // The second group of queries, with its key and its value.
  const auto part = by_name(cut_megatron(whole, llama_shape(), {.tp = 2}, {.tp = 1}));
  EXPECT_TRUE(at::equal(part.at("decoder.layers.1.self_attention.linear_qkv.bias"),
                        at::cat({range(104, 4), range(122, 2), range(142, 2)})));
}

TEST(MegatronWeights, TakeOtherSpellings) {
  NamedTensors bare;
  for (auto& [name, tensor] : gpt2()) {
    bare.emplace_back(name.substr(std::string("transformer.").size()), tensor);
  }
  bare.emplace_back("h.0.attn.bias", at::zeros({1}));
  bare.emplace_back("lm_head.weight", at::zeros({1}));
  expect_equal(megatron_from_hf(gpt2(), gpt2_shape()), megatron_from_hf(bare, gpt2_shape()));

  NamedTensors fused_norms;
  for (auto& [name, tensor] : megatron_from_hf(llama(), llama_shape())) {
    std::string other = name;
    if (absl::StrContains(name, "pre_mlp_layernorm.")) {
      other.replace(name.find("pre_mlp_layernorm."), 18, "mlp.linear_fc1.layer_norm_");
    }
    fused_norms.emplace_back(other, tensor);
  }
  fused_norms.emplace_back("decoder.layers.0.mlp.linear_fc1._extra_state", at::zeros({1}));
  expect_equal(llama(), hf_from_megatron(fused_norms, llama_shape()));
}

TEST(MegatronWeights, NameTheTensorThatIsWrong) {
  const auto problem = [](const NamedTensors& tensors, const MegatronModelShape& shape) {
    return value_error_of([&] { megatron_from_hf(tensors, shape); });
  };
  NamedTensors tensors = llama();
  const auto last = tensors.back();
  tensors.pop_back();
  EXPECT_THAT(problem(tensors, llama_shape()), HasSubstr("there is no \"lm_head.weight\""));
  tensors.push_back(last);
  tensors.emplace_back("model.extra", at::zeros({1}));
  EXPECT_THAT(problem(tensors, llama_shape()), HasSubstr("\"model.extra\" and 0 others"));
  tensors.back().first = last.first;
  EXPECT_THAT(problem(tensors, llama_shape()), HasSubstr("is there twice"));
  MegatronModelShape shape = llama_shape();
  shape.vocab_size = 11;
  EXPECT_THAT(problem(llama(), shape),
              AllOf(HasSubstr("embedding.word_embeddings.weight"), HasSubstr("expected 11 rows")));
  shape = llama_shape();
  shape.num_query_groups = 4;
  EXPECT_THAT(problem(llama(), shape), HasSubstr("linear_qkv.weight"));
  shape.num_query_groups = 3;
  EXPECT_THAT(problem(llama(), shape), HasSubstr("num_query_groups=3"));
  shape = llama_shape();
  shape.padded_vocab_size = 9;
  EXPECT_THAT(problem(llama(), shape), HasSubstr("padded_vocab_size=9 is below vocab_size=10"));
  shape = llama_shape();
  shape.num_layers = 0;
  EXPECT_THAT(problem(llama(), shape), HasSubstr("num_layers=0"));
  shape = gpt2_shape();
  shape.num_query_groups = 2;
  EXPECT_THAT(problem(gpt2(), shape), HasSubstr("GPT-2 has as many keys as queries"));
  shape = gpt2_shape();
  shape.num_layers = 3;
  EXPECT_THAT(problem(gpt2(), shape), HasSubstr("and 11 others are not of the model"));
}

TEST(MegatronWeights, HaveNoRowsBehindTheVocabularyWithoutPadding) {
  for (const int64_t padded : {int64_t{0}, kVocabulary}) {
    MegatronModelShape shape = llama_shape();
    shape.padded_vocab_size = padded;
    const NamedTensors whole = megatron_from_hf(llama(), shape);
    EXPECT_EQ(by_name(whole).at("embedding.word_embeddings.weight").size(0), kVocabulary);
    EXPECT_EQ(by_name(whole).at("output_layer.weight").size(0), kVocabulary);
    expect_equal(llama(), hf_from_megatron(whole, shape));
  }
}

TEST(MegatronWeights, NameADivisionThatDoesNotFit) {
  const NamedTensors whole = megatron_from_hf(llama(), llama_shape());
  const auto problem = [&](const MegatronDivision& division) {
    return value_error_of([&] { cut_megatron(whole, llama_shape(), division, {}); });
  };
  EXPECT_THAT(problem({.tp = 4}), HasSubstr("tp=4 does not divide num_query_groups=2"));
  EXPECT_THAT(problem({.pp = 3}), HasSubstr("num_layers=4"));
  EXPECT_THAT(problem({.pp = 0}), HasSubstr("pp=0"));
  EXPECT_THAT(problem({.pp = 2, .chunks = 4}), HasSubstr("pp=2 stages of 4 chunks"));
  MegatronModelShape odd = llama_shape();
  odd.padded_vocab_size = 11;
  EXPECT_THAT(value_error_of([&] { cut_megatron(whole, odd, {.tp = 2}, {}); }),
              HasSubstr("tp=2 does not divide the 11 rows of the embedding"));
  for (const MegatronPlace& place : {MegatronPlace{.tp = 2}, MegatronPlace{.tp = -1},
                                     MegatronPlace{.pp = 1}, MegatronPlace{.chunk = 1}}) {
    EXPECT_THAT(value_error_of([&] { cut_megatron(whole, llama_shape(), {.tp = 2}, place); }),
                HasSubstr("cut_megatron: there is no part"));
  }
  std::vector<NamedTensors> parts = cut_all(whole, llama_shape(), {.tp = 2});
  EXPECT_THAT(value_error_of([&] { join_megatron(parts, llama_shape(), {.tp = 2, .pp = 2}); }),
              HasSubstr("parts are expected, got 2"));
  for (auto& [name, tensor] : parts[1]) {
    if (name == "decoder.final_layernorm.weight") tensor = tensor + 1;
  }
  EXPECT_THAT(value_error_of([&] { join_megatron(parts, llama_shape(), {.tp = 2}); }),
              AllOf(HasSubstr("decoder.final_layernorm.weight"), HasSubstr("rank 1")));
}

TEST(MegatronWeights, CopiesOfATiedEmbeddingMustAgree) {
  const NamedTensors whole = megatron_from_hf(gpt2(), gpt2_shape());
  std::vector<NamedTensors> parts = cut_all(whole, gpt2_shape(), {.pp = 2});
  for (auto& [name, tensor] : parts[1]) {
    if (name == "output_layer.weight") tensor = tensor + 1;
  }
  EXPECT_THAT(value_error_of([&] { join_megatron(parts, gpt2_shape(), {.pp = 2}); }),
              HasSubstr("the model is tied"));
}

}  // namespace
}  // namespace accelerate
