/// A file that grows by whole records, and begins with what an earlier run left in it.
///
///   AppendFile file(files, "logs/metrics.jsonl");
///   file.append("{\"loss\":0.5}\n");
///   file.flush();   // what was appended outlives the process
///   file.finish();  // ... and the machine
///
/// An earlier file is copied without its torn end to a temporary name, synced and renamed: at any
/// time there is the old file or the new one. What is appended is written by `flush`, or as soon as
/// there is much of it, and synced by `finish` alone.
/// Where a write fails, as on a full disk, the records wait and the next `flush` writes them again
/// at the same place. In between the file ends with a whole record: what the disk took of another
/// is written over with filler.
/// Errors:  std::runtime_error naming the path. The file can be used on; records beyond `capacity`
///          are lost, and said to be.
/// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/platform/file_system.h"

namespace accelerate::trackers {

/// Without what comes after the last newline, and without lines with zero bytes, which a machine
/// that died leaves for pages that it did not write.
std::string whole_lines(std::string_view contents);

struct AppendFileOptions {
  /// The first record of a file in which there is nothing.
  std::string header;
  /// What this file begins with, of an earlier one's contents.
  std::function<std::string(std::string_view contents)> keep = whole_lines;
  /// Of that many bytes, at least one; readers skip it.
  std::function<std::string(size_t size)> filler = [](size_t size) {
    return std::string(size, '\n');
  };
  /// Bytes of records that wait for a disk that has no room for them.
  size_t capacity = size_t{64} << 20;
};

class AppendFile {
 public:
  /// Does nothing to the disk yet.
  AppendFile(FileSystem& files, std::string path, AppendFileOptions options = {});

  const std::string& path() const { return path_; }

  /// Makes the file, if this did not happen yet. `flush` does it too.
  void open();

  bool is_open() const { return file_ != nullptr; }

  /// For files that are begun from now on.
  void set_header(std::string header) { options_.header = std::move(header); }

  void append(std::string_view record);
  void flush();

  /// Flushes, and replaces the file by what `change` makes of its contents; as whole as a copy.
  void rewrite(const std::function<std::string(std::string_view contents)>& change);

  /// Flushes, and has no file open until there is more to be written; that costs a copy.
  void release();

  /// Flushes and syncs. Last.
  void finish();

 private:
  absl::Status begin();
  absl::Status replace(const std::string& contents);
  absl::Status check_ours();
  absl::Status write_records();
  absl::Status write(std::string_view data);
  void hide_torn_record();
  void close();

  FileSystem& files_;
  const std::string path_;
  AppendFileOptions options_;
  std::unique_ptr<WritableFile> file_;
  int64_t end_ = 0;   // of the last whole record
  int64_t size_ = 0;  // of the file: more where there is filler
  std::string waiting_;
  std::deque<size_t> record_sizes_;  // of those in `waiting_`
  bool failed_ = false;              // the last write did
  uint64_t lost_ = 0;                // records
};

}  // namespace accelerate::trackers
