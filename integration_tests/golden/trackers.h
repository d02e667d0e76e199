/// The answers to the cases of kind "tracker", one function per tracker.
///
/// Errors: CaseError; DoesNotCompile for Python objects, which C++ does not have.
/// Threads: one.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

nlohmann::json replay_dvclive(const nlohmann::json& in);
nlohmann::json replay_mlflow(const nlohmann::json& in);
nlohmann::json replay_tensorboard(const nlohmann::json& in);
nlohmann::json replay_trackio(const nlohmann::json& in);
nlohmann::json replay_wandb(const nlohmann::json& in);

/// Trackers that stand on a Python package of their vendor: the calls that they make on it.
nlohmann::json replay_aim(const nlohmann::json& in);
nlohmann::json replay_clearml(const nlohmann::json& in);
nlohmann::json replay_comet_ml(const nlohmann::json& in);
nlohmann::json replay_swanlab(const nlohmann::json& in);

}  // namespace accelerate::golden
