// Any text is either refused, or an index whose files are in its own folder, whose sizes fit into
// 63 bits, and that can be written again.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/files/formats/offload_index.h"

namespace {

// By other means than the code under test: component by component.
void check_inside(const std::string& path) {
  ABSL_CHECK(!path.empty() && path.front() != '/' && path.find('\0') == std::string::npos);
  int depth = 0;
  for (const auto& part : std::filesystem::path(path)) {
    if (part == "..") {
      ABSL_CHECK_GT(depth, 0);
      --depth;
    } else if (part != "." && !part.empty()) {
      ++depth;
    }
  }
  ABSL_CHECK_GT(depth, 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<accelerate::OffloadIndex> index =
      accelerate::parse_offload_index(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) return 0;
  for (const auto& [name, tensor] : *index) {
    if (!tensor.safetensors_file.empty()) {
      check_inside(tensor.safetensors_file);
      continue;
    }
    const absl::StatusOr<std::string> file = accelerate::offload_file_name(name);
    ABSL_CHECK_OK(file.status());
    ABSL_CHECK(file->find('/') == std::string::npos);
    check_inside(*file);
    const absl::StatusOr<int64_t> bytes = accelerate::offloaded_bytes(tensor);
    ABSL_CHECK_OK(bytes.status());
    // Wide enough for a product of two factors that fit.
    __int128 product = accelerate::offload_dtype_size(tensor.dtype);
    for (int64_t length : tensor.shape) {
      ABSL_CHECK_GE(length, 0);
      product *= length;
      ABSL_CHECK(product <= INT64_MAX);
    }
    ABSL_CHECK_EQ(*bytes, static_cast<int64_t>(product));
  }
  const absl::StatusOr<std::string> text = accelerate::offload_index_text(*index);
  ABSL_CHECK_OK(text.status());
  const absl::StatusOr<accelerate::OffloadIndex> again = accelerate::parse_offload_index(*text);
  ABSL_CHECK_OK(again.status());
  ABSL_CHECK(*again == *index);
  return 0;
}
