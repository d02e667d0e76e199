/// What `run` is made of, for what starts ranks by itself (accelerate/process/launchers.h).
///
/// Threads: the rank's.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "accelerate/process/run.h"

namespace accelerate::internal {

/// As `run` does it for one real rank, whatever modes there are. `on_failure` is told why the rank
/// failed, at once.
int run_real(int argc, char** argv, const TrainFunction& train, Environment environment,
             const std::function<void(const std::string& what)>& on_failure);

/// As `run` does it in the mode that a variable of `environment` asks for; nothing if none does.
std::optional<int> run_in_mode(int argc, char** argv, const TrainFunction& train,
                               const Environment& environment);

}  // namespace accelerate::internal
