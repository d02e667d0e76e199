/// What is said while a model is quantised. Threads: the rank's thread.
#pragma once

#include <string>

#include "accelerate/state/log_line.h"

namespace accelerate::internal {

inline constexpr char kQuantizationLogger[] = "accelerate.quantization";

/// A line of the rank's logger, where there is a PartialState.
inline void warn_of_quantization(const std::string& text) {
  log_warning(kQuantizationLogger, text);
}
inline void inform_of_quantization(const std::string& text) { log_info(kQuantizationLogger, text); }

}  // namespace accelerate::internal
