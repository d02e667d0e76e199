#include "accelerate/config/enum_text.h"

#include <string>

#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace accelerate::internal {

int index_of_text(const char* const* texts, size_t count, std::string_view text, bool any_case) {
  const absl::string_view wanted(text.data(), text.size());
  for (size_t i = 0; i < count; ++i) {
    const bool same = any_case ? absl::EqualsIgnoreCase(texts[i], wanted) : texts[i] == wanted;
    if (same) return static_cast<int>(i);
  }
  return -1;
}

void throw_unknown_text(const char* name, const char* const* texts, size_t count,
                        std::string_view text) {
  TORCH_CHECK_VALUE(false, "\"", std::string(text), "\" is no ", name, "; there are ",
                    absl::StrJoin(absl::MakeConstSpan(texts, count), ", "));
}

}  // namespace accelerate::internal
