// Any bytes are either refused, or a header that describes them fully and can be written again.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "accelerate/files/formats/safetensors_header.h"

namespace accelerate {
namespace {

// All but where a tensor is.
std::multiset<std::string> contents_of(const SafetensorsHeader& header) {
  std::multiset<std::string> contents;
  for (const SafetensorsEntry& entry : header.tensors) {
    std::string text = entry.name + "\n" + entry.dtype;
    for (const int64_t size : entry.shape) text += " " + std::to_string(size);
    contents.insert(std::move(text));
  }
  return contents;
}

void check(const SafetensorsHeader& header, int64_t file_size) {
  int64_t position = 0;
  bool can_be_written = true;
  for (const SafetensorsEntry& entry : header.tensors) {
    ABSL_CHECK_EQ(entry.begin, position);
    int64_t bytes = safetensors_dtype_size(entry.dtype);
    if (bytes == 0) {
      can_be_written = false;
    } else {
      for (const int64_t size : entry.shape) bytes *= size;
      ABSL_CHECK_EQ(entry.end, entry.begin + bytes);
    }
    position = entry.end;
  }
  ABSL_CHECK_EQ(header.data_offset + position, file_size);
  if (!can_be_written) return;

  SafetensorsHeader copy = header;
  const absl::StatusOr<std::string> start = lay_out_safetensors(copy);
  ABSL_CHECK_OK(start.status());
  ABSL_CHECK_EQ(copy.data_offset, static_cast<int64_t>(start->size()));
  const absl::StatusOr<SafetensorsHeader> again =
      parse_safetensors_header(*start, copy.data_offset + position);
  ABSL_CHECK_OK(again.status());
  ABSL_CHECK(again->metadata == header.metadata);
  ABSL_CHECK(contents_of(*again) == contents_of(header));
}

void parse(absl::string_view file) {
  const auto size = static_cast<int64_t>(file.size());
  const absl::StatusOr<SafetensorsHeader> header = parse_safetensors_header(file, size);
  if (header.ok()) check(*header, size);
}

// With the length that makes the last brace the header's end: few bytes have the right one.
std::string with_length(absl::string_view file) {
  std::string result(file);
  const size_t brace = result.rfind('}');
  if (result.size() < 8 || brace == result.npos || brace < 8) return result;
  const uint64_t length = brace + 1 - 8;
  for (int i = 0; i < 8; ++i) result[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return result;
}

}  // namespace
}  // namespace accelerate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  accelerate::parse(file);
  accelerate::parse(accelerate::with_length(file));
  return 0;
}
