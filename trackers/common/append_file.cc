#include "trackers/common/append_file.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"
#include "trackers/common/file_options.h"

namespace accelerate::trackers {
namespace {

// This many bytes are written without waiting for a flush.
constexpr size_t kMuch = size_t{256} << 10;

}  // namespace

std::string whole_lines(std::string_view contents) {
  std::string lines;
  while (true) {
    const size_t end = contents.find('\n');
    if (end == contents.npos) return lines;
    const std::string_view line = contents.substr(0, end + 1);
    // After a crash of the machine zeros may stand where the file had grown and its bytes had not
    // been written.
    if (line.find('\0') == line.npos) lines += line;
    contents.remove_prefix(end + 1);
  }
}

AppendFile::AppendFile(FileSystem& files, std::string path, AppendFileOptions options)
    : files_(files), path_(std::move(path)), options_(std::move(options)) {}

void AppendFile::open() {
  if (file_ == nullptr) throw_if_error(begin());
}

void AppendFile::append(std::string_view record) {
  if (waiting_.size() + record.size() > options_.capacity) {
    ++lost_;
    throw std::runtime_error(
        absl::StrCat(path_, ": ", options_.capacity,
                     " bytes already wait to be written; further records are lost"));
  }
  waiting_ += record;
  record_sizes_.push_back(record.size());
  // After a failure only `flush` writes again.
  if (waiting_.size() >= kMuch && !failed_) flush();
}

void AppendFile::flush() {
  if (record_sizes_.empty() && file_ != nullptr) return;
  absl::Status status = file_ == nullptr ? begin() : check_ours();
  if (status.ok()) status = write_records();
  failed_ = !status.ok();
  throw_if_error(status);
}

void AppendFile::rewrite(const std::function<std::string(std::string_view contents)>& change) {
  flush();
  throw_if_error(replace(change(value_or_throw(read_file(files_, path_)))));
}

void AppendFile::release() {
  flush();
  close();
}

void AppendFile::finish() {
  absl::Status status;
  try {
    flush();
  } catch (const std::runtime_error& error) {
    status = absl::UnknownError(error.what());
  }
  if (file_ != nullptr) {
    // Each step is tried whatever became of the one before; the first error is reported.
    status.Update(file_->sync());
    status.Update(files_.sync_directory(parent_path(path_)));
    status.Update(file_->close());
    file_.reset();
  }
  const uint64_t lost = lost_ + record_sizes_.size();
  if (lost > 0) {
    throw std::runtime_error(
        absl::StrCat(path_, ": ", lost, " records are lost: ", std::string(status.message())));
  }
  throw_if_error(status);
}

absl::Status AppendFile::begin() {
  ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files_, parent_path(path_)));
  ACCELERATE_ASSIGN_OR_RETURN(const bool is_there, exists(files_, path_));
  if (is_there) {
    ACCELERATE_ASSIGN_OR_RETURN(const std::string earlier, read_file(files_, path_));
    const std::string kept = options_.keep(earlier);
    // A copy takes the name of the earlier file, so that a crash leaves one of the two whole.
    if (!kept.empty()) return replace(kept);
  }
  ACCELERATE_ASSIGN_OR_RETURN(file_, files_.create(path_));
  end_ = size_ = 0;
  if (!options_.header.empty()) {
    waiting_.insert(0, options_.header);
    record_sizes_.push_front(options_.header.size());
  }
  return absl::OkStatus();
}

absl::Status AppendFile::replace(const std::string& contents) {
  const std::string partial = files_.temporary_name(path_);
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.create(partial));
  absl::Status status = file->write_at(0, as_bytes(contents));
  if (status.ok()) status = file->sync();
  if (status.ok()) status = files_.rename(partial, path_);
  if (!status.ok()) {
    file.reset();
    files_.remove(partial).IgnoreError();
    return status;
  }
  close();
  file_ = std::move(file);
  end_ = size_ = static_cast<int64_t>(contents.size());
  return files_.sync_directory(parent_path(path_));
}

absl::Status AppendFile::check_ours() {
  const absl::StatusOr<FileInfo> info = files_.info(path_);
  // A size that this object did not write is the cheapest sign of another writer.
  if (info.ok() && info->size == size_) return absl::OkStatus();
  close();
  return absl::AbortedError(
      absl::StrCat(path_, " was removed, or changed by another program: ",
                   "runs at the same time need files of their own. What comes is added to it"));
}

absl::Status AppendFile::write_records() {
  absl::Status status = write(waiting_);
  if (status.ok()) {
    waiting_.clear();
    record_sizes_.clear();
    return status;
  }
  // Writes as many whole records as the disk has room for.
  size_t written = 0;
  while (!record_sizes_.empty()) {
    const size_t size = record_sizes_.front();
    status = write(std::string_view(waiting_).substr(written, size));
    if (!status.ok()) break;
    written += size;
    record_sizes_.pop_front();
  }
  waiting_.erase(0, written);
  if (!status.ok()) hide_torn_record();
  return status;
}

absl::Status AppendFile::write(std::string_view data) {
  ACCELERATE_RETURN_IF_ERROR(file_->write_at(end_, as_bytes(data)));
  end_ += static_cast<int64_t>(data.size());
  size_ = std::max(size_, end_);
  return absl::OkStatus();
}

void AppendFile::hide_torn_record() {
  // A write that failed may have left a part of its record behind the end, which readers would take
  // for a record.
  const absl::StatusOr<FileInfo> info = files_.info(path_);
  if (!info.ok()) return;
  size_ = info->size;
  if (size_ <= end_) return;
  const std::string filler = options_.filler(static_cast<size_t>(size_ - end_));
  file_->write_at(end_, as_bytes(filler)).IgnoreError();
}

void AppendFile::close() {
  if (file_ == nullptr) return;
  file_->close().IgnoreError();
  file_.reset();
}

}  // namespace accelerate::trackers
