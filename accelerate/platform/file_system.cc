#include "accelerate/platform/file_system.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

// A file whose sync waits for nothing.
class UnsyncedFile final : public WritableFile {
 public:
  explicit UnsyncedFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    return file_->write_at(offset, data);
  }
  absl::Status sync() override { return absl::OkStatus(); }
  absl::Status close() override { return file_->close(); }

 private:
  const std::unique_ptr<WritableFile> file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> UnsyncedFiles::create(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, ForwardingFiles::create(path));
  return std::make_unique<UnsyncedFile>(std::move(file));
}

absl::StatusOr<std::string> read_file(FileSystem& files, const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  return read_start(*file, file->size());
}

absl::StatusOr<std::string> read_start(const ReadableFile& file, int64_t size) {
  std::string start(static_cast<size_t>(std::min(size, file.size())), '\0');
  ACCELERATE_RETURN_IF_ERROR(
      file.read_at(0, absl::MakeSpan(reinterpret_cast<std::byte*>(start.data()), start.size())));
  return start;
}

absl::Status make_directories_durably(FileSystem& files, const std::string& path) {
  std::vector<std::string> made_in;  // innermost first
  for (std::string folder = path;; folder = made_in.back()) {
    ACCELERATE_ASSIGN_OR_RETURN(const bool is_there, exists(files, folder));
    if (is_there) break;
    made_in.push_back(parent_path(folder));
  }
  absl::Status status = files.make_directories(path);
  for (const std::string& folder : made_in) {
    if (status.ok()) status = files.sync_directory(folder);
  }
  return status;
}

absl::Status write_durably(FileSystem& files, const std::string& path, std::string_view contents) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(path));
  absl::Status written = file->write_at(
      0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(contents.data()), contents.size()));
  if (written.ok()) written = file->sync();
  written.Update(file->close());
  return written;
}

absl::Status write_file(FileSystem& files, const std::string& path, std::string_view contents) {
  const std::string folder = parent_path(path);
  absl::Status status = make_directories_durably(files, folder);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("cannot write ", path, ": ", std::string(status.message())));
  }
  const std::string partial = files.temporary_name(path);
  status = write_durably(files, partial, contents);
  if (status.ok()) status = files.rename(partial, path);
  if (status.ok()) return files.sync_directory(folder);
  files.remove(partial).IgnoreError();
  return status;
}

absl::StatusOr<bool> exists(FileSystem& files, const std::string& path) {
  const absl::StatusOr<FileInfo> info = files.info(path);
  if (info.ok()) return true;
  if (absl::IsNotFound(info.status())) return false;
  return info.status();
}

absl::Status remove_all(FileSystem& files, const std::string& path) {
  // First as it is: a link to a folder goes without what it points to.
  const absl::Status status = files.remove(path);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  if (!absl::IsFailedPrecondition(status)) return status;
  ACCELERATE_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(path));
  if (names.empty()) return status;
  for (const std::string& name : names) {
    ACCELERATE_RETURN_IF_ERROR(remove_all(files, join_path(path, name)));
  }
  return files.remove(path);
}

std::string join_path(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, folder.ends_with('/') ? "" : "/", name);
}

std::string parent_path(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace accelerate
