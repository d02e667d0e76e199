/// The event files of one run: records in a folder, one file after the other.
///
/// Files are named `events.out.tfevents.SECONDS.OWNER.N`. TensorBoard reads a folder's files in the
/// order of their names, each to its end; so each new one gets a later time than all that are
/// there, and none is written to after the next one was begun. A file that is there is never
/// touched.
///
/// What could not be written, as on a full disk, is kept and written to the same place once that
/// can be done: a reader finds all whole records up to there and, later, the rest. An attempt is
/// made once a second at most. Meanwhile up to 16 MiB wait; what comes beyond is lost and counted.
/// Flushed records outlive the process; from a loss of power they are safe after `sync_interval`.
///
/// Record: the length in 8 bytes, a checksum of these, the event, a checksum of it. Numbers are
/// little-endian, checksums CRC-32C turned by 15 bits with a constant added.
/// Errors:  std::runtime_error naming the file; the record is kept, except as above.
/// Threads: one.
#pragma once

#include <cstddef>
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
  /// Whose files they are, such as HOST.PID.
  std::string owner;
  std::string filename_suffix;
  /// See SummaryWriterOptions.
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
  /// Flushes, and has no file open until there is more to be written; that comes to a new one.
  void release();
  /// Last. Makes all durable.
  void close();

 private:
  // What each file begins with.
  void begin();
  // Whether a write failed just now.
  bool is_too_early(absl::Time now) const;
  // Writes what waits, into a new file if there is none.
  absl::Status write();
  absl::Status create();
  absl::Status end_file();

  FileSystem& files_;
  const EventFileOptions options_;
  int64_t files_made_ = 0;
  std::unique_ptr<WritableFile> file_;  // null: none yet
  std::string path_;
  int64_t written_ = 0;    // bytes of the file that are as they should be
  std::string unwritten_;  // what follows
  int64_t events_ = 0;     // of the file, with those that wait
  int64_t waiting_ = 0;    // of those
  int64_t lost_ = 0;       // events
  bool is_synced_ = true;
  absl::Time last_sync_;
  std::optional<absl::Time> last_failure_;  // of writing, until it worked again
};

}  // namespace accelerate::trackers
