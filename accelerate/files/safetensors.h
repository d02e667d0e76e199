/// Tensors in safetensors files: written with checksums, and read whole, in part, or in place.
///
/// Written are bool, signed and unsigned integers, half, bfloat16, float, double, float8_e5m2 and
/// float8_e4m3fn; all others (complex, quantised, float8 *fnuz*, ...) and sparse and meta tensors
/// are refused. Complex float and float8 *fnuz* are read as well. A tensor of another dtype in a
/// file (F4, F8_E8M0, ...) is an error that names it where it is asked for; the others are read.
///
/// Checksums are CRC-32C of a tensor's bytes in the file. They are computed while the bytes pass
/// anyway. Where FileSystem::parallelism() allows, several threads share the work; otherwise all
/// happens on the caller's, in the order of the file.
///
/// Errors:  absl::Status, naming the file, and the tensor where there is one. DataLoss for a file
///          that is damaged, InvalidArgument for tensors that do not suit, NotFound for names, and
///          what the FileSystem answers.
/// Threads: any.
/// Mirrors: safetensors, safe_open, save_file and load_file.
/// Differs: tensors that share memory are written once for each name (see save_model for the
///          choice among them); unsigned integers of more than 8 bits are written.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// The format's name of a dtype. C64, F8_E4M3FNUZ and F8_E5M2FNUZ are read and not written: files
/// of HF Accelerate lack them. Errors: InvalidArgument for a dtype that is not written.
absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype);
/// Errors: Unimplemented naming the dtype.
absl::StatusOr<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype);

/// CRC-32C.
struct SafetensorsChecksums {
  /// Covers all bytes before the data.
  uint32_t header = 0;
  std::map<std::string, uint32_t> tensors;
};

struct WrittenFile {
  int64_t size = 0;
  /// Covers the whole file.
  uint32_t crc32c = 0;
  SafetensorsChecksums checksums;
};

struct WriteOptions {
  /// Whether the bytes are durable afterwards; the name is only after sync_directory.
  bool sync = true;
  /// Called with the number of bytes written since the last call; one call at a time, on any of the
  /// threads that write.
  std::function<void(int64_t)> progress;
};

/// Local. Writes a file of all the tensors at `path`, whose folder must exist, in the order of the
/// reference writer. `metadata`: nullopt for a file without. Contiguous CPU tensors are not copied,
/// others in pieces of a few MiB. If it fails, what was written so far stays there.
absl::StatusOr<WrittenFile> write_safetensors(FileSystem& files, const std::string& path,
                                              const NamedTensors& tensors,
                                              const std::optional<SafetensorsMetadata>& metadata,
                                              const WriteOptions& options = {});

/// An open file: any number of reads, also at the same time. Copies share it.
class SafetensorsFile {
 public:
  /// Local. `expected`: what write_safetensors returned, kept elsewhere. With it, the header is
  /// verified here, and tensors whenever they are read. What does not match is read once more
  /// before it counts as lost.
  static absl::StatusOr<SafetensorsFile> open(
      FileSystem& files, const std::string& path,
      std::optional<SafetensorsChecksums> expected = std::nullopt);

  const SafetensorsHeader& header() const;

  /// Local. The tensor as it lies in the file, without a copy (where the file has it at an odd
  /// position, a copy). It is not verified, not to be written to, and valid after this object.
  absl::StatusOr<at::Tensor> map(const std::string& name) const;

  /// map(name)[.., begin:end, ..] along `dim`, of which nothing else is read.
  absl::StatusOr<at::Tensor> slice(const std::string& name, int64_t dim, int64_t begin,
                                   int64_t end) const;

  /// Local. Reads tensors into others of the same shape, of any device, dtype and strides; also
  /// into those that require gradients. Where destinations share memory the last one counts.
  /// After an error their contents are undefined.
  absl::Status read_into(const NamedTensors& destinations) const;

  /// Local. The same for all tensors of the file, and verifies the whole file by its checksum.
  /// Tensors without a destination are verified only. Errors: DataLoss if the checksum is another.
  absl::Status read_whole_file(const NamedTensors& destinations, uint32_t file_crc32c) const;

  /// Local. Reads a box of a tensor into a tensor of the box's sizes, of any device, dtype and
  /// strides, and no other bytes of the file. They are not verified.
  absl::Status read_box(const std::string& name, const Box& box, const at::Tensor& into) const;

  /// Local. Reads elements of a tensor, counted row by row, from number `first` on, into a
  /// contiguous vector on the CPU of the tensor's dtype. They are not verified.
  absl::Status read_elements(const std::string& name, int64_t first, const at::Tensor& out) const;

  /// Local. Fresh tensors on `device`, by position in the file.
  absl::StatusOr<NamedTensors> read_all(c10::Device device = c10::kCPU) const;

  /// Local. Reads everything and keeps nothing. Errors: FailedPrecondition without `expected`.
  absl::Status verify() const;
  /// The same for some tensors.
  absl::Status verify(const std::vector<std::string>& names) const;

 private:
  struct Contents;
  explicit SafetensorsFile(std::shared_ptr<const Contents> contents);

  std::shared_ptr<const Contents> contents_;
};

namespace internal {

/// A StateDict in one file: its tensors as safetensors, its values as JSON in the metadata.
/// Errors: CheckpointError naming the file.

/// The values beside a file's tensors; nothing where there are none.
std::optional<nlohmann::ordered_json> state_values(const SafetensorsFile& file,
                                                   const std::string& path);

/// The values of a file without tensors.
nlohmann::ordered_json parse_state_values(const std::string& text, const std::string& path);

}  // namespace internal
}  // namespace accelerate
