#include "accelerate/examples/lm/config.h"

#include <stdexcept>
#include <utility>

namespace lm {
namespace {

// GPT-2's 50,257 tokens, rounded up to a multiple of 64, which suits matrix units.
constexpr int64_t kGptTokens = 50'304;
constexpr int64_t kLlamaTokens = 32'000;

using Models = std::vector<std::pair<std::string, Config>>;

Config gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t length, int64_t vocabulary) {
  return {Blocks::kGpt, layers, hidden, heads, heads, 4 * hidden, length, vocabulary, 1};
}

// 125m has the shape of GPT-2, 7b that of GPT-3 6.7B.
const Models& gpt_models() {
  static const Models models = {{"tiny", gpt(4, 128, 4, 128, 256)},
                                {"125m", gpt(12, 768, 12, 1024, kGptTokens)},
                                {"1b", gpt(18, 2048, 16, 2048, kGptTokens)},
                                {"7b", gpt(32, 4096, 32, 2048, kGptTokens)},
                                {"70b", gpt(88, 8192, 64, 2048, kGptTokens)}};
  return models;
}

// 1b is TinyLlama; 7b and 70b are Llama 2.
const Models& llama_models() {
  static const Models models = {
      {"tiny", {Blocks::kLlama, 4, 128, 4, 2, 352, 128, 256, 0}},
      {"125m", {Blocks::kLlama, 12, 768, 12, 4, 2048, 2048, kLlamaTokens, 0}},
      {"1b", {Blocks::kLlama, 22, 2048, 32, 4, 5632, 2048, kLlamaTokens, 0}},
      {"7b", {Blocks::kLlama, 32, 4096, 32, 32, 11'008, 4096, kLlamaTokens, 0}},
      {"70b", {Blocks::kLlama, 80, 8192, 64, 8, 28'672, 4096, kLlamaTokens, 0}}};
  return models;
}

const Config& named(Blocks blocks, const std::string& name) {
  std::string known;
  for (const auto& [each, config] : blocks == Blocks::kGpt ? gpt_models() : llama_models()) {
    if (each == name) return config;
    known += (known.empty() ? "" : ", ") + each;
  }
  throw std::invalid_argument("there is no model \"" + name + "\"; known models: " + known);
}

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void check(const Config& config) {
  const std::pair<const char*, int64_t> sizes[] = {{"layers", config.layers},
                                                   {"hidden", config.hidden},
                                                   {"heads", config.heads},
                                                   {"kv_heads", config.kv_heads},
                                                   {"intermediate", config.intermediate},
                                                   {"sequence_length", config.sequence_length},
                                                   {"vocabulary", config.vocabulary}};
  for (const auto& [name, size] : sizes) {
    require(size >= 1, std::string(name) + " is " + std::to_string(size) + ", not at least 1");
  }
  require(config.tied_head == 0 || config.tied_head == 1,
          "tied_head is " + std::to_string(config.tied_head) + ", neither 0 nor 1");
  require(config.hidden % config.heads == 0,
          std::to_string(config.heads) + " heads cannot share a hidden size of " +
              std::to_string(config.hidden) + ": take a multiple of the number of heads");
  require(config.heads % config.kv_heads == 0,
          std::to_string(config.heads) + " heads cannot share " + std::to_string(config.kv_heads) +
              " heads of keys and values: take kv_heads that divide the number of heads");
  require(config.experts >= 0 && config.shared_intermediate >= 0,
          "experts is " + std::to_string(config.experts) + " and shared_intermediate " +
              std::to_string(config.shared_intermediate) + ", not at least 0");
  require(config.experts == 0 || config.blocks == Blocks::kLlama,
          "experts are for Llama's blocks; take --blocks llama, or 0 experts");
  require(config.experts == 0 ||
              (config.experts_per_token >= 1 && config.experts_per_token <= config.experts &&
               config.expert_intermediate >= 1),
          std::to_string(config.experts_per_token) + " of " + std::to_string(config.experts) +
              " experts a token, of size " + std::to_string(config.expert_intermediate) +
              ": take 1 expert at least, no more than there are, and a size of 1 at least");
  require(config.blocks == Blocks::kGpt || config.hidden / config.heads % 2 == 0,
          "a head's size of " + std::to_string(config.hidden / config.heads) +
              " is odd, and rotary positions turn pairs");
}

// `part`, given or in the model's proportion to `whole`, rounded up.
int64_t in_proportion(int64_t given, int64_t whole, int64_t model_part, int64_t model_whole) {
  return given != -1 ? given : (whole * model_part + model_whole - 1) / model_whole;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> names;
    for (const auto& [name, config] : gpt_models()) names.push_back(name);
    return names;
  }();
  return names;
}

Config model_config(const std::string& model, Config sizes) {
  const Config& own = named(sizes.blocks, model);
  for (int64_t Config::* field :
       {&Config::layers, &Config::hidden, &Config::heads, &Config::sequence_length,
        &Config::vocabulary, &Config::tied_head}) {
    if (sizes.*field == -1) sizes.*field = own.*field;
  }
  sizes.kv_heads = in_proportion(sizes.kv_heads, sizes.heads, own.kv_heads, own.heads);
  sizes.intermediate =
      in_proportion(sizes.intermediate, sizes.hidden, own.intermediate, own.hidden);
  if (sizes.expert_intermediate == -1 && sizes.experts_per_token > 0) {
    sizes.expert_intermediate =
        (sizes.intermediate + sizes.experts_per_token - 1) / sizes.experts_per_token;
  }
  check(sizes);
  return sizes;
}

int64_t parameter_count(const Config& config) {
  const bool gpt = config.blocks == Blocks::kGpt;
  const int64_t h = config.hidden, i = config.intermediate, bias = gpt ? 1 : 0;
  const int64_t norm = (1 + bias) * h;
  const int64_t qkv = (config.heads + 2 * config.kv_heads) * (h / config.heads);
  const int64_t attention = (h + bias) * qkv + (h + bias) * h;
  const int64_t perceptron =
      config.experts > 0
          ? h * config.experts +
                3 * h * (config.experts * config.expert_intermediate + config.shared_intermediate)
          : (gpt ? 1 : 2) * (h + bias) * i + (i + bias) * h;
  const int64_t embeddings =
      (config.tied_head == 1 ? 1 : 2) * config.vocabulary + (gpt ? config.sequence_length : 0);
  return config.layers * (attention + perceptron + 2 * norm) + embeddings * h + norm;
}

}  // namespace lm
