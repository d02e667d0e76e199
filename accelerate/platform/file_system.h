/// Files as the library sees them: the machine's own, or a simulated disk that can fail.
///
/// A file's bytes are durable after its `sync`, and a name (made, renamed or removed) after
/// `sync_directory` of its folder. A crash of the machine may lose everything else, in any order.
/// Renaming is atomic: at any time there is the old state or the new one.
///
/// Errors:  absl::Status naming the path: NotFound, PermissionDenied, ResourceExhausted (disk
///          full), DataLoss (the disk cannot read or write), AlreadyExists, FailedPrecondition (a
///          folder that is not empty, a file where a folder is expected, ...).
/// Threads: any; a WritableFile's `write_at` may run on several at once for ranges that are
///          disjoint, and so may a ScratchFile's `read_at` and `write_at`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "accelerate/base/status.h"

namespace accelerate {

struct FileInfo {
  bool is_directory = false;
  /// Bytes; 0 for folders.
  int64_t size = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  /// As it was when the file was opened.
  virtual int64_t size() const = 0;

  /// Fills `out` from `offset` on. Errors: OutOfRange if the file ends before.
  virtual absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const = 0;

  /// All its bytes without a copy, as long as anybody holds the result; they are not to be changed.
  /// A file that is cut short meanwhile by others kills the process that touches what is gone.
  virtual absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const = 0;
};

class WritableFile {
 public:
  /// Closes it; what was written is not lost, but errors are.
  virtual ~WritableFile() = default;

  /// Writes all of `data`, growing the file where needed; a gap reads as zeros.
  virtual absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) = 0;

  /// Advice: sync() will follow, and these bytes will not change before it, so that the disk may
  /// begin with them. Does not wait for it, unless its queue is full. sync() reports its errors.
  virtual void begin_sync(int64_t /*offset*/, int64_t /*size*/) {}

  /// Returns when all that was written is durable.
  virtual absl::Status sync() = 0;

  /// Call it once, last: some disks report only then that they are full.
  virtual absl::Status close() = 0;
};

/// A file without a name, for what does not fit in memory. It is not durable, and is gone when it
/// is closed or its process ends, in whatever way.
class ScratchFile {
 public:
  virtual ~ScratchFile() = default;

  /// As ReadableFile::read_at, also of bytes that were written since the file was opened.
  virtual absl::Status read_at(int64_t offset, absl::Span<std::byte> out) = 0;

  /// As WritableFile::write_at. The disk may be full although the bytes were written before.
  virtual absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;

  /// An empty file, also where there was one. The folder must exist.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;

  /// An empty ScratchFile in the folder of `path`, which must exist. No file gets or loses the name
  /// `path`; errors say it.
  virtual absl::StatusOr<std::unique_ptr<ScratchFile>> open_scratch(const std::string& path) = 0;

  virtual absl::StatusOr<FileInfo> info(const std::string& path) = 0;

  /// The names in a folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& directory) = 0;

  /// With all folders above it; no error where there is one.
  virtual absl::Status make_directories(const std::string& path) = 0;

  /// Replaces a file at `to`, and an empty folder there if `from` is a folder.
  virtual absl::Status rename(const std::string& from, const std::string& to) = 0;

  /// Swaps the names of two files or folders, at once. Errors: Unimplemented where the disk cannot.
  virtual absl::Status exchange(const std::string& first, const std::string& second) = 0;

  /// A file, or an empty folder.
  virtual absl::Status remove(const std::string& path) = 0;

  /// Makes the folder's names durable.
  virtual absl::Status sync_directory(const std::string& path) = 0;

  /// A name beside `path` that no other process or rank uses.
  virtual std::string temporary_name(const std::string& path) const = 0;

  /// How many threads profit from reading or writing at once; 1 where the order of operations is
  /// to be the same in each run.
  virtual int parallelism() const { return 1; }
};

/// Files that are another FileSystem's; what derives from it changes single operations. Threads:
/// those of the files below.
class ForwardingFiles : public FileSystem {
 public:
  /// `files` outlive this.
  explicit ForwardingFiles(FileSystem& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    return files_.open(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return files_.create(path);
  }
  absl::StatusOr<std::unique_ptr<ScratchFile>> open_scratch(const std::string& path) override {
    return files_.open_scratch(path);
  }
  absl::StatusOr<FileInfo> info(const std::string& path) override { return files_.info(path); }
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return files_.list(directory);
  }
  absl::Status make_directories(const std::string& path) override {
    return files_.make_directories(path);
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    return files_.rename(from, to);
  }
  absl::Status exchange(const std::string& first, const std::string& second) override {
    return files_.exchange(first, second);
  }
  absl::Status remove(const std::string& path) override { return files_.remove(path); }
  absl::Status sync_directory(const std::string& path) override {
    return files_.sync_directory(path);
  }
  std::string temporary_name(const std::string& path) const override {
    return files_.temporary_name(path);
  }
  int parallelism() const override { return files_.parallelism(); }

 private:
  FileSystem& files_;
};

/// Files that are not made durable: what a process wrote survives the process, but perhaps not the
/// machine.
class UnsyncedFiles final : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::Status sync_directory(const std::string& /*path*/) override { return absl::OkStatus(); }
};

/// Local, like all below. Errors: as FileSystem's.
absl::StatusOr<std::string> read_file(FileSystem& files, const std::string& path);

/// The first `size` bytes of a file, or all of a shorter one.
absl::StatusOr<std::string> read_start(const ReadableFile& file, int64_t size);

/// What `parse` makes of a whole file. Errors: also those of `parse`, with the path before them.
template <typename Parse>
auto read_file_as(FileSystem& files, const std::string& path, Parse&& parse)
    -> decltype(parse(std::string())) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::string text, read_file(files, path));
  return in_file(path, parse(text));
}

/// As FileSystem::make_directories, and the names of the folders that it made are durable.
absl::Status make_directories_durably(FileSystem& files, const std::string& path);

/// Writes a whole file under its name, durably but for that; see FileSystem::sync_directory. The
/// folder must exist.
absl::Status write_durably(FileSystem& files, const std::string& path, std::string_view contents);

/// Writes a whole file, durably: it appears with all its contents or not at all. Missing folders
/// are made.
absl::Status write_file(FileSystem& files, const std::string& path, std::string_view contents);

/// Whether there is a file or folder. Errors: other than NotFound.
absl::StatusOr<bool> exists(FileSystem& files, const std::string& path);

/// Removes a file, or a folder with its contents; no error if it does not exist.
absl::Status remove_all(FileSystem& files, const std::string& path);

/// `folder`/`name`.
std::string join_path(const std::string& folder, const std::string& name);

/// The path before the last name; "." where there is one name only.
std::string parent_path(const std::string& path);

}  // namespace accelerate
