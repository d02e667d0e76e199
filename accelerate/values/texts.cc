#include "accelerate/values/texts.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"

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

void internal::throw_unknown_text(const char* name, const char* const* texts, size_t count,
                                  std::string_view text) {
  TORCH_CHECK_VALUE(false, "unknown ", name, " \"", std::string(text), "\"; there are ",
                    absl::StrJoin(absl::MakeConstSpan(texts, count), ", "));
}

}  // namespace accelerate
