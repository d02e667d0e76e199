#include "accelerate/state/memory.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

#include <c10/util/Exception.h>

namespace accelerate {
namespace {

template <typename... Types>
bool is_any_of(const std::exception& exception) {
  return ((dynamic_cast<const Types*>(&exception) != nullptr) || ...);
}

bool tells_of_memory(std::string_view text) {
  static constexpr std::array<std::string_view, 5> kTexts{
      " out of memory.",                                    // devices
      "MPS backend out of memory",                          // Apple's, which goes on with figures
      "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",           // a workspace that did not fit
      "DefaultCPUAllocator: can't allocate memory",         // CPUs
      "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",  // Gaudi
  };
  return std::any_of(kTexts.begin(), kTexts.end(), [text](std::string_view known) {
    return text.find(known) != std::string_view::npos;
  });
}

}  // namespace

bool should_reduce_batch_size(const std::exception& exception) {
  if (is_any_of<c10::OutOfMemoryError>(exception)) return true;
  if (const auto* error = dynamic_cast<const c10::Error*>(&exception)) {
    return !is_any_of<c10::ValueError, c10::TypeError, c10::IndexError>(exception) &&
           tells_of_memory(error->what_without_backtrace());
  }
  return is_any_of<std::runtime_error>(exception) && tells_of_memory(exception.what());
}

}  // namespace accelerate
