#include "accelerate/values/exception_text.h"

#include <c10/util/Exception.h>

namespace accelerate {

std::string exception_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

std::string exception_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error ? error : std::current_exception());
  } catch (const std::exception& known) {
    return exception_text(known);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace accelerate
