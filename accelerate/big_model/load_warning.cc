#include "accelerate/big_model/load_warning.h"

#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"

namespace accelerate::internal {
namespace {

constexpr char kLoggerName[] = "accelerate.big_model";

}  // namespace

void warn_of_load(const std::string& text) {
  const Runtime* runtime = Runtime::find_current();
  // Without a PartialState it is unknown which rank logs.
  if (runtime == nullptr || PartialState::find(*runtime) == nullptr) return;
  get_logger(kLoggerName).warning(text);
}

}  // namespace accelerate::internal
