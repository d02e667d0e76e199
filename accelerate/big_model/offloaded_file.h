/// A .dat file that is read for as long as a model lives.
///
/// Another model may be offloaded into the same folder meanwhile. In one rank each keeps its
/// values: a file is opened, and stays open, before another one takes its name. That holds also for
/// a model that is on the meta device since it was loaded, or since its handle went. Where another
/// process replaced it, the checksum of what was written tells; it is an error then, never another
/// model's value.
///
/// Errors:  absl::Status and CheckpointError, naming the file: NotFound and those of the disk;
///          DataLoss for a file of another size, or with other bytes.
/// Threads: any; make() the rank's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/platform/file_system.h"

namespace accelerate::internal {

class OffloadedFile {
 public:
  /// The file of the tensor `name` in the folder. It need not be there yet. `files` outlives this.
  static std::shared_ptr<OffloadedFile> make(FileSystem& files, const std::string& folder,
                                             const std::string& name, OffloadedTensor entry);
  /// One that no rank knows, whose name others may take.
  OffloadedFile(FileSystem& files, std::string path, OffloadedTensor entry);

  const std::string& path() const { return path_; }
  const OffloadedTensor& entry() const { return entry_; }
  bool is_in(const std::string& folder) const;
  /// Whether the file is there, and of the right size.
  absl::Status check() const;
  /// All elements' bytes.
  absl::Status read(absl::Span<std::byte> out) const;
  /// The tensor on the CPU, mapped: not to be written to, and valid after this object.
  at::Tensor map() const;
  /// Keeps the present file open, so that a later file of the same name does not replace its
  /// values. Does nothing if there is no file.
  absl::Status pin();

 private:
  absl::StatusOr<std::shared_ptr<const ReadableFile>> open() const;
  absl::Status check_bytes(absl::Span<const std::byte> bytes) const;

  FileSystem& files_;
  const std::string path_;
  const OffloadedTensor entry_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ReadableFile> pinned_ ABSL_GUARDED_BY(mutex_);
};

/// From now on, and while its storage lives, a tensor without memory is known to have its values in
/// this file: a model that was offloaded, and is to be so again. Nothing happens without a Runtime.
void register_offloaded(const at::Tensor& tensor, std::shared_ptr<OffloadedFile> file);
/// Null for other tensors.
std::shared_ptr<OffloadedFile> find_offloaded_file(const at::Tensor& tensor);

/// Pins the files of this rank's living models that are at these paths.
absl::Status pin_offloaded_files(const std::vector<std::string>& paths);

/// The name that an index of offloaded weights has for a dtype. Errors: c10::ValueError naming the
/// tensor.
std::string offload_dtype(at::ScalarType dtype, const std::string& tensor);
/// The dtype of that name in an index.
at::ScalarType scalar_type_of_offloaded(const std::string& dtype);

}  // namespace accelerate::internal
