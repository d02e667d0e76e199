#include "simulator/disk/sim_files.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"

namespace accelerate::simulator {
namespace {

using Map = std::shared_ptr<const absl::Span<const std::byte>>;

// A copy with one bit flipped.
Map flipped(const Map& map, int64_t bit) {
  struct Copy {
    explicit Copy(absl::Span<const std::byte> from) : bytes(from.begin(), from.end()) {}
    std::vector<std::byte> bytes;
    absl::Span<const std::byte> span;
  };
  auto copy = std::make_shared<Copy>(*map);
  copy->bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  copy->span = copy->bytes;
  return Map(copy, &copy->span);
}

// A rank at a disk: what refuses its operations, and what they wait for.
struct Access {
  int rank = 0;
  std::shared_ptr<FaultPlan> plan;
  std::shared_ptr<DiskQueue> queue;
  // Whether the machine's files are all that the rank has, so that the run's plan strikes those.
  bool counts_host = false;
  std::string path = {};  // of a file of the machine

  // Waits until the disk has read so many bytes.
  absl::Status read(int64_t bytes) const {
    queue->read(rank, bytes);
    return plan->refuse_if_dead(rank);
  }
  // Returns the time at which the disk has the bytes.
  int64_t write(size_t bytes) const { return queue->write(rank, static_cast<int64_t>(bytes)); }
  // Waits until the disk has what was written by then.
  absl::Status sync(int64_t written_ns) const {
    queue->sync(rank, written_ns);
    return plan->refuse_if_dead(rank);
  }

  // An operation on the machine's files: faults may refuse it, but damage nothing. A dead rank
  // makes none, and where they take time ranks take turns.
  absl::Status begin_on_host(const char* name, int64_t bytes = 0, bool needs_room = false) const {
    if (queue->takes_time()) plan->run_other_ranks(rank);
    if (counts_host && plan->watches_host()) {
      return plan
          ->begin({.rank = rank,
                   .name = name,
                   .path = path,
                   .bytes = bytes,
                   .needs_room = needs_room,
                   .on_host = true})
          .status;
    }
    return plan->refuse_if_dead(rank);
  }
  absl::Status read_on_host(const char* name, size_t bytes) const {
    const auto count = static_cast<int64_t>(bytes);
    const absl::Status status = begin_on_host(name, count);
    return status.ok() ? read(count) : status;
  }
};

FaultPlan::Verdict begin_reading(const Access& access, const char* name, const std::string& path,
                                 int64_t bytes) {
  FaultPlan::Verdict verdict = access.plan->begin(
      {.rank = access.rank, .name = name, .path = path, .bytes = bytes, .reads = true});
  if (verdict.status.ok()) verdict.status = access.read(bytes);
  return verdict;
}

// Reads a file of the disk with the wrong bit that the verdict has, if it has one.
template <typename File>
absl::Status read_with_faults(File& file, const FaultPlan::Verdict& verdict, int64_t offset,
                              absl::Span<std::byte> out) {
  if (!verdict.status.ok()) return verdict.status;
  if (verdict.flipped_bit && verdict.on_medium) file.damage(8 * offset + *verdict.flipped_bit);
  const absl::Status read = file.read_at(offset, out);
  if (read.ok() && verdict.flipped_bit && !verdict.on_medium) {
    out[*verdict.flipped_bit / 8] ^= std::byte{1} << (*verdict.flipped_bit % 8);
  }
  return read;
}

// A file on the disk that a rank reads.
class Reader final : public ReadableFile {
 public:
  Reader(Access access, std::string path, std::unique_ptr<SimReadableFile> file)
      : access_(std::move(access)), path_(std::move(path)), file_(std::move(file)) {}

  int64_t size() const override { return file_->size(); }

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
    const auto bytes = static_cast<int64_t>(out.size());
    return read_with_faults(*file_, begin_reading(access_, "read_at", path_, bytes), offset, out);
  }

