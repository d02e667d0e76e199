/// W&B's transaction log as a file: records of bytes, framed and checked.
///
/// The file begins with ":W&B", a magic number and a version. After it come LevelDB's log blocks
/// of 32 KiB: a record is cut where a block ends, and each piece has the CRC-32 (zlib's, not
/// LevelDB's) of its type and bytes, its length and its type. A file that ends in the middle of a
/// piece is good up to the record before.
/// Errors:  std::runtime_error naming the file. What could not be written is written by the next
///          `flush`, up to 64 MiB of it; records beyond are lost.
/// Threads: one.
/// Mirrors: wandb sdk/internal/datastore.py, DataStore.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "accelerate/platform/file_system.h"

namespace accelerate::trackers {

class RecordLog {
 public:
  static constexpr size_t kBlockBytes = 32768;

  /// `file`: an empty one, at `path`.
  RecordLog(std::unique_ptr<WritableFile> file, std::string path);

  void append(std::string_view record);

  /// Writes another record over the last one. `record`: at least as long.
  void replace_last(std::string_view record);
  size_t last_size() const { return last_size_; }

  /// Returns when a process that dies loses nothing any more.
  void flush();

  /// Flushes, and waits for the disk. Last.
  void close();

 private:
  void frame(std::string_view record);
  void add_piece(int type, std::string_view bytes);
  size_t room() const;

  const std::unique_ptr<WritableFile> file_;
  const std::string path_;
  std::string unwritten_;
  int64_t written_ = 0;  // where those bytes belong
  int64_t last_ = 0;     // where the last record begins
  size_t last_size_ = 0;
};

}  // namespace accelerate::trackers
