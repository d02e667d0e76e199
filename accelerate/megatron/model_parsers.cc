#include "accelerate/megatron/model_parsers.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Plugin = MegatronLMPlugin;
using Facts = MegatronModelFacts;
using Shapes = std::optional<MegatronBatchShapes>;

const nlohmann::json& key(const Facts& model, const char* name) {
  const auto found = model.config.find(name);
  TORCH_CHECK_VALUE(found != model.config.end(), "the model's configuration has no \"", name,
                    "\", which Megatron-LM needs of models of its type");
  return *found;
}

int64_t number(const Facts& model, const char* name) {
  const nlohmann::json& value = key(model, name);
  TORCH_CHECK_VALUE(value.is_number_integer(), "the model's configuration: \"", name,
                    "\" is not a whole number");
  return value.get<int64_t>();
}

// The length of the sequences in a tensor of the batch, if there is one.
int64_t length_or(const Shapes& batch, const char* name, int64_t otherwise) {
  if (!batch) return otherwise;
  const auto shape = batch->find(name);
  TORCH_CHECK_VALUE(shape != batch->end(), "the batch has no \"", name,
                    "\", whose length is that of sequences");
  TORCH_CHECK_VALUE(shape->second.size() >= 2, "the batch's \"", name,
                    "\" has no dim of tokens behind that of sequences");
  return shape->second[1];
}

// Where seq_length is given, a length of the encoder or decoder comes before it, with a warning.
void set_length(Plugin& plugin, const char* name, const std::optional<int64_t>& part,
                const Shapes& batch, int64_t otherwise) {
  if (part) {
    if (plugin.seq_length) {
      TORCH_WARN("Both `seq_length` and `", name, "` are set. Using `", name, "`.");
    }
    plugin.seq_length = part;
  } else if (!plugin.seq_length) {
    plugin.seq_length = length_or(batch, "input_ids", otherwise);
  }
}

// What configurations call these sizes.
struct SizeKeys {
  const char* layers;
  const char* hidden;
  const char* heads;
};

// The arguments that follow from models of each type.
void set_arguments(Plugin& plugin, const Facts& model, const char* type, const SizeKeys& keys,
                   int64_t positions, bool is_pretraining) {
  plugin.megatron_lm_default_args.update(Json{{"model_type_name", type},
                                              {"num_layers", number(model, keys.layers)},
                                              {"hidden_size", number(model, keys.hidden)},
                                              {"num_attention_heads", number(model, keys.heads)},
                                              {"max_position_embeddings", positions},
                                              {"pretraining_flag", is_pretraining},
                                              {"orig_vocab_size", number(model, "vocab_size")},
                                              {"model_return_dict", key(model, "return_dict")}});
}

constexpr SizeKeys kUsualKeys = {"num_hidden_layers", "hidden_size", "num_attention_heads"};

void parse_bert(Plugin& plugin, const Facts& model, const Shapes& batch) {
  const int64_t positions = number(model, "max_position_embeddings");
  set_length(plugin, "encoder_seq_length", plugin.encoder_seq_length, batch, positions);
  const bool is_masked = absl::StrContains(absl::AsciiStrToLower(model.class_name), "maskedlm");
  set_arguments(plugin, model, "bert", kUsualKeys, positions, is_masked);
  plugin.megatron_lm_default_args.update(
      Json{{"seq_length", *plugin.seq_length}, {"num_labels", number(model, "num_labels")}});
}

void parse_gpt2(Plugin& plugin, const Facts& model, const Shapes& batch) {
  const int64_t positions = number(model, "n_positions");
  set_length(plugin, "decoder_seq_length", plugin.decoder_seq_length, batch, positions);
  set_arguments(plugin, model, "gpt", {"n_layer", "n_embd", "n_head"}, positions,
                /*is_pretraining=*/true);
  plugin.megatron_lm_default_args.update(Json{{"seq_length", *plugin.seq_length},
                                              {"return_logits", plugin.return_logits},
                                              {"tokenizer_type", "GPT2BPETokenizer"}});
}

void parse_t5(Plugin& plugin, const Facts& model, const Shapes& batch) {
  constexpr int64_t kPositions = 1024;
  const int64_t positions =
      model.config.contains("n_positions") ? number(model, "n_positions") : kPositions;
  if (!plugin.encoder_seq_length) {
    plugin.encoder_seq_length = length_or(batch, "input_ids", positions);
  }
  if (!plugin.decoder_seq_length) {
    plugin.decoder_seq_length = length_or(batch, "labels", positions);
  }
  set_arguments(plugin, model, "t5", {"num_layers", "d_model", "num_heads"}, positions,
                /*is_pretraining=*/true);
  plugin.megatron_lm_default_args.update(Json{{"encoder_seq_length", *plugin.encoder_seq_length},
                                              {"decoder_seq_length", *plugin.decoder_seq_length}});
}

// What models like Llama have in common.
void parse_decoder(Plugin& plugin, const Facts& model, const Shapes& batch, const char* tokenizer,
                   bool is_pretraining) {
  const int64_t positions = number(model, "max_position_embeddings");
  if (!plugin.seq_length) {
    const auto longest = model.config.find("max_sequence_length");
    if (longest != model.config.end() && !longest->is_null()) {
      plugin.seq_length = number(model, "max_sequence_length");
    } else if (plugin.decoder_seq_length) {
      plugin.seq_length = plugin.decoder_seq_length;
    } else {
      plugin.seq_length = length_or(batch, "input_ids", positions);
    }
  }
  set_arguments(plugin, model, "gpt", kUsualKeys, positions, is_pretraining);
  plugin.megatron_lm_default_args.update(Json{{"seq_length", *plugin.seq_length},
                                              {"return_logits", plugin.return_logits},
                                              {"tokenizer_type", tokenizer}});
}

