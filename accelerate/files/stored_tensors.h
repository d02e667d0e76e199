/// The tensors that an object has in a checkpoint: in one file, or divided among the files that
/// ranks wrote (see sharded_metadata.h). A reader can ask for any box of a tensor; the file that
/// has the values is found by the metadata.
///
/// Files are opened when something in them is read.
/// Errors:  CheckpointError naming the file, and the tensor where there is one.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// What is known of a file from elsewhere, to verify what is read of it.
struct StoredFile {
  std::string path;
  /// With `tensors`, each of them is verified; without them, a file of which all is read.
  std::optional<SafetensorsChecksums> checksums = std::nullopt;
  std::optional<uint32_t> crc32c = std::nullopt;
};

class StoredTensors {
 public:
  /// One file with all of them.
  StoredTensors(FileSystem& files, const StoredFile& file);

  /// `find`: the file of a name that the metadata has; throws for one that does not exist.
  StoredTensors(FileSystem& files, ShardedMetadata metadata,
                std::function<StoredFile(const std::string& name)> find);

  const std::map<std::string, ShardedTensor>& tensors() const { return metadata_.tensors; }
  /// What the object has besides them, as JSON text; empty: nothing.
  const std::string& values() const { return metadata_.values; }
  /// How many parts rows are divided into; 1 for one file.
  int64_t num_parts() const;
  /// Whether ranks that read one of so many parts of the rows each, and what is not divided, read
  /// all files whole.
  bool is_in_row_parts(int64_t parts) const;

  struct Part {
    std::string name;
    Box box;
    /// Has the box's sizes, and any device, dtype and strides.
    at::Tensor into;
  };
  /// Reads boxes of tensors, and nothing else but the heads of files. What is read whole of a file
  /// whose checksum is known is verified.
  void read(const std::vector<Part>& parts);

  /// Where ranks read other parts than were written, some files may not have been read whole by any
  /// rank: each of `ranks` ranks verifies a share of what it has not verified in read().
  void verify_share(int rank, int ranks);

 private:
  // What is read of one file.
  struct FileBox {
    std::string key;
    Box box;  // of the file's tensor
    at::Tensor into;
    bool is_whole = false;
  };

  absl::StatusOr<SafetensorsFile> open(const std::string& name, const StoredFile& file) const;
  absl::Status verify_whole(const std::string& name, const StoredFile& stored) const;
  void read_file(const std::string& name, const std::vector<FileBox>& wanted);
  absl::Status read_once(const std::string& name, const StoredFile& file,
                         const std::vector<FileBox>& wanted);
  std::set<std::string> file_names() const;

  FileSystem& files_;
  ShardedMetadata metadata_;
  const std::function<StoredFile(const std::string& name)> find_;
  std::optional<SafetensorsFile> one_file_;
  // Files, and of files whose tensors have checksums "file/tensor".
  std::set<std::string> verified_;
};

}  // namespace accelerate
