/// Cases of the W&B tracker.
/// Threads: one.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

nlohmann::json replay_wandb(const nlohmann::json& in);

}  // namespace accelerate::golden