  absl::StatusOr<Map> map() const override {
    const FaultPlan::Verdict verdict = begin_reading(access_, "map", path_, file_->size());
    if (!verdict.status.ok()) return verdict.status;
    if (verdict.flipped_bit && verdict.on_medium) file_->damage(*verdict.flipped_bit);
    absl::StatusOr<Map> map = file_->map();
    // The file may have been shortened since it was opened.
    if (map.ok() && verdict.flipped_bit && !verdict.on_medium &&
        *verdict.flipped_bit / 8 < static_cast<int64_t>((*map)->size())) {
      return flipped(*map, *verdict.flipped_bit);
    }
    return map;
  }

 private:
  const Access access_;
  const std::string path_;
  const std::unique_ptr<SimReadableFile> file_;
};

// A file on the disk that a rank writes.
class Writer final : public WritableFile {
 public:
  Writer(Access access, std::string path, std::unique_ptr<SimWritableFile> file)
      : access_(std::move(access)), path_(std::move(path)), file_(std::move(file)) {}

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    auto write = [&](int64_t bytes, bool durably) {
      const absl::Span<const std::byte> part = data.first(bytes);
      const absl::Status written =
          durably ? file_->write_through(offset, part) : file_->write_at(offset, part);
      written.IgnoreError();  // The operation fails anyway.
    };
    ACCELERATE_RETURN_IF_ERROR(begin("write_at", static_cast<int64_t>(data.size()), write));
    const absl::Status written = file_->write_at(offset, data);
    if (written.ok()) written_ns_ = access_.write(data.size());
    return written;
  }

  absl::Status sync() override {
    absl::Status status = begin("sync");
    if (status.ok()) status = access_.sync(written_ns_);
    return status.ok() ? file_->sync() : status;
  }

  absl::Status close() override {
    const absl::Status status = begin("close");
    return status.ok() ? file_->close() : status;
  }

 private:
  absl::Status begin(const char* name, int64_t bytes = 0,
                     std::function<void(int64_t, bool)> write = nullptr) {
    return access_.plan
        ->begin({.rank = access_.rank,
                 .name = name,
                 .path = path_,
                 .bytes = bytes,
                 .needs_room = true,
                 .write = std::move(write)})
        .status;
  }

  const Access access_;
  const std::string path_;
  const std::unique_ptr<SimWritableFile> file_;
  int64_t written_ns_ = 0;  // when the disk has all that was written so far
};

// A scratch file on the disk. It holds what memory has no room for, so no cache takes writes over:
// they wait for the disk.
class Scratch final : public ScratchFile {
 public:
  Scratch(Access access, std::string path, std::unique_ptr<SimScratchFile> file)
      : access_(std::move(access)), path_(std::move(path)), file_(std::move(file)) {}

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
    const auto bytes = static_cast<int64_t>(out.size());
    return read_with_faults(*file_, begin_reading(access_, "read_at", path_, bytes), offset, out);
  }

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    auto write = [&](int64_t part, bool /*durably*/) {
      file_->write_at(offset, data.first(part)).IgnoreError();  // The operation fails anyway.
    };
    absl::Status status = access_.plan
                              ->begin({.rank = access_.rank,
                                       .name = "write_at",
                                       .path = path_,
                                       .bytes = static_cast<int64_t>(data.size()),
                                       .needs_room = true,
                                       .write = write})
                              .status;
    if (status.ok()) status = access_.sync(access_.write(data.size()));
    return status.ok() ? file_->write_at(offset, data) : status;
  }

 private:
  const Access access_;
  const std::string path_;
  const std::unique_ptr<SimScratchFile> file_;
};

// A file of the machine that a rank reads.
class HostReader final : public ReadableFile {
 public:
  HostReader(Access access, std::unique_ptr<ReadableFile> file)
      : access_(std::move(access)), file_(std::move(file)) {}

