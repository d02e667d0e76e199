/// Megatron-LM's sizes of a model from the configuration of a transformer, its config.json.
///
///     MegatronLMPlugin plugin = resolve({}, environment);
///     set_network_size_args(plugin, {.config = config, .class_name = "LlamaForCausalLM"});
///     plugin.megatron_lm_default_args["num_layers"];
///
/// The first parser whose type occurs in the configuration's "model_type", in small letters, is the
/// model's.
///
/// Errors:  c10::ValueError naming the type, or the key that the configuration lacks; the plugin
///          stays as it was.
/// Threads: pure functions.
/// Mirrors: accelerate utils/dataclasses.py, MegatronLMPlugin.set_network_size_args and
///          add_model_config_to_megatron_parser.
/// Differs: a seq_length that is given stays where the encoder or decoder has none of its own;
///          parsers are a value, not a table of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/config/megatron_lm_plugin.h"

namespace accelerate {

struct MegatronModelFacts {
  nlohmann::json config;
  std::string class_name = {};
};

/// The shapes of a batch's tensors by their names.
using MegatronBatchShapes = std::map<std::string, std::vector<int64_t>>;

/// Sets fields and arguments of the plugin.
using MegatronModelParser =
    std::function<void(MegatronLMPlugin& plugin, const MegatronModelFacts& model,
                       const std::optional<MegatronBatchShapes>& batch)>;

/// By model type, in the order in which they are tried.
using MegatronModelParsers = std::vector<std::pair<std::string, MegatronModelParser>>;

/// "megatron-bert", "gpt2", "t5", "llama" and "glm4_moe".
const MegatronModelParsers& megatron_model_parsers();

/// Replaces the parser of the type, or comes last.
void add_model_config_to_megatron_parser(MegatronModelParsers& parsers,
                                         const std::string& model_type, MegatronModelParser parser);

/// `batch`: lengths that nothing else says are those of "input_ids" and "labels" in it.
void set_network_size_args(MegatronLMPlugin& plugin, const MegatronModelFacts& model,
                           const std::optional<MegatronBatchShapes>& batch = std::nullopt,
                           const MegatronModelParsers& parsers = megatron_model_parsers());

}  // namespace accelerate
