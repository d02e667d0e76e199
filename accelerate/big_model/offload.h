/// Weights that lie in a folder instead of memory, a file each, and maps that read them by name.
///
///   const OffloadIndex index = {{"w", offload_weight(files, weight, "w", folder)}};
///   save_offload_index(files, index, folder);
///   OffloadedWeightsLoader weights(files, {.save_folder = folder});
///   weights.get("w");
///
/// The folder's files are described in offload_index.h. Other libraries write and read the same.
/// Tensors that are read lie in the file until they are used: they are maps of it, are not to be
/// written to, and stay valid after everything else. Slices of them read no more than they show.
///
/// Errors:  c10::ValueError for tensors that cannot be written (undefined, sparse, on the meta
///          device, or of a dtype that the format lacks), and for names that are not there;
///          CheckpointError naming the file if it is damaged, and if the disk fails.
/// Threads: any, unless a function says otherwise.
/// Mirrors: accelerate utils/offload.py.
/// Differs: a file appears complete and durable, or not at all; a file's size must be that of its
///          index entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {
namespace internal {
class OffloadedFile;
}  // namespace internal

/// Writes `offload_folder`/{weight_name}.dat and returns its entry of the index; the folder is made
/// where there is none. Memory beyond the tensor's: a few MiB, or a copy if its elements are not
/// row by row. Local.
OffloadedTensor offload_weight(FileSystem& files, const at::Tensor& weight,
                               const std::string& weight_name, const std::string& offload_folder);

/// The tensor of a .dat file, on the CPU, mapped. Local.
at::Tensor load_offloaded_weight(FileSystem& files, const std::string& weight_file,
                                 const OffloadedTensor& weight_info);

/// Writes all tensors, and the index, into which the entries are merged. A failure leaves what was
/// in the folder, unless it comes while the files get their names: then each is the old one or the
/// new one, and one of another size than the index says is an error for whoever reads it. Local.
void offload_state_dict(FileSystem& files, const std::string& save_dir,
                        const NamedTensors& state_dict);

/// Reads the tensors of the index from the folder into the model, on the CPU; those that had no
/// memory, or some elsewhere, get it. The model is unchanged after an error. Local.
/// Threads: the rank's thread.
/// Errors:  also c10::ValueError naming a tensor that the model lacks, or has in another shape.
void load_offloaded_weights(FileSystem& files, torch::nn::Module& model, const OffloadIndex& index,
                            const std::string& offload_folder);

/// Tensors by name, read when they are asked for.
class WeightsMap {
 public:
  virtual ~WeightsMap() = default;

  /// Errors: c10::ValueError for a name that is not there.
  virtual at::Tensor get(const std::string& key) const = 0;
  virtual bool contains(const std::string& key) const = 0;
  virtual const std::vector<std::string>& keys() const = 0;
  size_t size() const { return keys().size(); }
};

struct OffloadedWeightsLoaderOptions {
  /// Tensors in memory, which have priority over files.
  NamedTensors state_dict;
  /// The folder of .dat files; empty for none. Whatever this rank writes there later, the loader
  /// gives the tensors of files that were there when it was made.
  std::string save_folder;
  /// Absent: the folder's own.
  std::optional<OffloadIndex> index;
  /// Where tensors of safetensors files go. Absent: they stay on the CPU, mapped.
  std::optional<c10::Device> device;
};

class OffloadedWeightsLoader final : public WeightsMap {
 public:
  /// `files` outlives this. Errors: c10::ValueError without any source.
  OffloadedWeightsLoader(FileSystem& files, OffloadedWeightsLoaderOptions options);
  ~OffloadedWeightsLoader() override;

  at::Tensor get(const std::string& key) const override;
  bool contains(const std::string& key) const override;
  /// Those in memory, then those of the index, each once.
  const std::vector<std::string>& keys() const override { return keys_; }

 private:
  FileSystem& files_;
  const std::string folder_;
  const std::optional<c10::Device> device_;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, at::Tensor> in_memory_;
  std::unordered_map<std::string, OffloadedTensor> in_files_;
  std::unordered_map<std::string, std::shared_ptr<internal::OffloadedFile>> dat_files_;
  mutable absl::Mutex mutex_;
  mutable std::map<std::string, SafetensorsFile> open_ ABSL_GUARDED_BY(mutex_);
};

/// Another map's tensors whose names begin with `prefix`, asked for without it.
/// Differs: size() is the number of keys(), not that of the other map.
class PrefixedDataset final : public WeightsMap {
 public:
  PrefixedDataset(std::shared_ptr<const WeightsMap> dataset, std::string prefix);

  at::Tensor get(const std::string& key) const override;
  bool contains(const std::string& key) const override;
  /// With the prefix.
  const std::vector<std::string>& keys() const override { return keys_; }

 private:
  const std::shared_ptr<const WeightsMap> dataset_;
  const std::string prefix_;
  std::vector<std::string> keys_;
};

namespace internal {

/// Several .dat files that appear together: they and the folder's new index are written under
/// temporary names, which commit() replaces by their own at the very end, the index's last. What is
/// not committed is removed. A disk that fails while names are replaced leaves each file as it was
/// or as it is now, and an index whose sizes tell those apart that have changed them.
/// Errors:  absl::Status, naming the file.
/// Threads: one at a time.
class OffloadWriter {
 public:
  /// `files` outlives this. The folder is made by the first file.
  OffloadWriter(FileSystem& files, std::string folder);
  ~OffloadWriter();
  OffloadWriter(const OffloadWriter&) = delete;
  OffloadWriter& operator=(const OffloadWriter&) = delete;

  /// Begins the file of a tensor; its elements follow by write(), and then end().
  absl::Status begin(const std::string& name, at::ScalarType dtype, at::IntArrayRef sizes);
  /// The next elements: contiguous, on the CPU, and of the tensor's dtype.
  absl::Status write(const at::Tensor& elements);
  absl::Status end();
  /// A whole tensor of any layout and device. Memory beyond it: a few MiB, or a copy if its
  /// elements are not row by row.
  absl::Status write_tensor(const std::string& name, const at::Tensor& tensor);

  /// Nothing happens without files. Models of this rank that read files which are replaced keep
  /// those that they had (offloaded_file.h); a warning names what is replaced.
  absl::Status commit();
  /// The same without the index and the warning.
  absl::Status commit_files();

  /// With checksums.
  const OffloadIndex& index() const { return index_; }

 private:
  FileSystem& files_;
  const std::string folder_;
  OffloadIndex index_;
  std::vector<std::string> temporary_;  // of index_
  std::unique_ptr<WritableFile> file_;
  int64_t written_ = 0;
  size_t committed_ = 0;
};

/// As offload_state_dict; returns the entries of what was written, with checksums.
OffloadIndex offload_tensors(FileSystem& files, const std::string& save_dir,
                             const NamedTensors& tensors);

/// Elements that are copied at once where a tensor goes through host memory: 4 MiB of them.
int64_t elements_at_once(at::ScalarType dtype);

}  // namespace internal
}  // namespace accelerate
