/// What is said while a model is quantised. Threads: the rank's thread.
#pragma once

#include <string>

namespace accelerate::internal {

/// A line of the rank's logger, where there is a PartialState.
void warn_of_quantization(const std::string& text);
void inform_of_quantization(const std::string& text);

}  // namespace accelerate::internal
