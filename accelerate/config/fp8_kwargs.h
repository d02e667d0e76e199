/// How 8-bit floating point is computed: the options of the three ways that the peer knows.
///
/// A field that is absent is what its environment variable says, or the default named beside it.
/// Giving one of these without mixed_precision fp8 is an error, and so is giving two that differ in
/// backend.
/// Mirrors: accelerate utils/dataclasses.py, TERecipeKwargs, MSAMPRecipeKwargs, AORecipeKwargs and
///          the deprecated FP8RecipeKwargs, with their environment variables (ACCELERATE_FP8_*).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// Scales that follow the largest values of past steps (delayed scaling), or blocks of 32 values
/// with a scale each.
struct TERecipeKwargs {
  /// fp8 in evaluation too: false. _USE_AUTOCAST_DURING_EVAL
  std::optional<bool> use_autocast_during_eval = std::nullopt;
  /// The scale leaves room for values 2^margin times as large: 0. _MARGIN
  std::optional<int64_t> margin = std::nullopt;
  /// Steps between two computations of the scale: 1. _INTERVAL
  std::optional<int64_t> interval = std::nullopt;
  /// "E4M3" in both directions, or "HYBRID", which has E5M2 for gradients: HYBRID. _FORMAT
  std::optional<std::string> fp8_format = std::nullopt;
  /// How many steps are looked back: 1024. _AMAX_HISTORY_LEN
  std::optional<int64_t> amax_history_len = std::nullopt;
  /// "max" of the history, or "most_recent": most_recent. _AMAX_COMPUTE_ALGO
  std::optional<std::string> amax_compute_algo = std::nullopt;
  /// Which of the products forward, gradient of the input and gradient of the weight stay in high
  /// precision: none. _OVERRIDE_FPROP, _OVERRIDE_DGRAD, _OVERRIDE_WGRAD
  std::optional<std::array<bool, 3>> override_linear_precision = std::nullopt;
  /// A power of two as scale for each 32 values: false. _USE_MXFP8_BLOCK_SCALING
  std::optional<bool> use_mxfp8_block_scaling = std::nullopt;

  bool operator==(const TERecipeKwargs&) const = default;
};

/// Gradients (O1) and the optimizer's moments (O2) in few bits.
struct MSAMPRecipeKwargs {
  /// "O1" or "O2": O2. _OPT_LEVEL
  std::optional<std::string> opt_level = std::nullopt;

  bool operator==(const MSAMPRecipeKwargs&) const = default;
};

/// One scale per tensor, computed from the tensor itself.
struct AORecipeKwargs {
  /// Whether a Linear layer, by its name, is computed in fp8. Absent: all but the first and the
  /// last one.
  std::function<bool(const torch::nn::Module& module, const std::string& name)> module_filter_func =
      {};
  /// Fill up inner dimensions that are no multiple of 16: true. _PAD_INNER_DIM
  std::optional<bool> pad_inner_dim = std::nullopt;
  /// Shards are cast before they are gathered: true. _ENABLE_FSDP_FLOAT8_ALL_GATHER
  std::optional<bool> enable_fsdp_float8_all_gather = std::nullopt;
};

/// Deprecated: says TE or MSAMP, with the fields of both.
struct FP8RecipeKwargs : TERecipeKwargs {
  /// "TE" or "MSAMP". Absent: ACCELERATE_FP8_BACKEND, else MSAMP where opt_level is given, else TE.
  std::optional<std::string> backend = std::nullopt;
  std::optional<std::string> opt_level = std::nullopt;
};

/// Those that were given.
struct Fp8Handlers {
  std::optional<TERecipeKwargs> te;
  std::optional<MSAMPRecipeKwargs> msamp;
  std::optional<AORecipeKwargs> ao;
  std::optional<FP8RecipeKwargs> recipe;
};

}  // namespace accelerate
