#include "accelerate/values/from_string.h"

#include <string>

#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace accelerate::internal {

void throw_unknown_text(const char* name, const char* const* texts, size_t count,
                        std::string_view text) {
  TORCH_CHECK_VALUE(false, "unknown ", name, " \"", std::string(text), "\"; there are ",
                    absl::StrJoin(absl::MakeConstSpan(texts, count), ", "));
}

}  // namespace accelerate::internal