void parse_llama(Plugin& plugin, const Facts& model, const Shapes& batch) {
  parse_decoder(plugin, model, batch, "Llama2Tokenizer", /*is_pretraining=*/true);
}

void parse_glm4_moe(Plugin& plugin, const Facts& model, const Shapes& batch) {
  parse_decoder(plugin, model, batch, "HuggingFaceTokenizer", /*is_pretraining=*/false);
  const int64_t layers = number(model, "num_hidden_layers");
  const int64_t dense = std::clamp<int64_t>(number(model, "first_k_dense_replace"), 0, layers);
  std::vector<int64_t> has_experts(static_cast<size_t>(layers), 1);
  std::fill_n(has_experts.begin(), dense, 0);
  const nlohmann::json& tied = key(model, "tie_word_embeddings");
  TORCH_CHECK_VALUE(tied.is_boolean(),
                    "the model's configuration: \"tie_word_embeddings\" is not a truth value");
  plugin.megatron_lm_default_args.update(
      Json{{"kv_channels", key(model, "head_dim")},
           {"position_embedding_type", "rope"},
           {"original_model_type", "glm4_moe"},
           {"qk_layernorm", key(model, "use_qk_norm")},
           {"add_bias_linear", false},
           {"group_query_attention", true},
           {"num_query_groups", key(model, "num_key_value_heads")},
           {"ffn_hidden_size", key(model, "intermediate_size")},
           {"add_qkv_bias", true},
           {"normalization", "RMSNorm"},
           {"rotary-percent", 0.5},
           {"swiglu", true},
           {"moe_ffn_hidden_size", key(model, "moe_intermediate_size")},
           {"moe_shared_expert_intermediate_size", key(model, "moe_intermediate_size")},
           {"moe_router_pre_softmax", true},
           {"moe_router_score_function", "sigmoid"},
           {"moe_router_enable_expert_bias", true},
           {"moe_router_bias_update_rate", 0},
           {"moe_router_load_balancing_type", "seq_aux_loss"},
           {"moe_token_dispatcher_type", "alltoall"},
           {"moe_router_topk", key(model, "num_experts_per_tok")},
           {"moe_router_topk_scaling_factor", key(model, "routed_scaling_factor")},
           {"moe_layer_freq", has_experts},
           {"num_experts", key(model, "n_routed_experts")},
           {"moe_grouped_gemm", true},
           {"moe_router_dtype", "fp32"},
           {"moe_permute_fusion", true},
           {"moe_aux_loss_coeff", 0},
           {"rotary_base", key(model, "rope_theta")},
           {"rope_type", "rope"},
           {"rotary_percent", key(model, "partial_rotary_factor")},
           {"norm_epsilon", 0.001},
           {"use_flash_attn", true},
           {"eos_token_id", key(model, "eos_token_id")},
           {"fp8", key(model, "fp8")},
           {"fp8_param", key(model, "fp8_param")},
           {"fp8_param_gather", key(model, "fp8_param_gather")},
           {"fp8_recipe", key(model, "fp8_recipe")},
           {"bf16", key(model, "bf16")},
           {"untie_embeddings_and_output_weights", !tied.get<bool>()}});
}

}  // namespace

const MegatronModelParsers& megatron_model_parsers() {
  static const auto* const parsers = new MegatronModelParsers{{"megatron-bert", parse_bert},
                                                              {"gpt2", parse_gpt2},
                                                              {"t5", parse_t5},
                                                              {"llama", parse_llama},
                                                              {"glm4_moe", parse_glm4_moe}};
  return *parsers;
}

void add_model_config_to_megatron_parser(MegatronModelParsers& parsers,
                                         const std::string& model_type,
                                         MegatronModelParser parser) {
  const auto known =
      std::ranges::find(parsers, model_type, &MegatronModelParsers::value_type::first);
  if (known != parsers.end()) {
    known->second = std::move(parser);
  } else {
    parsers.emplace_back(model_type, std::move(parser));
  }
}

void set_network_size_args(MegatronLMPlugin& plugin, const MegatronModelFacts& model,
                           const std::optional<MegatronBatchShapes>& batch,
                           const MegatronModelParsers& parsers) {
  const nlohmann::json& given = key(model, "model_type");
  TORCH_CHECK_VALUE(given.is_string(), "the model's configuration: \"model_type\" is not a text");
  const std::string type = absl::AsciiStrToLower(given.get<std::string>());
  const auto parser = std::ranges::find_if(
      parsers, [&](const auto& each) { return absl::StrContains(type, each.first); });
  TORCH_CHECK_VALUE(
      parser != parsers.end(), "Megatron-LM: no parser for models of type \"", type,
      "\", only for those with ",
      absl::StrJoin(parsers, ", ",
                    [](std::string* out, const auto& each) { absl::StrAppend(out, each.first); }),
      " in their types; add_model_config_to_megatron_parser adds one");
  MegatronLMPlugin parsed = plugin;
  parser->second(parsed, model, batch);
  plugin = std::move(parsed);
}

}  // namespace accelerate
