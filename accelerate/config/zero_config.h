/// Reads a configuration of DeepSpeed into the settings of ZeRO, which are values with types.
///
///     const ZeroConfig zero = zero_config(plugin.config.config);
///     if (zero.stage == 3 && zero.offload_param.device == OffloadDevice::kNvme) ...
///
/// zero_keys.h has the keys that a configuration can have, with what becomes of each;
/// accelerate/docs/deepspeed_options.md is made from it.
///
/// Errors:  c10::ValueError with all that is wrong: unknown keys that DeepSpeed would not ignore,
///          with the nearest one that is known; values of another type or out of range; what this
///          library refuses.
/// Threads: values; pure functions.
/// Mirrors: deepspeed/runtime/config.py, DeepSpeedConfig, and the blocks that it reads.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/config/zero_settings.h"

namespace accelerate {

/// "auto" in a configuration: what it stands for is not known yet, or must be by now.
enum class ZeroAuto {
  kAllowed,
  kRefused,
};

/// Gives each setting the one name that zero_keys.h has: DeepSpeed takes most of stage 3's with
/// `stage3_` and without it, and some by an older name. Two names with one value become one.
/// Returns what is wrong: settings that have two values. They stay as they are.
std::vector<std::string> use_one_name(nlohmann::ordered_json& config);

/// The keys that DeepSpeed ignores and so does zero_config(), dotted: those that it does not know
/// outside of `zero_optimization` and of the parameters of optimizers and schedules, which it
/// checks. What looks like a slip of a key that there is, or like one in the wrong place, is an
/// error of zero_config() and not among them.
std::vector<std::string> ignored_keys(const nlohmann::ordered_json& config);

/// The configuration as values. Errors: also for settings that contradict each other, and for those
/// that have two values by two names.
ZeroConfig zero_config(const nlohmann::ordered_json& config, ZeroAuto autos = ZeroAuto::kRefused);

}  // namespace accelerate
