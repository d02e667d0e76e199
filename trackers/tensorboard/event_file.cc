#include "trackers/tensorboard/event_file.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/status.h"
#include "trackers/common/file_options.h"
#include "trackers/common/numbers.h"
#include "trackers/tensorboard/event.pb.h"

namespace accelerate::trackers {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr char kFileVersion[] = "brain.Event:2";
constexpr size_t kSecondsDigits = 10;
constexpr int64_t kMaxSeconds = 9'999'999'999;

// Bytes that are written without a flush, and bytes that may wait while the disk is full.
constexpr size_t kManyBytes = size_t{1} << 20;
constexpr size_t kMaxUnwritten = size_t{16} << 20;
constexpr absl::Duration kRetryInterval = absl::Seconds(1);

void append_checksum(std::string* out, std::string_view text) {
  const auto crc =
      static_cast<uint32_t>(absl::ComputeCrc32c(absl::string_view(text.data(), text.size())));
  append_little_endian(out, ((crc >> 15) | (crc << 17)) + 0xA282EAD8U, 4);
}

void append_record(std::string* out, std::string_view event) {
  std::string length;
  append_little_endian(&length, event.size(), 8);
  out->append(length);
  append_checksum(out, length);
  out->append(event);
  append_checksum(out, event);
}

// The latest time in the names of a folder's event files.
absl::StatusOr<int64_t> latest_seconds(FileSystem& files, const std::string& folder) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  int64_t latest = -1;
  for (const std::string& name : names) {
    int64_t number = 0;
    if (name.starts_with(kPrefix) &&
        absl::SimpleAtoi(name.substr(kPrefix.size(), kSecondsDigits), &number)) {
      latest = std::max(latest, number);
    }
  }
  return latest;
}

}  // namespace

EventFile::EventFile(FileSystem& files, EventFileOptions options)
    : files_(files), options_(std::move(options)), last_sync_(options_.now()) {
  begin();
  if (!options_.purge_step) return;
  tensorboard::Event start;
  start.set_wall_time(unix_seconds(options_.now()));
  start.set_step(*options_.purge_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  append_record(&unwritten_, start.SerializeAsString());
}

void EventFile::begin() {
  tensorboard::Event version;
  version.set_wall_time(unix_seconds(options_.now()));
  version.set_file_version(kFileVersion);
  append_record(&unwritten_, version.SerializeAsString());
  events_ = 0;
}

void EventFile::add(std::string_view event) {
  std::string record;
  append_record(&record, event);
  absl::Status status;
  const auto size = static_cast<int64_t>(unwritten_.size() + record.size());
  if (options_.max_file_bytes && events_ > 0 && written_ + size > *options_.max_file_bytes &&
      !last_failure_) {
    status = write();
    if (status.ok()) status = end_file();
  }
  if (last_failure_ && waiting_ > 0 && unwritten_.size() + record.size() > kMaxUnwritten) {
    ++lost_;
    throw std::runtime_error(absl::StrCat("too many events wait to be written to ", options_.folder,
                                          ": an event is lost"));
  }
  if (file_ == nullptr && unwritten_.empty()) begin();
  unwritten_ += record;
  ++events_;
  ++waiting_;
  const bool is_much =
      (options_.max_queue > 0 && waiting_ >= options_.max_queue) || unwritten_.size() >= kManyBytes;
  if (status.ok() && is_much && !last_failure_) status = write();
  throw_if_error(status);
}

void EventFile::flush() {
  const absl::Time now = options_.now();
  if (is_too_early(now)) return;
  throw_if_error(write());
  if (is_synced_ || now < last_sync_ + options_.sync_interval) return;
  last_sync_ = now;
  throw_if_error(file_->sync());
  is_synced_ = true;
}

void EventFile::release() {
  if (is_too_early(options_.now())) return;
  throw_if_error(write());
  throw_if_error(end_file());
}

// False if the clock was set back.
bool EventFile::is_too_early(absl::Time now) const {
  return last_failure_ && now >= *last_failure_ && now < *last_failure_ + kRetryInterval;
}

void EventFile::close() {
  absl::Status status = write();
  if (status.ok()) status = end_file();
  if (status.ok()) return;
  const int64_t lost = std::exchange(lost_, 0) + waiting_;
  throw std::runtime_error(
      absl::StrCat(std::string(status.message()),
                   lost > 0 ? absl::StrCat("; ", lost, " events are lost") : std::string()));
}

absl::Status EventFile::write() {
  if (unwritten_.empty()) return absl::OkStatus();
  absl::Status status = file_ == nullptr ? create() : absl::OkStatus();
  if (status.ok()) status = file_->write_at(written_, as_bytes(unwritten_));
  if (!status.ok()) {
    last_failure_ = options_.now();
    return status;
  }
  written_ += static_cast<int64_t>(unwritten_.size());
  unwritten_.clear();
  waiting_ = 0;
  is_synced_ = false;
  last_failure_.reset();
  if (lost_ > 0) {
    options_.warn(absl::StrCat(std::exchange(lost_, 0), " events are missing in ", path_,
                               ": they found no place while it could not be written"));
  }
  return absl::OkStatus();
}

absl::Status EventFile::create() {
  ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files_, options_.folder));
  ACCELERATE_ASSIGN_OR_RETURN(const int64_t latest, latest_seconds(files_, options_.folder));
  const int64_t time =
      std::min(std::max(absl::ToUnixSeconds(options_.now()), latest + 1), kMaxSeconds);
  const std::string path = join_path(
      options_.folder, absl::StrCat(std::string(kPrefix), absl::StrFormat("%010d", time), ".",
                                    options_.owner, ".", files_made_, options_.filename_suffix));
  ACCELERATE_ASSIGN_OR_RETURN(const bool is_there, exists(files_, path));
  if (is_there) return absl::AlreadyExistsError(absl::StrCat("cannot write ", path, ": it exists"));
  ACCELERATE_ASSIGN_OR_RETURN(file_, files_.create(path));
  path_ = path;
  ++files_made_;
  return files_.sync_directory(options_.folder);
}

absl::Status EventFile::end_file() {
  if (file_ == nullptr) return absl::OkStatus();
  absl::Status status = file_->sync();
  status.Update(file_->close());
  file_.reset();
  written_ = 0;
  is_synced_ = true;
  last_sync_ = options_.now();
  return status;
}

}  // namespace accelerate::trackers
