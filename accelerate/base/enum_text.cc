#include "accelerate/base/enum_text.h"

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace accelerate::internal {

int index_of_text(const char* const* texts, size_t count, std::string_view text, bool any_case) {
  const absl::string_view wanted(text.data(), text.size());
  for (size_t i = 0; i < count; ++i) {
    const bool same = any_case ? absl::EqualsIgnoreCase(texts[i], wanted) : texts[i] == wanted;
    if (same) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace accelerate::internal