  int64_t size() const override { return file_->size(); }

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
    const absl::Status status = access_.read_on_host("read_at", out.size());
    return status.ok() ? file_->read_at(offset, out) : status;
  }
  absl::StatusOr<Map> map() const override {
    ACCELERATE_RETURN_IF_ERROR(access_.read_on_host("map", static_cast<size_t>(file_->size())));
    return file_->map();
  }

 private:
  const Access access_;
  const std::unique_ptr<ReadableFile> file_;
};

// A file of the machine that a rank writes.
class HostWriter final : public WritableFile {
 public:
  HostWriter(Access access, std::unique_ptr<WritableFile> file)
      : access_(std::move(access)), file_(std::move(file)) {}

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    ACCELERATE_RETURN_IF_ERROR(
        access_.begin_on_host("write_at", static_cast<int64_t>(data.size()), /*needs_room=*/true));
    const absl::Status written = file_->write_at(offset, data);
    if (written.ok()) written_ns_ = access_.write(data.size());
    return written;
  }
  absl::Status sync() override {
    absl::Status status = access_.begin_on_host("sync", 0, /*needs_room=*/true);
    if (status.ok()) status = access_.sync(written_ns_);
    return status.ok() ? file_->sync() : status;
  }
  absl::Status close() override {
    const absl::Status status = access_.begin_on_host("close", 0, /*needs_room=*/true);
    return status.ok() ? file_->close() : status;
  }

 private:
  const Access access_;
  const std::unique_ptr<WritableFile> file_;
  int64_t written_ns_ = 0;  // when the disk has all that was written so far
};

// A scratch file of the machine; see Scratch.
class HostScratch final : public ScratchFile {
 public:
  HostScratch(Access access, std::unique_ptr<ScratchFile> file)
      : access_(std::move(access)), file_(std::move(file)) {}

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
    const absl::Status status = access_.read_on_host("read_at", out.size());
    return status.ok() ? file_->read_at(offset, out) : status;
  }
  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    absl::Status status =
        access_.begin_on_host("write_at", static_cast<int64_t>(data.size()), /*needs_room=*/true);
    if (status.ok()) status = access_.sync(access_.write(data.size()));
    return status.ok() ? file_->write_at(offset, data) : status;
  }

 private:
  const Access access_;
  const std::unique_ptr<ScratchFile> file_;
};

// The file that was opened, in a Wrapper, whose last argument it is.
template <typename Wrapper, typename File, typename... Arguments>
absl::StatusOr<std::unique_ptr<Wrapper>> in_wrapper(absl::StatusOr<std::unique_ptr<File>> opened,
                                                    Arguments... arguments) {
  if (!opened.ok()) return opened.status();
  return std::make_unique<Wrapper>(std::move(arguments)..., *std::move(opened));
}

}  // namespace

SimFiles::SimFiles(int rank, std::shared_ptr<SimDisk> disk, std::shared_ptr<FaultPlan> plan,
                   std::shared_ptr<DiskQueue> queue, std::shared_ptr<FileSystem> machine)
    : rank_(rank),
      disk_(std::move(disk)),
      plan_(std::move(plan)),
      queue_(std::move(queue)),
      host_queue_(disk_ == nullptr ? queue_
                                   : std::make_shared<DiskQueue>(DiskModel{}, DiskQueue::Hooks{})),
      machine_(machine != nullptr ? std::move(machine)
                                  : std::make_shared<HostFiles>(/*parallelism=*/1)) {}

bool SimFiles::is_simulated(const std::string& path) const {
  return disk_ != nullptr && disk_->contains(path);
}

const std::shared_ptr<DiskQueue>& SimFiles::queue_of(const std::string& path) const {
  return is_simulated(path) ? queue_ : host_queue_;
}

FileSystem& SimFiles::owner(const std::string& path) {
  if (is_simulated(path)) return *disk_;
  return *machine_;
}

