/// Appends whole records to a file, behind the records of earlier runs.
///
///   AppendFile file(files, "logs/metrics.jsonl");
///   file.append("{\"loss\":0.5}\n");
///   file.flush();   // the records survive the end of the process
///   file.finish();  // ... and of the machine
///
/// An earlier file is copied without its torn end to a temporary name, synced and renamed, so that
/// at any time the old file or the new one exists. Records are written by `flush`, or when there
/// are many, and synced by `finish` alone. If a write fails, for example on a full disk, the
/// records wait, and the next `flush` writes them to the same place. Until then the file ends with
/// a whole record: filler replaces the part of a record that was written. Errors:
/// std::runtime_error naming the path; the file stays usable. Records beyond `capacity` are
///          lost, which an error reports.
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

/// The contents without an unfinished last line, and without lines with zero bytes, which a machine
/// failure leaves in place of unwritten pages.
std::string whole_lines(std::string_view contents);

struct AppendFileOptions {
  /// The first record of a new or empty file.
  std::string header;
  /// The part of an earlier file's contents that is kept.
  std::function<std::string(std::string_view contents)> keep = whole_lines;
  /// A text of `size` bytes (at least one) that readers skip.
  std::function<std::string(size_t size)> filler = [](size_t size) {
    return std::string(size, '\n');
  };
  /// Bytes of records that may wait while the disk is full.
  size_t capacity = size_t{64} << 20;
};

class AppendFile {
 public:
  /// Does not touch the disk yet.
  AppendFile(FileSystem& files, std::string path, AppendFileOptions options = {});

  const std::string& path() const { return path_; }

  /// Makes the file unless that is done. `flush` does it too.
  void open();

  bool is_open() const { return file_ != nullptr; }

  /// For files that are made from now on.
  void set_header(std::string header) { options_.header = std::move(header); }

  void append(std::string_view record);
  void flush();

  /// Flushes, then atomically replaces the contents by `change(contents)`.
  void rewrite(const std::function<std::string(std::string_view contents)>& change);

  /// Flushes and closes the file; the next write opens it again, which costs a copy.
  void release();

  /// Flushes and syncs. The last call.
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
  int64_t size_ = 0;  // of the file; more if there is filler
  std::string waiting_;
  std::deque<size_t> record_sizes_;  // of those in `waiting_`
  bool failed_ = false;              // whether the last write failed
  uint64_t lost_ = 0;                // records
};

}  // namespace accelerate::trackers
