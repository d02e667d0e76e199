#include "accelerate/quantization/models/quantization_log.h"

#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"

namespace accelerate::internal {
namespace {

constexpr char kLoggerName[] = "accelerate.quantization";

// Without a PartialState it is unknown which rank logs.
bool has_logger() {
  const Runtime* const runtime = Runtime::find_current();
  return runtime != nullptr && PartialState::find(*runtime) != nullptr;
}

}  // namespace

void warn_of_quantization(const std::string& text) {
  if (has_logger()) get_logger(kLoggerName).warning(text);
}

void inform_of_quantization(const std::string& text) {
  if (has_logger()) get_logger(kLoggerName).info(text);
}

}  // namespace accelerate::internal