absl::Status SimFiles::begin(const char* name, const std::string& path, bool needs_room) {
  if (!is_simulated(path)) {
    return Access{rank_, plan_, host_queue_, disk_ == nullptr, path}.begin_on_host(
        name, /*bytes=*/0, needs_room);
  }
  return plan_->begin({.rank = rank_, .name = name, .path = path, .needs_room = needs_room}).status;
}

absl::Status SimFiles::begin(const char* name, const std::string& first,
                             const std::string& second) {
  if (is_simulated(first) != is_simulated(second)) {
    return absl::UnimplementedError(
        absl::StrCat("cannot ", name, " ", first, " and ", second, ": they are on two disks"));
  }
  if (!is_simulated(first)) {
    return Access{rank_, plan_, host_queue_, disk_ == nullptr, first}.begin_on_host(name);
  }
  return plan_->begin({.rank = rank_, .name = name, .path = absl::StrCat(first, " to ", second)})
      .status;
}

absl::StatusOr<std::unique_ptr<ReadableFile>> SimFiles::open(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("open", path));
  if (is_simulated(path)) {
    return in_wrapper<Reader>(disk_->open_file(path), Access{rank_, plan_, queue_}, path);
  }
  return in_wrapper<HostReader>(machine_->open(path),
                                Access{rank_, plan_, host_queue_, disk_ == nullptr, path});
}

absl::StatusOr<std::unique_ptr<WritableFile>> SimFiles::create(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("create", path, /*needs_room=*/true));
  if (is_simulated(path)) {
    return in_wrapper<Writer>(disk_->create_file(path), Access{rank_, plan_, queue_}, path);
  }
  return in_wrapper<HostWriter>(machine_->create(path),
                                Access{rank_, plan_, host_queue_, disk_ == nullptr, path});
}

absl::StatusOr<std::unique_ptr<ScratchFile>> SimFiles::open_scratch(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("open_scratch", path, /*needs_room=*/true));
  if (is_simulated(path)) {
    return in_wrapper<Scratch>(disk_->open_scratch_file(path), Access{rank_, plan_, queue_}, path);
  }
  return in_wrapper<HostScratch>(machine_->open_scratch(path),
                                 Access{rank_, plan_, host_queue_, disk_ == nullptr, path});
}

absl::StatusOr<FileInfo> SimFiles::info(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("info", path));
  return owner(path).info(path);
}

absl::StatusOr<std::vector<std::string>> SimFiles::list(const std::string& directory) {
  ACCELERATE_RETURN_IF_ERROR(begin("list", directory));
  return owner(directory).list(directory);
}

absl::Status SimFiles::make_directories(const std::string& path) {
  const bool needs_room = is_simulated(path) && !disk_->info(path).ok();
  const absl::Status status = begin("make_directories", path, needs_room);
  return status.ok() ? owner(path).make_directories(path) : status;
}

absl::Status SimFiles::rename(const std::string& from, const std::string& to) {
  const absl::Status status = begin("rename", from, to);
  return status.ok() ? owner(from).rename(from, to) : status;
}

absl::Status SimFiles::exchange(const std::string& first, const std::string& second) {
  const absl::Status status = begin("exchange", first, second);
  return status.ok() ? owner(first).exchange(first, second) : status;
}

absl::Status SimFiles::remove(const std::string& path) {
  const absl::Status status = begin("remove", path);
  return status.ok() ? owner(path).remove(path) : status;
}

absl::Status SimFiles::sync_directory(const std::string& path) {
  absl::Status status = begin("sync_directory", path);
  if (status.ok()) {
    queue_of(path)->sync(rank_, /*written_ns=*/0);
    status = plan_->refuse_if_dead(rank_);
  }
  return status.ok() ? owner(path).sync_directory(path) : status;
}

std::string SimFiles::temporary_name(const std::string& path) const {
  const std::string name =
      is_simulated(path) ? disk_->temporary_name(path) : machine_->temporary_name(path);
  return absl::StrCat(name, "-rank", rank_);
}

}  // namespace accelerate::simulator
