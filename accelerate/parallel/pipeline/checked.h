/// Results of accelerate/pipeline, which throws nothing, for code that throws.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate {

/// Errors: c10::ValueError with the status' text.
inline void check_pipeline_status(const absl::Status& status) {
  TORCH_CHECK_VALUE(status.ok(), "pipeline: ", std::string(status.message()));
}

/// The value. Errors: as above.
template <typename T>
T checked_value(absl::StatusOr<T> result) {
  check_pipeline_status(result.status());
  return *std::move(result);
}

}  // namespace accelerate
