/// The configuration of a decoder-only language model, and the configurations that have a name.
/// Without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lm {

/// The kind of all blocks, and of what a model has besides them.
enum class Blocks {
  kGpt,    ///< LayerNorm, learned positions, a perceptron with GELU, biases
  kLlama,  ///< RMSNorm, rotary positions, SwiGLU, no biases
};

/// Sizes of -1 are for model_config() to fill in; everything else takes complete configurations.
struct Config {
  Blocks blocks = Blocks::kGpt;
  int64_t layers = -1;           ///< blocks
  int64_t hidden = -1;           ///< the size of a token's vector, a multiple of `heads`
  int64_t heads = -1;            ///< heads of a block's attention, a multiple of `kv_heads`
  int64_t kv_heads = -1;         ///< keys and values are shared by heads / kv_heads heads each
  int64_t intermediate = -1;     ///< the size inside the perceptron
  int64_t sequence_length = -1;  ///< the most tokens of a sequence
  int64_t vocabulary = -1;       ///< different tokens; the bytes of a text need 256
  int64_t tied_head = -1;        ///< 1: the head is the token embedding's weight; 0: its own
  /// In Llama's blocks: so many perceptrons, of which a router chooses some for each token; 0: one,
  /// for all tokens.
  int64_t experts = 0;
  int64_t experts_per_token = 2;
  /// The size inside an expert; -1: `intermediate` divided by experts_per_token.
  int64_t expert_intermediate = -1;
  /// The same of an expert that all tokens go to besides; 0: there is none.
  int64_t shared_intermediate = 0;
};

/// "tiny", "125m", "1b", "7b", "70b": about as many parameters as the name says.
const std::vector<std::string>& model_names();

/// The named model of the kind `sizes.blocks`, with the sizes that are not -1 in place of its own.
/// `intermediate` and `kv_heads` keep their proportion to `hidden` and `heads` where only those are
/// given. Errors: std::invalid_argument naming the size that is impossible, or for another name.
Config model_config(const std::string& model, Config sizes = {});

/// The elements of all parameters, which are those of
///   - the token embedding, vocabulary x hidden, and as much for a head that is not tied;
///   - GPT's positions, sequence_length x hidden;
///   - in each block queries, keys and values, hidden x (heads + 2 kv_heads) of a head's size; the
///     projection behind the attention, hidden x hidden; a perceptron of 2 (GPT) or 3 (Llama)
///     matrices, hidden x intermediate, or as much for each expert, of their size, and the router,
///     hidden x experts; and two norms;
///   - the last norm.
/// A norm has a weight of `hidden` elements. In GPT it has a bias as well, as have all matrices of
/// the blocks.
int64_t parameter_count(const Config& config);

}  // namespace lm
