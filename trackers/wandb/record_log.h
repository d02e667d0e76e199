/// Writes W&B's transaction log: framed records with checksums.
///
/// The file begins with ":W&B", a magic number and a version. It continues with LevelDB's log
/// blocks of 32 KiB: a record is split at the end of a block, and each piece has the CRC-32
/// (zlib's, not LevelDB's) of its type and bytes, its length and its type. If a file ends in the
/// middle of a piece, the records before are valid.
/// Errors: std::runtime_error naming the file. The next `flush` writes bytes that could not be
///         written, up to 64 MiB; further records are lost.
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

  /// `file`: an empty file at `path`.
  RecordLog(std::unique_ptr<WritableFile> file, std::string path);

  void append(std::string_view record);

  /// Overwrites the last record. `record` must be at least as long.
  void replace_last(std::string_view record);
  size_t last_size() const { return last_size_; }

  /// Returns when all records survive the end of the process.
  void flush();

  /// Flushes and syncs. The last call.
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
