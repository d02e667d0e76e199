#include "accelerate/platform/host_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate {
namespace {

absl::Status error(int code, const std::string& what, const std::string& path) {
  const std::string text = absl::StrCat("cannot ", what, " ", path);
  // Abseil has other codes for these, or none.
  switch (code) {
    case EIO: return absl::DataLossError(absl::StrCat(text, ": input/output error"));
    case EDQUOT: return absl::ResourceExhaustedError(absl::StrCat(text, ": disk quota exceeded"));
    case ENOTEMPTY:
      return absl::FailedPreconditionError(absl::StrCat(text, ": directory not empty"));
    default: return absl::ErrnoToStatus(code, text);
  }
}

// The outcome of a system call that returns 0 where it did what was asked. Some disks report a
// folder that is not empty as EEXIST.
absl::Status outcome(int result, const std::string& what, const std::string& path) {
  if (result == 0) return absl::OkStatus();
  return error(errno == EEXIST ? ENOTEMPTY : errno, what, path);
}

// Fills `out`. Errors: OutOfRange if the file ends before.
absl::Status read_all(int fd, const std::string& path, int64_t offset, absl::Span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(errno, "read", path);
    if (got == 0) {
      return absl::OutOfRangeError(absl::StrCat("cannot read ", path, ": it ends at byte ", offset,
                                                ", ", out.size(), " too early"));
    }
    out.remove_prefix(got);
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status write_all(int fd, const std::string& path, int64_t offset,
                       absl::Span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written = ::pwrite(fd, data.data(), data.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return error(errno, "write", path);
    data.remove_prefix(written);
    offset += written;
  }
  return absl::OkStatus();
}

// A file's bytes in memory.
struct Mapping {
  Mapping(void* data, int64_t size)
      : bytes(static_cast<const std::byte*>(data), static_cast<size_t>(size)) {}
  ~Mapping() {
    if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  absl::Span<const std::byte> bytes;
};

class HostReadableFile final : public ReadableFile {
 public:
  HostReadableFile(int fd, int64_t size, std::string path)
      : fd_(fd), size_(size), path_(std::move(path)) {}

  int64_t size() const override { return size_; }

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
    return read_all(fd_.get(), path_, offset, out);
  }

  absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const override {
    void* data = nullptr;
    if (size_ > 0) {
      data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_.get(), 0);
      if (data == MAP_FAILED) return error(errno, "map", path_);
    }
    auto mapping = std::make_shared<const Mapping>(data, size_);
    return std::shared_ptr<const absl::Span<const std::byte>>(mapping, &mapping->bytes);
  }

 private:
  const UniqueFd fd_;
  const int64_t size_;
  const std::string path_;
};

class HostWritableFile final : public WritableFile {
 public:
  HostWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    return write_all(fd_.get(), path_, offset, data);
  }

  void begin_sync(int64_t offset, int64_t size) override {
    ::sync_file_range(fd_.get(), offset, size, SYNC_FILE_RANGE_WRITE);
  }

  absl::Status sync() override { return outcome(::fsync(fd_.get()), "sync", path_); }

  absl::Status close() override {
    // Linux frees the descriptor also where close fails.
    return outcome(::close(fd_.release()), "close", path_);
  }

 private:
  UniqueFd fd_;
  const std::string path_;
};

class HostScratchFile final : public ScratchFile {
 public:
  HostScratchFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
    return read_all(fd_.get(), path_, offset, out);
  }

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    const absl::Status status = write_all(fd_.get(), path_, offset, data);
    // The disk begins at once, so that little of it waits in the cache of the system.
    if (status.ok() && !data.empty()) {
      ::sync_file_range(fd_.get(), offset, static_cast<off_t>(data.size()), SYNC_FILE_RANGE_WRITE);
    }
    return status;
  }

 private:
  const UniqueFd fd_;
  const std::string path_;
};

}  // namespace

HostFiles::HostFiles(int parallelism)
    : parallelism_(parallelism > 0 ? parallelism
                                   : std::clamp<int>(std::thread::hardware_concurrency(), 1, 8)) {}

absl::StatusOr<std::unique_ptr<ReadableFile>> HostFiles::open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return error(errno, "open", path);
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return error(errno, "look at", path);
  if (S_ISDIR(about.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", path, ": it is a folder"));
  }
  return std::make_unique<HostReadableFile>(fd.release(), about.st_size, path);
}

absl::StatusOr<std::unique_ptr<WritableFile>> HostFiles::create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) return error(errno, "write", path);
  return std::make_unique<HostWritableFile>(fd.release(), path);
}

absl::StatusOr<std::unique_ptr<ScratchFile>> HostFiles::open_scratch(const std::string& path) {
  // Not O_TMPFILE, which network disks lack.
  std::string name = absl::StrCat(path, ".XXXXXX");
  UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (fd.get() < 0) return error(errno, "open the scratch file", path);
  if (::unlink(name.c_str()) != 0) return error(errno, "remove the name of the scratch file", path);
  return std::make_unique<HostScratchFile>(fd.release(), path);
}

absl::StatusOr<FileInfo> HostFiles::info(const std::string& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0) return error(errno, "look at", path);
  if (S_ISDIR(about.st_mode)) return FileInfo{.is_directory = true};
  return FileInfo{.size = about.st_size};
}

absl::StatusOr<std::vector<std::string>> HostFiles::list(const std::string& directory) {
  DIR* folder = ::opendir(directory.c_str());
  if (folder == nullptr) return error(errno, "list", directory);
  const absl::Cleanup close = [folder] { ::closedir(folder); };
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return error(errno, "list", directory);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status HostFiles::make_directories(const std::string& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  // It returns no error, and makes nothing, where a link points nowhere.
  if (!failed && !std::filesystem::is_directory(path, failed) && !failed) {
    failed = std::make_error_code(std::errc::not_a_directory);
  }
  if (failed) return error(failed.value(), "make the folder", path);
  return absl::OkStatus();
}

absl::Status HostFiles::rename(const std::string& from, const std::string& to) {
  return outcome(std::rename(from.c_str(), to.c_str()), absl::StrCat("rename ", from, " to"), to);
}

absl::Status HostFiles::exchange(const std::string& first, const std::string& second) {
  if (::renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  const std::string what = absl::StrCat("exchange ", first, " and");
  if (errno == EINVAL || errno == ENOSYS) {
    return absl::UnimplementedError(absl::StrCat("cannot ", what, " ", second, " on this disk"));
  }
  return error(errno, what, second);
}

absl::Status HostFiles::remove(const std::string& path) {
  return outcome(std::remove(path.c_str()), "remove", path);
}

absl::Status HostFiles::sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return error(errno, "open", path);
  // Some network disks cannot sync folders and keep names durable by themselves.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return error(errno, "sync", path);
  return absl::OkStatus();
}

std::string HostFiles::temporary_name(const std::string& path) const {
  // Containers that share a disk may all be process 1.
  static const uint32_t process = std::random_device()();
  return absl::StrCat(path, ".partial-", absl::Hex(process), "-", ::getpid());
}

absl::StatusOr<std::string> make_temporary_folder(absl::string_view prefix) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path = (parent / absl::StrCat(prefix, "XXXXXX")).string();
  if (mkdtemp(path.data()) != nullptr) return path;
  return absl::UnavailableError(
      absl::StrCat("cannot make the folder ", path, ": ", std::strerror(errno)));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::path(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

}  // namespace accelerate
