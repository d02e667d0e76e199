/// How 8-bit floating point is computed: the options of the three ways that HF Accelerate knows,
/// and which of them a job uses.
///
/// An absent field takes the value of its environment variable, or the default named beside it;
/// the variables are called ACCELERATE_FP8 and what the field's comment ends with. Giving one of
/// these without mixed_precision fp8 is an error, and so is giving two of them.
/// Errors: c10::ValueError naming the field, or the variable and its text.
/// Threads: those of the Environment. Everything is local.
/// Mirrors: accelerate utils/dataclasses.py, TERecipeKwargs, MSAMPRecipeKwargs, AORecipeKwargs and
///          the deprecated FP8RecipeKwargs; accelerator.py, fp8_backend.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/platform/environment.h"

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
  /// The first and the last Linear layer stay in high precision. Only here, without a variable.
  bool keep_first_and_last = false;

  bool operator==(const TERecipeKwargs&) const = default;
};
ACCELERATE_FIELDS(TERecipeKwargs, use_autocast_during_eval, margin, interval, fp8_format,
                  amax_history_len, amax_compute_algo, override_linear_precision,
                  use_mxfp8_block_scaling, keep_first_and_last)

/// Gradients (O1) and the optimizer's moments (O2) in few bits.
struct MSAMPRecipeKwargs {
  /// "O1" or "O2": O2. _OPT_LEVEL
  std::optional<std::string> opt_level = std::nullopt;

  bool operator==(const MSAMPRecipeKwargs&) const = default;
};
ACCELERATE_FIELDS(MSAMPRecipeKwargs, opt_level)

/// One scale per tensor, computed from the tensor itself.
struct AORecipeKwargs {
  /// Whether a Linear layer, by its name, is computed in fp8. Absent: all but the first and the
  /// last one.
  std::function<bool(const torch::nn::Module& module, const std::string& name)> module_filter_func =
      {};
  /// Fill up dimensions that are no multiple of 16, where the filter chooses such a layer: true.
  /// _PAD_INNER_DIM
  std::optional<bool> pad_inner_dim = std::nullopt;
  /// Shards are cast before they are gathered: true. _ENABLE_FSDP_FLOAT8_ALL_GATHER
  std::optional<bool> enable_fsdp_float8_all_gather = std::nullopt;
};
ACCELERATE_FIELDS(AORecipeKwargs, module_filter_func, pad_inner_dim, enable_fsdp_float8_all_gather)

/// Deprecated: TERecipeKwargs or MSAMPRecipeKwargs, as `backend` says, with the fields of both.
struct FP8RecipeKwargs {
  /// "TE" or "MSAMP". Absent: ACCELERATE_FP8_BACKEND, else MSAMP where opt_level is given, else TE.
  std::optional<std::string> backend = std::nullopt;
  std::optional<std::string> opt_level = std::nullopt;
  std::optional<bool> use_autocast_during_eval = std::nullopt;
  std::optional<int64_t> margin = std::nullopt;
  std::optional<int64_t> interval = std::nullopt;
  std::optional<std::string> fp8_format = std::nullopt;
  std::optional<int64_t> amax_history_len = std::nullopt;
  std::optional<std::string> amax_compute_algo = std::nullopt;
  std::optional<std::array<bool, 3>> override_linear_precision = std::nullopt;
  std::optional<bool> use_mxfp8_block_scaling = std::nullopt;

  bool operator==(const FP8RecipeKwargs&) const = default;
};
ACCELERATE_FIELDS(FP8RecipeKwargs, backend, opt_level, use_autocast_during_eval, margin, interval,
                  fp8_format, amax_history_len, amax_compute_algo, override_linear_precision,
                  use_mxfp8_block_scaling)

/// The handlers that the user gave.
struct Fp8Handlers {
  std::optional<TERecipeKwargs> te;
  std::optional<MSAMPRecipeKwargs> msamp;
  std::optional<AORecipeKwargs> ao;
  std::optional<FP8RecipeKwargs> recipe;

  bool any() const { return te || msamp || ao || recipe; }
};

/// How a job computes in fp8: one of the three, all its fields given and right.
struct Fp8Plan {
  std::variant<TERecipeKwargs, MSAMPRecipeKwargs, AORecipeKwargs> recipe;

  FP8BackendType backend() const;
};

/// With every absent field filled in, texts in their usual case, and values checked.
TERecipeKwargs resolve(TERecipeKwargs kwargs, const Environment& environment);
MSAMPRecipeKwargs resolve(MSAMPRecipeKwargs kwargs, const Environment& environment);
AORecipeKwargs resolve(AORecipeKwargs kwargs, const Environment& environment);

/// The handler's, else that of ACCELERATE_FP8_BACKEND, else the first of AO, TE and MSAMP that this
/// build has: AO, for it has all.
Fp8Plan resolve_fp8(const Fp8Handlers& handlers, const Environment& environment);

/// Refuses handlers in a job that computes in another precision.
void check_fp8_handlers(const Fp8Handlers& handlers, PrecisionType precision);

}  // namespace accelerate
