/// A program's arguments as hyperparameters of a SageMaker job.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace accelerate::launch::plan {

/// `--learning-rate 0.1 --name x` is {"learning_rate": 0.1, "name": "x"}. Whole numbers are
/// integers, however written; True and False are booleans.
/// Errors: InvalidArgument for an argument without name or value, and for a name that occurs twice.
/// Mirrors: accelerate utils/launch.py, _convert_nargs_to_dict.
absl::StatusOr<nlohmann::ordered_json> sagemaker_hyperparameters(
    absl::Span<const std::string> arguments);

}  // namespace accelerate::launch::plan
