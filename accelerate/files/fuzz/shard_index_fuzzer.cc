// Any text is either refused, or an index of files in its own folder that can be written again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/files/formats/weight_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<accelerate::ShardIndex> index =
      accelerate::parse_shard_index(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) return 0;
  for (const auto& [tensor, file] : index->weight_map) {
    ABSL_CHECK(!file.empty() && file != "." && file != "..");
    ABSL_CHECK(file.find('/') == std::string::npos);
  }
  const absl::StatusOr<accelerate::ShardIndex> again =
      accelerate::parse_shard_index(accelerate::shard_index_text(*index));
  ABSL_CHECK_OK(again.status());
  ABSL_CHECK(again->weight_map == index->weight_map);
  ABSL_CHECK_EQ(again->total_size, index->total_size);
  return 0;
}
