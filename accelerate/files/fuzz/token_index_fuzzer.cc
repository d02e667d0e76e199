// Any bytes are either refused with the byte where they are wrong, or an index whose sequences lie
// in a file and which can be written again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/log/absl_check.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

#include "accelerate/files/formats/token_index.h"

namespace accelerate {
namespace {

void check(const TokenIndex& index) {
  ABSL_CHECK_EQ(index.lengths.size(), index.offsets.size());
  const int64_t end = token_bytes(index);
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    ABSL_CHECK_GE(index.lengths[i], 0);
    ABSL_CHECK_GE(index.offsets[i], 0);
    ABSL_CHECK_LE(index.offsets[i] + index.lengths[i] * token_size(index.dtype), end);
  }
  int64_t before = 0;
  for (const int64_t first : index.documents) {
    ABSL_CHECK_GE(first, before);
    ABSL_CHECK_LE(first, static_cast<int64_t>(index.lengths.size()));
    before = first;
  }
  // The older format has sequences that are too long for the other one.
  const absl::StatusOr<std::string> bytes = token_index_bytes(index);
  if (!bytes.ok()) return;
  ABSL_CHECK(*parse_token_index(*bytes) == index);
}

}  // namespace
}  // namespace accelerate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<accelerate::TokenIndex> index = accelerate::parse_token_index(bytes);
  if (index.ok()) {
    accelerate::check(*index);
  } else {
    ABSL_CHECK(absl::StrContains(index.status().message(), "byte "));
  }
  return 0;
}
