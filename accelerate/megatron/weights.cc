#include "accelerate/megatron/weights.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate {
namespace {

using Tensors = std::vector<at::Tensor>;
using Shape = MegatronModelShape;

// What Hugging Face's tensors are in Megatron's.
enum class Form {
  kSame,
  kVocabulary,  // with rows behind
  kQkv,         // three, or one with three parts, by groups
  kGateUp,      // two, one below the other
};

// How ranks along tp divide Megatron's.
enum class Cut { kNone, kRows, kColumns, kHalvesOfRows };

struct Rule {
  // # is a layer: "decoder.layers.0", and its name in Hugging Face's files.
  const char* megatron;
  std::vector<const char*> hf;
  Form form = Form::kSame;
  Cut cut = Cut::kNone;
  // Layers of GPT-2 have their weights transposed.
  bool is_transposed = false;
  // Some models have it.
  bool is_optional = false;
};

constexpr char kEmbedding[] = "embedding.word_embeddings.weight";
constexpr char kOutput[] = "output_layer.weight";

const std::vector<Rule>& gpt2_rules() {
  using enum Form;
  using enum Cut;
  static const auto* const rules = new std::vector<Rule>{
      {kEmbedding, {"transformer.wte.weight"}, kVocabulary, kRows},
      {"embedding.position_embeddings.weight", {"transformer.wpe.weight"}},
      {"#.input_layernorm.weight", {"#.ln_1.weight"}},
      {"#.input_layernorm.bias", {"#.ln_1.bias"}},
      {"#.self_attention.linear_qkv.weight", {"#.attn.c_attn.weight"}, kQkv, kRows, true},
      {"#.self_attention.linear_qkv.bias", {"#.attn.c_attn.bias"}, kQkv, kRows},
      {"#.self_attention.linear_proj.weight", {"#.attn.c_proj.weight"}, kSame, kColumns, true},
      {"#.self_attention.linear_proj.bias", {"#.attn.c_proj.bias"}},
      {"#.pre_mlp_layernorm.weight", {"#.ln_2.weight"}},
      {"#.pre_mlp_layernorm.bias", {"#.ln_2.bias"}},
      {"#.mlp.linear_fc1.weight", {"#.mlp.c_fc.weight"}, kSame, kRows, true},
      {"#.mlp.linear_fc1.bias", {"#.mlp.c_fc.bias"}, kSame, kRows},
      {"#.mlp.linear_fc2.weight", {"#.mlp.c_proj.weight"}, kSame, kColumns, true},
      {"#.mlp.linear_fc2.bias", {"#.mlp.c_proj.bias"}},
      {"decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
      {"decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
      {kOutput, {"lm_head.weight"}, kVocabulary, kRows},
  };
  return *rules;
}

const std::vector<Rule>& llama_rules() {
  using enum Form;
  using enum Cut;
  static const auto* const rules = new std::vector<Rule>{
      {kEmbedding, {"model.embed_tokens.weight"}, kVocabulary, kRows},
      {"#.input_layernorm.weight", {"#.input_layernorm.weight"}},
      {"#.self_attention.linear_qkv.weight",
       {"#.self_attn.q_proj.weight", "#.self_attn.k_proj.weight", "#.self_attn.v_proj.weight"},
       kQkv,
       kRows},
      {"#.self_attention.linear_qkv.bias",
       {"#.self_attn.q_proj.bias", "#.self_attn.k_proj.bias", "#.self_attn.v_proj.bias"},
       kQkv,
       kRows,
       false,
       true},
      {"#.self_attention.linear_proj.weight", {"#.self_attn.o_proj.weight"}, kSame, kColumns},
      {"#.pre_mlp_layernorm.weight", {"#.post_attention_layernorm.weight"}},
      {"#.mlp.linear_fc1.weight",
       {"#.mlp.gate_proj.weight", "#.mlp.up_proj.weight"},
       kGateUp,
       kHalvesOfRows},
      {"#.mlp.linear_fc2.weight", {"#.mlp.down_proj.weight"}, kSame, kColumns},
      {"decoder.final_layernorm.weight", {"model.norm.weight"}},
      {kOutput, {"lm_head.weight"}, kVocabulary, kRows},
  };
  return *rules;
}

const std::vector<Rule>& rules_of(const Shape& shape) {
  return shape.kind == MegatronModelKind::kGpt2 ? gpt2_rules() : llama_rules();
}

std::string in_megatron(const Rule& rule, int64_t layer) {
  return absl::StrReplaceAll(rule.megatron, {{"#", absl::StrCat("decoder.layers.", layer)}});
}

std::string in_hf(absl::string_view name, const Shape& shape, int64_t layer) {
  const bool is_gpt2 = shape.kind == MegatronModelKind::kGpt2;
  return absl::StrReplaceAll(
      name, {{"#", absl::StrCat(is_gpt2 ? "transformer.h." : "model.layers.", layer)}});
}

bool is_of_layer(const Rule& rule) { return absl::StrContains(rule.megatron, "#"); }

// ---- Names.

// Empty for what is not a weight.
std::string hf_name(std::string name, MegatronModelKind kind) {
  for (const char* constant : {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"}) {
    if (absl::EndsWith(name, constant)) return "";
  }
  const bool is_bare = kind == MegatronModelKind::kGpt2 && name != "lm_head.weight" &&
                       !absl::StartsWith(name, "transformer.");
  return is_bare ? absl::StrCat("transformer.", name) : name;
}

std::string megatron_name(const std::string& name) {
  if (absl::EndsWith(name, "_extra_state")) return "";
  return absl::StrReplaceAll(name, {{"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
                                    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."}});
}

// The tensors of a file, each of which is taken once.
class Source {
 public:
  // `rename` gives the names that tensors have here; empty: they are left out.
  template <typename Rename>
  Source(const char* who, const NamedTensors& tensors, const Rename& rename) : who_(who) {
    for (const auto& [given, tensor] : tensors) {
      const std::string name = rename(given);
      TORCH_CHECK_VALUE(name.empty() || tensors_.emplace(name, tensor).second, who_, ": \"", name,
                        "\" is there twice");
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }

  at::Tensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    TORCH_CHECK_VALUE(found != tensors_.end(), who_, ": there is no \"", name, "\"");
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }

  void drop(const std::string& name) { tensors_.erase(name); }

  void check_all_taken() const {
    if (tensors_.empty()) return;
    TORCH_CHECK_VALUE(false, who_, ": \"", tensors_.begin()->first, "\" and ", tensors_.size() - 1,
                      " others are not of the model that its shape describes");
  }

 private:
  const char* who_;
  std::map<std::string, at::Tensor> tensors_;
};

void check(const Shape& shape) {
  TORCH_CHECK_VALUE(shape.num_layers >= 1 && shape.num_attention_heads >= 1 &&
                        shape.num_query_groups >= 1 && shape.vocab_size >= 1,
                    "the shape of a model has num_layers=", shape.num_layers,
                    ", num_attention_heads=", shape.num_attention_heads,
                    ", num_query_groups=", shape.num_query_groups,
                    " and vocab_size=", shape.vocab_size, "; each is at least 1");
  TORCH_CHECK_VALUE(shape.num_attention_heads % shape.num_query_groups == 0,
                    "num_query_groups=", shape.num_query_groups,
                    " does not divide num_attention_heads=", shape.num_attention_heads);
  TORCH_CHECK_VALUE(
      shape.kind != MegatronModelKind::kGpt2 || shape.num_query_groups == shape.num_attention_heads,
      "GPT-2 has as many keys as queries: num_query_groups=", shape.num_query_groups,
      " is not num_attention_heads=", shape.num_attention_heads);
  TORCH_CHECK_VALUE(shape.padded_vocab_size == 0 || shape.padded_vocab_size >= shape.vocab_size,
                    "padded_vocab_size=", shape.padded_vocab_size,
                    " is below vocab_size=", shape.vocab_size);
}

int64_t padded_rows(const Shape& shape) {
  return shape.padded_vocab_size == 0 ? shape.vocab_size : shape.padded_vocab_size;
}

// Calls `visit(rule, layer)` for each tensor of the model; layer 0 where there is none.
template <typename Visit>
void for_each_tensor(const Shape& shape, const Visit& visit) {
  for (const Rule& rule : rules_of(shape)) {
    if (shape.is_tied && absl::string_view(rule.megatron) == kOutput) continue;
    const int64_t layers = is_of_layer(rule) ? shape.num_layers : 1;
    for (int64_t layer = 0; layer < layers; ++layer) visit(rule, layer);
  }
}

// ---- Forms.

void check_rows(const std::string& name, const at::Tensor& tensor, int64_t rows) {
  TORCH_CHECK_VALUE(tensor.dim() >= 1 && tensor.size(0) == rows, "\"", name, "\": expected ", rows,
                    " rows, got shape ", tensor.sizes());
}

// [groups, rows of a group, ...]
at::Tensor by_groups(const std::string& name, const at::Tensor& tensor, int64_t groups) {
  TORCH_CHECK_VALUE(tensor.dim() >= 1 && tensor.size(0) % groups == 0, "\"", name, "\": ", groups,
                    " groups of queries do not divide shape ", tensor.sizes());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] /= groups;
  sizes.insert(sizes.begin(), groups);
  return tensor.reshape(sizes);
}

at::Tensor fuse(const Rule& rule, const std::string& name, Tensors parts, const Shape& shape) {
  for (at::Tensor& part : parts) {
    if (rule.is_transposed) part = part.t();
  }
  switch (rule.form) {
    case Form::kSame: return parts[0].contiguous();
    case Form::kGateUp: return at::cat(parts);
    case Form::kVocabulary: {
      check_rows(name, parts[0], shape.vocab_size);
      const int64_t behind = padded_rows(shape) - shape.vocab_size;
      return behind == 0 ? parts[0] : at::constant_pad_nd(parts[0], {0, 0, 0, behind});
    }
    case Form::kQkv: break;
  }
  if (parts.size() == 1) {
    TORCH_CHECK_VALUE(parts[0].size(0) % 3 == 0, "\"", name, "\": expected rows of query, key and ",
                      "value, got shape ", parts[0].sizes());
    parts = parts[0].chunk(3);
  }
  for (at::Tensor& part : parts) part = by_groups(name, part, shape.num_query_groups);
  const int64_t queries = shape.num_attention_heads / shape.num_query_groups;
  TORCH_CHECK_VALUE(
      parts[0].size(1) == queries * parts[1].size(1) && parts[1].sizes() == parts[2].sizes(), "\"",
      name, "\": ", shape.num_attention_heads, " heads and ", shape.num_query_groups,
      " groups do not fit query, key and value of shapes ", parts[0].sizes(), ", ",
      parts[1].sizes(), " and ", parts[2].sizes());
  return at::cat(parts, 1).flatten(0, 1);
}

// Hugging Face's tensors of Megatron's: one for each name in the rule.
Tensors split(const Rule& rule, const std::string& name, const at::Tensor& tensor,
              const Shape& shape) {
  Tensors parts = {tensor};
  if (rule.form == Form::kVocabulary) {
    check_rows(name, tensor, padded_rows(shape));
    parts = {tensor.narrow(0, 0, shape.vocab_size)};
  } else if (rule.form == Form::kGateUp) {
    TORCH_CHECK_VALUE(tensor.size(0) % 2 == 0, "\"", name, "\": expected rows of gate and up, got ",
                      "shape ", tensor.sizes());
    parts = tensor.chunk(2);
  } else if (rule.form == Form::kQkv) {
    const at::Tensor groups = by_groups(name, tensor, shape.num_query_groups);
    const int64_t queries = shape.num_attention_heads / shape.num_query_groups;
    TORCH_CHECK_VALUE(groups.size(1) % (queries + 2) == 0, "\"", name, "\": groups of ", queries,
                      " queries, a key and a value do not divide shape ", tensor.sizes());
    const int64_t head = groups.size(1) / (queries + 2);
    parts = groups.split_with_sizes({queries * head, head, head}, 1);
    for (at::Tensor& part : parts) part = part.flatten(0, 1);
    if (rule.hf.size() == 1) parts = {at::cat(parts)};
  }
  for (at::Tensor& part : parts) part = (rule.is_transposed ? part.t() : part).contiguous();
  return parts;
}

// ---- Parts of ranks.

void check(const Shape& shape, const MegatronDivision& division) {
  check(shape);
  TORCH_CHECK_VALUE(division.tp >= 1 && division.pp >= 1 && division.chunks >= 1,
                    "a division has tp=", division.tp, ", pp=", division.pp,
                    " and chunks=", division.chunks, "; each is at least 1");
  TORCH_CHECK_VALUE(shape.num_layers % (division.pp * division.chunks) == 0, "pp=", division.pp,
                    " stages of ", division.chunks,
                    " chunks do not divide num_layers=", shape.num_layers);
  TORCH_CHECK_VALUE(shape.num_query_groups % division.tp == 0, "tp=", division.tp,
                    " does not divide num_query_groups=", shape.num_query_groups);
  TORCH_CHECK_VALUE(padded_rows(shape) % division.tp == 0, "tp=", division.tp,
                    " does not divide the ", padded_rows(shape),
                    " rows of the embedding; set padded_vocab_size");
}

int64_t layers_of_chunk(const Shape& shape, const MegatronDivision& division) {
  return shape.num_layers / (division.pp * division.chunks);
}

MegatronPlace last_place(const MegatronDivision& division) {
  return {.pp = division.pp - 1, .chunk = division.chunks - 1};
}

// Which stage and chunk have a tensor.
MegatronPlace place_of(const Rule& rule, int64_t layer, const Shape& shape,
                       const MegatronDivision& division) {
  if (absl::StartsWith(rule.megatron, "embedding.")) return {};
  if (!is_of_layer(rule)) return last_place(division);
  const int64_t chunk = layer / layers_of_chunk(shape, division);
  return {.pp = chunk % division.pp, .chunk = chunk / division.pp};
}

bool are_one_part(const MegatronPlace& a, const MegatronPlace& b) {
  return a.pp == b.pp && a.chunk == b.chunk;
}

// Whether the last part has a copy of the embedding.
bool has_output_copy(const Shape& shape, const MegatronDivision& division) {
  return shape.is_tied && division.pp * division.chunks > 1;
}

at::Tensor cut_of(const Rule& rule, const std::string& name, const at::Tensor& whole, int64_t tp,
                  int64_t rank) {
  if (rule.cut == Cut::kNone) return whole;
  const int64_t dim = rule.cut == Cut::kColumns ? 1 : 0;
  const int64_t pieces = rule.cut == Cut::kHalvesOfRows ? 2 * tp : tp;
  TORCH_CHECK_VALUE(whole.dim() > dim && whole.size(dim) % pieces == 0, "\"", name, "\": tp=", tp,
                    " does not divide dim ", dim, " of shape ", whole.sizes());
  const auto piece = [&](int64_t index) { return whole.tensor_split(pieces, dim)[index]; };
  if (rule.cut != Cut::kHalvesOfRows) return piece(rank).contiguous();
  return at::cat({piece(rank), piece(tp + rank)});
}

at::Tensor join_of(const Rule& rule, const std::string& name, const Tensors& parts) {
  if (rule.cut == Cut::kNone) {
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      TORCH_CHECK_VALUE(at::equal(parts[rank], parts[0]), "\"", name,
                        "\" is whole on each rank "
                        "along tp, but that of rank ",
                        rank, " is not that of rank 0");
    }
    return parts[0];
  }
  if (rule.cut != Cut::kHalvesOfRows) return at::cat(parts, rule.cut == Cut::kColumns ? 1 : 0);
  Tensors halves;
  for (const int64_t half : {0, 1}) {
    for (const at::Tensor& part : parts) {
      TORCH_CHECK_VALUE(part.size(0) % 2 == 0, "\"", name, "\": expected rows of gate and up, got ",
                        "shape ", part.sizes());
      halves.push_back(part.chunk(2)[half]);
    }
  }
  return at::cat(halves);
}

}  // namespace

NamedTensors megatron_from_hf(const NamedTensors& tensors, const MegatronModelShape& shape) {
  check(shape);
  Source source("megatron_from_hf", tensors,
                [&](const std::string& name) { return hf_name(name, shape.kind); });
  // Files may have the embedding's copy all the same.
  if (shape.is_tied) source.drop("lm_head.weight");
  NamedTensors result;
  for_each_tensor(shape, [&](const Rule& rule, int64_t layer) {
    if (rule.is_optional && !source.has(in_hf(rule.hf[0], shape, layer))) return;
    const std::string name = in_megatron(rule, layer);
    Tensors parts;
    for (const char* each : rule.hf) parts.push_back(source.take(in_hf(each, shape, layer)));
    result.emplace_back(name, fuse(rule, name, std::move(parts), shape));
  });
  source.check_all_taken();
  return result;
}

NamedTensors hf_from_megatron(const NamedTensors& tensors, const MegatronModelShape& shape) {
  check(shape);
  Source source("hf_from_megatron", tensors, megatron_name);
  NamedTensors result;
  for_each_tensor(shape, [&](const Rule& rule, int64_t layer) {
    const std::string name = in_megatron(rule, layer);
    if (rule.is_optional && !source.has(name)) return;
    const Tensors parts = split(rule, name, source.take(name), shape);
    for (size_t i = 0; i < parts.size(); ++i) {
      result.emplace_back(in_hf(rule.hf[i], shape, layer), parts[i]);
    }
  });
  source.check_all_taken();
  return result;
}

NamedTensors cut_megatron(const NamedTensors& whole, const MegatronModelShape& shape,
                          const MegatronDivision& division, const MegatronPlace& place) {
  check(shape, division);
  TORCH_CHECK_VALUE(place.tp >= 0 && place.tp < division.tp && place.pp >= 0 &&
                        place.pp < division.pp && place.chunk >= 0 && place.chunk < division.chunks,
                    "cut_megatron: there is no part tp=", place.tp, ", pp=", place.pp,
                    ", chunk=", place.chunk);
  Source source("cut_megatron", whole, megatron_name);
  const int64_t per_chunk = layers_of_chunk(shape, division);
  NamedTensors result;
  std::optional<at::Tensor> embedding;
  for_each_tensor(shape, [&](const Rule& rule, int64_t layer) {
    const std::string name = in_megatron(rule, layer);
    if (rule.is_optional && !source.has(name)) return;
    const at::Tensor tensor = source.take(name);
    if (name == kEmbedding) embedding = tensor;
    if (!are_one_part(place_of(rule, layer, shape, division), place)) return;
    result.emplace_back(in_megatron(rule, layer % per_chunk),
                        cut_of(rule, name, tensor, division.tp, place.tp));
  });
  source.check_all_taken();
  if (has_output_copy(shape, division) && are_one_part(place, last_place(division))) {
    result.emplace_back(
        kOutput, cut_of(rules_of(shape).front(), kOutput, *embedding, division.tp, place.tp));
  }
  return result;
}

NamedTensors join_megatron(const std::vector<NamedTensors>& parts, const MegatronModelShape& shape,
                           const MegatronDivision& division) {
  check(shape, division);
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(parts.size()) == division.tp * division.pp * division.chunks,
      "join_megatron: tp=", division.tp, " times pp=", division.pp,
      " times chunks=", division.chunks, " parts are expected, got ", parts.size());
  std::vector<Source> sources;
  for (const NamedTensors& part : parts) sources.emplace_back("join_megatron", part, megatron_name);
  const auto ranks_of = [&](const MegatronPlace& place) {
    return absl::MakeSpan(sources).subspan(
        static_cast<size_t>((place.pp * division.chunks + place.chunk) * division.tp),
        static_cast<size_t>(division.tp));
  };
  const int64_t per_chunk = layers_of_chunk(shape, division);
  NamedTensors result;
  for_each_tensor(shape, [&](const Rule& rule, int64_t layer) {
    const std::string name = in_megatron(rule, layer);
    const std::string own = in_megatron(rule, layer % per_chunk);
    const absl::Span<Source> ranks = ranks_of(place_of(rule, layer, shape, division));
    if (rule.is_optional && !ranks[0].has(own)) return;
    Tensors tensors;
    for (Source& rank : ranks) tensors.push_back(rank.take(own));
    result.emplace_back(name, join_of(rule, name, tensors));
  });
  if (has_output_copy(shape, division)) {
    Tensors copies;
    for (Source& rank : ranks_of(last_place(division))) copies.push_back(rank.take(kOutput));
    TORCH_CHECK_VALUE(at::equal(at::cat(copies), result.front().second), "\"", kOutput,
                      "\" of the last stage is not the first one's \"", kEmbedding,
                      "\", but the model is tied");
  }
  for (const Source& source : sources) source.check_all_taken();
  return result;
}

}  // namespace accelerate
