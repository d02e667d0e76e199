/// The kinds of big_modeling's cases about devices that models share: same_device and
/// cpu_offload_with_hook.
///
/// same_device: `first` and `second`, or `devices`, a list of two, or `pairs` of them. Answer:
/// {"same": truth, or a list of them}.
///
/// cpu_offload_with_hook: `models`, by names or as {name, execution_device, prev}, which are hooked
/// at once; steps [what, model, ...]: ["attach", model, execution_device, previous model],
/// ["forward", model], ["offload", model], ["remove", model]. Answer: {"events": ...}, in order
/// [model, "to", device] where a model's device changes, and [model, "forward", device].
///
/// Threads: the rank's thread.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_big_modeling_turns(const nlohmann::json& in);

/// The pairs that a case of kind same_device asks about.
nlohmann::json device_pairs(const nlohmann::json& in);

/// Writes a recorded answer of such a kind as ours: one truth or one list of truths by the name
/// "same", devices alike, and without moves to where a model is already.
void write_turns_alike(const nlohmann::json& in, nlohmann::json& recorded);

}  // namespace accelerate::golden
