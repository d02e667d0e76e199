/// Where a dispatched model's offloaded tensors come from, as sources of the residency engine: host
/// memory, from which they are copied, and files, from which they are read; and where gradients go.
///
/// Copies to the device go on a stream of their own. Where the device has no room for a group
/// beside the one in use, it is copied when its turn comes, in place of that. A file is read into
/// page-locked host memory by a task in the background, so that the device computes meanwhile: with
/// a device, the group after the one that is copied is being read, also when a pass has ended. Two
/// such buffers are enough.
///
/// Errors:  CheckpointError naming the file and the tensor, if it cannot be read or has changed its
///          size; c10::OutOfMemoryError. The source can be asked again afterwards.
/// Threads: as ParameterSource.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/big_model/offloaded_file.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/side_stream.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {

/// One tensor in a file.
class StoredWeight {
 public:
  /// `entry` as in the index of `folder`. Opens the file to see whether it is there and of the
  /// right size. `files` outlives this. The bytes are those that the file has now, whatever this
  /// rank offloads into the folder later. Errors: c10::ValueError if its shape is not `sizes`, and
  /// for an entry of a .dat file without a folder.
  StoredWeight(FileSystem& files, const std::string& folder, std::string name,
               const OffloadedTensor& entry, at::IntArrayRef sizes);
  /// The same of a .dat file.
  StoredWeight(std::shared_ptr<OffloadedFile> file, std::string name, at::IntArrayRef sizes);
  /// What a tensor without memory was offloaded with before, if that is in the folder.
  static std::optional<StoredWeight> find(const at::Tensor& tensor, const std::string& name,
                                          const std::string& folder);

  /// The .dat file; null for a weight in a safetensors file.
  const std::shared_ptr<OffloadedFile>& file() const { return file_; }
  /// Values are converted to the model's dtype, and codes are not. Errors: c10::ValueError.
  void check_becomes(at::ScalarType dtype) const;

  at::ScalarType dtype() const { return dtype_; }
  const std::string& path() const { return path_; }
  /// Into a contiguous tensor on the CPU of its dtype and sizes.
  void read(const at::Tensor& into) const;
  /// The same into a tensor of its own, in the dtype of `like`, whose sizes it has.
  at::Tensor values(const at::Tensor& like) const;
  /// On the CPU, mapped: not to be written to.
  at::Tensor map() const;

 private:
  void check_sizes(at::IntArrayRef stored, at::IntArrayRef sizes) const;

  std::string name_, path_, name_in_file_;
  std::shared_ptr<OffloadedFile> file_;
  at::ScalarType dtype_ = at::kFloat;
  std::optional<SafetensorsFile> safetensors_;
};

/// One tensor that a source makes.
struct OffloadedTensorPlan {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;  ///< in memory
};

/// Where sources make tensors.
struct SourcePlace {
  c10::Device device;
  std::shared_ptr<SideStream> copies;
  /// Called before memory is asked for.
  std::function<void()> make_room;
  /// Called when there was too little: frees all groups that no operator uses.
  std::function<void()> free_unused;
};

/// Tensors in host memory. `homes`: contiguous, of the dtypes that they have on the device;
/// page-locked if copies are to go on beside the host.
std::unique_ptr<ParameterSource> make_host_source(std::vector<at::Tensor> homes, SourcePlace place);

class FileSource;

/// What the sources of one model that read files have in common: the buffers, and which group is
/// read next.
class FileReading {
 public:
  FileReading(Runtime& runtime, SourcePlace place);
  ~FileReading();
  FileReading(const FileReading&) = delete;
  FileReading& operator=(const FileReading&) = delete;

  std::unique_ptr<ParameterSource> make_source(std::vector<StoredWeight> weights,
                                               std::vector<OffloadedTensorPlan> tensors);

  /// Whether groups are read before they are asked for: in passes that no backward pass follows.
  void set_reads_ahead(bool reads_ahead);
  /// A pass has ended: begins to read the group that the next one will use first.
  void end_pass() { read_ahead(first_of_pass_); }

 private:
  friend class FileSource;
  class Read;

  // A group begins to be made; returns its read, which has begun.
  std::unique_ptr<Read> start_read(FileSource& source);
  // Begins to read that group, unless one is being read; null: it is not known.
  void read_ahead(FileSource* next);
  std::unique_ptr<Read> start(FileSource& source);
  void stop_reading_ahead();
  // The read's values are not used; its buffer is free.
  void stop(std::unique_ptr<Read> read);
  at::Tensor take_buffer();

  Runtime& runtime_;
  const SourcePlace place_;
  bool reads_ahead_ = false;
  FileSource* last_ = nullptr;  // that was begun
  FileSource* first_of_pass_ = nullptr;
  bool pass_begins_ = true;
  FileSource* coming_ = nullptr;  // what is read before it is asked for
  std::unique_ptr<Read> coming_read_;
  struct Buffer {
    at::Tensor bytes;
    std::optional<SideStream::Mark> used_until;
  };
  std::vector<Buffer> buffers_;  // those that are free; the one that is so for the longest first
  int num_buffers_ = 0;
  int64_t buffer_bytes_ = 0;
};

// ---- Gradients of parameters that are on a device only while they are used. LibTorch's backward
//      threads call the hook; the rest is for the rank's thread.

/// The parameter's gradients are added up in that of `home`, on the CPU, and the parameter has none
/// itself. A hook that it has already goes first. `home` is undefined for a parameter in a file: a
/// gradient of it is a c10::ValueError of the backward pass, naming it.
void set_gradient_home(const at::Tensor& parameter, std::string name, at::Tensor home);

/// The parameter has gradients, and the hook it had, itself again.
void end_gradient_home(const at::Tensor& parameter);

}  // namespace accelerate::internal
