/// Cases of the Trackio tracker.
/// Threads: one.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

nlohmann::json replay_trackio(const nlohmann::json& in);

}  // namespace accelerate::golden
