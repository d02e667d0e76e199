/// The header of a safetensors file: its tensors and their positions.
///
/// A file is the length of its header (8 bytes, little endian), the header (JSON, padded with
/// spaces), and the bytes of the tensors without gaps: row by row, little endian. Only files
/// that follow these rules exactly are read: no file is trusted.
///
/// Errors:  DataLoss for a malformed file, InvalidArgument for tensors that cannot be written. They
///          name the file, and the tensor if there is one.
/// Threads: any.
/// Mirrors: safetensors, serialize and deserialize.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "accelerate/platform/file_system.h"

namespace accelerate {

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  /// BOOL, U8, I8, F8_E5M2, F8_E4M3, F8_E4M3FNUZ, F8_E5M2FNUZ, I16, U16, F16, BF16, I32, U32, F32,
  /// C64, F64, I64 or U64. In a file that is read also F4, F6_E2M3, F6_E3M2, F8_E8M0 or C128, whose
  /// values are not read.
  std::string dtype;
  /// Empty for a single number. All products fit into 63 bits, also those of dims beside a 0.
  std::vector<int64_t> shape;
  /// Bytes from the first tensor's first.
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  /// By position in the file.
  std::vector<SafetensorsEntry> tensors;
  std::optional<SafetensorsMetadata> metadata;
  /// Where `begin` 0 is in the file.
  int64_t data_offset = 0;
};

/// Bytes per element; 0 for what the format does not have, or we cannot hold.
int64_t safetensors_dtype_size(const std::string& dtype);

/// All that comes before the data, read from the file, of which at most 100 MB are taken.
absl::StatusOr<std::string> read_safetensors_start(const ReadableFile& file,
                                                   const std::string& path);

/// Reads no more of the file than that.
absl::StatusOr<SafetensorsHeader> read_safetensors_header(const ReadableFile& file,
                                                          const std::string& path);

/// The same for a file in memory, of which all that comes before the data is needed only. Errors do
/// not name the file.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(absl::string_view file_start,
                                                           int64_t file_size);

/// Puts the tensors in the order in which the reference writer has them (dtypes by falling
/// alignment, then names), and sets their positions from dtypes and shapes. Returns all that comes
/// before the data; the same bytes as the reference writer's.
/// Errors: also names that come twice or are not UTF-8.
absl::StatusOr<std::string> lay_out_safetensors(SafetensorsHeader& header);

namespace internal {

/// The metadata of a file that holds tensors and, unless it is empty, this JSON text of the other
/// values that their owner has.
SafetensorsMetadata state_metadata(const std::string& values);

/// The JSON text of state_metadata(); null where the header has none.
const std::string* find_state_values(const SafetensorsHeader& header);

}  // namespace internal
}  // namespace accelerate
