/// Writes the event files of one run: records in a folder, one file after the other.
///
/// Files are named `events.out.tfevents.SECONDS.OWNER.N`. TensorBoard reads a folder's files in the
/// order of their names, each to its end; so each new file gets a later time than all
/// existing ones, and a file is not written to after the next one was begun. Existing files are
/// never changed.
///
/// If a write fails, for example on a full disk, the records wait and are later written to the same
/// place, so that a reader always finds whole records. It is retried once a second at most. Up to
/// 16 MiB wait; further events are lost and counted. Flushed records survive the end of the
/// process, and a loss of power after `sync_interval`.
///
/// A record is the length in 8 bytes, its checksum, the event, and its checksum. Numbers are
/// little-endian; checksums are CRC-32C, rotated by 15 bits, plus a constant.
/// Errors:  std::runtime_error naming the file; the record waits, except as above.
/// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "accelerate/platform/file_system.h"

namespace accelerate::trackers {

struct EventFileOptions {
  std::string folder;
  /// The writer in the files' names, such as HOST.PID.
  std::string owner;
  std::string filename_suffix;
  /// See the init_kwargs in tensorboard_tracker.h.
  std::optional<int64_t> purge_step;
  int64_t max_queue = 10;
  absl::Duration sync_interval = absl::Seconds(120);
  std::optional<int64_t> max_file_bytes;
  std::function<absl::Time()> now;
  std::function<void(std::string_view)> warn;
};

class EventFile {
 public:
  /// Writes nothing yet. `files` outlives this.
  EventFile(FileSystem& files, EventFileOptions options);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// `event`: a serialised Event.
  void add(std::string_view event);
  void flush();
  /// Flushes and closes the file; further events go to a new one.
  void release();
  /// The last call. Syncs all records to the disk.
  void close();

 private:
  // Adds the first record of a file.
  void begin();
  // Whether a write failed less than a second ago.
  bool is_too_early(absl::Time now) const;
  // Writes the waiting records, to a new file if none is open.
  absl::Status write();
  absl::Status create();
  absl::Status end_file();

  FileSystem& files_;
  const EventFileOptions options_;
  int64_t files_made_ = 0;
  std::unique_ptr<WritableFile> file_;  // null if none is open
  std::string path_;
  int64_t written_ = 0;    // bytes of the file that were written
  std::string unwritten_;  // the bytes behind them
  int64_t events_ = 0;     // of the file, including waiting ones
  int64_t waiting_ = 0;    // waiting events
  int64_t lost_ = 0;       // lost events
  bool is_synced_ = true;
  absl::Time last_sync_;
  std::optional<absl::Time> last_failure_;  // of a write, until one succeeds
};

}  // namespace accelerate::trackers
