/// The index of a folder with offloaded weights: which tensors are there, and what their bytes are.
///
///   index.json   {"layer.weight": {"dtype": "float32", "shape": [2, 3]}, ...}
///   layer.weight.dat
///
/// A tensor's file is its name with ".dat", and holds its elements row by row, little endian, and
/// nothing else; that of a tensor without elements is one byte. A single number has the shape [].
/// An entry may name a tensor of a safetensors file instead: {"safetensors_file": path,
/// "weight_name": name, "dtype": name}, of which the last two are optional.
///
/// An index file is not trusted: its names and paths stay in its own folder, and its sizes fit into
/// memory. Entries that a program makes may name safetensors files anywhere.
///
/// Errors:  absl::Status: DataLoss naming what is wrong with a text, and the file if there is one;
///          InvalidArgument for entries that cannot be in an index; the FileSystem's.
/// Threads: values. Needs no LibTorch.
/// Mirrors: accelerate utils/offload.py, the files of offload_weight and save_offload_index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

inline constexpr char kOffloadIndexName[] = "index.json";

struct OffloadedTensor {
  /// "float32", "bfloat16", "float8_e4m3fn", "int64", "bool", ...: NumPy's name, or PyTorch's of a
  /// dtype that NumPy lacks. For a tensor in a safetensors file it is the dtype in which it is
  /// used; empty for that of the file.
  std::string dtype;
  /// Always empty for a tensor in a safetensors file.
  std::vector<int64_t> shape;
  /// Empty for a tensor in a .dat file.
  std::string safetensors_file;
  /// The tensor's name in that file; empty if it is the one in the index.
  std::string weight_name;
  /// CRC-32C of the elements in the .dat file, where this program wrote them; no index file has it.
  std::optional<uint32_t> crc32c = std::nullopt;

  bool operator==(const OffloadedTensor&) const = default;
};

/// In the order of the file. Names are distinct.
using OffloadIndex = std::vector<std::pair<std::string, OffloadedTensor>>;

/// Bytes per element; 0 for a name that no index has.
int64_t offload_dtype_size(absl::string_view dtype);

/// The bytes of the tensor's elements.
absl::StatusOr<int64_t> offloaded_bytes(const OffloadedTensor& tensor);

/// Whether a .dat file of `file_bytes` can have elements of so many bytes. NumPy cannot map an
/// empty file, so that HF Accelerate writes a byte where there are no elements; files without it
/// are read.
bool is_offloaded_file_size(int64_t file_bytes, int64_t element_bytes);

/// The name of a tensor's file in the folder. Errors: InvalidArgument for a tensor whose name is
/// not part of a plain file name.
absl::StatusOr<std::string> offload_file_name(const std::string& tensor);

/// As Python's json.dump writes it, with an indent of 2.
absl::StatusOr<std::string> offload_index_text(const OffloadIndex& index);

/// Paths of safetensors files are relative to the folder of the index.
absl::StatusOr<OffloadIndex> parse_offload_index(absl::string_view text);

/// The index of a folder; its safetensors files are paths from here.
absl::StatusOr<OffloadIndex> read_offload_index(FileSystem& files, const std::string& folder);

/// The text of the folder's index with these entries in it, as save_offload_index writes it.
absl::StatusOr<std::string> merged_offload_index(FileSystem& files, const OffloadIndex& index,
                                                 const std::string& folder);

/// Writes the entries into the folder's index, durably: they replace those of the same name, and
/// what else is there stays. Nothing happens without entries. Local.
///
/// Two writers at once each leave a complete index; the entries of one of them may be missing.
/// Errors: also InvalidArgument for safetensors files outside of the folder, which
///         read_offload_index would refuse.
absl::Status save_offload_index(FileSystem& files, const OffloadIndex& index,
                                const std::string& folder);

}  // namespace accelerate
