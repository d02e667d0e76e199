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

// Reads a file with the wrong bit that the verdict has, if it has one.
template <typename File>
absl::Status read_with_faults(File& file, const FaultPlan::Verdict& verdict, int64_t offset,
                              absl::Span<std::byte> out) {
  if (!verdict.status.ok()) return verdict.status;
  if (verdict.flipped_bit && verdict.on_medium) {
    SimDisk::damage(file, 8 * offset + *verdict.flipped_bit);
  }
  const absl::Status read = file.read_at(offset, out);
  if (read.ok() && verdict.flipped_bit && !verdict.on_medium) {
    out[*verdict.flipped_bit / 8] ^= std::byte{1} << (*verdict.flipped_bit % 8);
  }
  return read;
}

// The file that was opened, in a Wrapper.
template <typename Wrapper, typename File, typename Access>
absl::StatusOr<std::unique_ptr<Wrapper>> in_wrapper(absl::StatusOr<std::unique_ptr<File>> opened,
                                                    Access access) {
  if (!opened.ok()) return opened.status();
  return std::make_unique<Wrapper>(std::move(access), *std::move(opened));
}

}  // namespace

// A rank at a file: what refuses its operations, and what they wait for.
struct SimFiles::Access {
  int rank = 0;
  std::shared_ptr<FaultPlan> plan;
  std::shared_ptr<DiskQueue> queue;
  // The file is the machine's: faults may refuse its operations, but damage nothing.
  bool on_host = false;
  // Whether the machine's files are all that the rank has, so that the run's plan strikes those.
  bool counts_host = false;
  std::string path;

  // Asks the plan about an operation on the file. A dead rank makes none, and where the machine's
  // files take time ranks take turns.
  FaultPlan::Verdict begin(FaultPlan::Operation operation) const {
    if (on_host) {
      if (queue->takes_time()) plan->run_other_ranks(rank);
      if (!counts_host || !plan->watches_host()) return {.status = plan->refuse_if_dead(rank)};
    }
    operation.rank = rank;
    operation.path = path;
    operation.on_host = on_host;
    return plan->begin(operation);
  }
  // The same for reading so many bytes: waits until the disk has read them.
  FaultPlan::Verdict begin_reading(const char* name, size_t size) const {
    const auto bytes = static_cast<int64_t>(size);
    FaultPlan::Verdict verdict = begin({.name = name, .bytes = bytes, .reads = true});
    if (!verdict.status.ok()) return verdict;
    queue->read(rank, bytes);
    verdict.status = plan->refuse_if_dead(rank);
    return verdict;
  }
  // The same for writing bytes, of which `write` puts the first on the disk, durably or not.
  absl::Status begin_writing(
      const char* name, size_t size = 0,
      std::function<void(int64_t bytes, bool durably)> write = nullptr) const {
    return begin({.name = name,
                  .bytes = static_cast<int64_t>(size),
                  .needs_room = true,
                  .write = std::move(write)})
        .status;
  }
  // Returns the time at which the disk has the bytes.
  int64_t write(size_t bytes) const { return queue->write(rank, static_cast<int64_t>(bytes)); }
  // Waits until the disk has what was written by then.
  absl::Status sync(int64_t written_ns) const {
    queue->sync(rank, written_ns);
    return plan->refuse_if_dead(rank);
  }
};

class SimFiles::Reader final : public ReadableFile {
 public:
  Reader(Access access, std::unique_ptr<ReadableFile> file)
      : access_(std::move(access)), file_(std::move(file)) {}

  int64_t size() const override { return file_->size(); }

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
    return read_with_faults(*file_, access_.begin_reading("read_at", out.size()), offset, out);
  }

  absl::StatusOr<Map> map() const override {
    const FaultPlan::Verdict verdict =
        access_.begin_reading("map", static_cast<size_t>(file_->size()));
    if (!verdict.status.ok()) return verdict.status;
    if (verdict.flipped_bit && verdict.on_medium) SimDisk::damage(*file_, *verdict.flipped_bit);
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
  const std::unique_ptr<ReadableFile> file_;
};

class SimFiles::Writer final : public WritableFile {
 public:
  Writer(Access access, std::unique_ptr<WritableFile> file)
      : access_(std::move(access)), file_(std::move(file)) {}

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    const auto write = [&](int64_t bytes, bool durably) {
      const absl::Span<const std::byte> part = data.first(bytes);
      const absl::Status written =
          durably ? SimDisk::write_through(*file_, offset, part) : file_->write_at(offset, part);
      written.IgnoreError();  // The operation fails anyway.
    };
    ACCELERATE_RETURN_IF_ERROR(access_.begin_writing("write_at", data.size(), write));
    const absl::Status written = file_->write_at(offset, data);
    if (written.ok()) written_ns_ = access_.write(data.size());
    return written;
  }

  absl::Status sync() override {
    absl::Status status = access_.begin_writing("sync");
    if (status.ok()) status = access_.sync(written_ns_);
    return status.ok() ? file_->sync() : status;
  }

  absl::Status close() override {
    const absl::Status status = access_.begin_writing("close");
    return status.ok() ? file_->close() : status;
  }

 private:
  const Access access_;
  const std::unique_ptr<WritableFile> file_;
  int64_t written_ns_ = 0;  // when the disk has all that was written so far
};

// It holds what memory has no room for, so no cache takes writes over: they wait for the disk.
class SimFiles::Scratch final : public ScratchFile {
 public:
  Scratch(Access access, std::unique_ptr<ScratchFile> file)
      : access_(std::move(access)), file_(std::move(file)) {}

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
    return read_with_faults(*file_, access_.begin_reading("read_at", out.size()), offset, out);
  }

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    const auto write = [&](int64_t part, bool /*durably*/) {
      file_->write_at(offset, data.first(part)).IgnoreError();  // The operation fails anyway.
    };
    absl::Status status = access_.begin_writing("write_at", data.size(), write);
    if (status.ok()) status = access_.sync(access_.write(data.size()));
    return status.ok() ? file_->write_at(offset, data) : status;
  }

 private:
  const Access access_;
  const std::unique_ptr<ScratchFile> file_;
};

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

FileSystem& SimFiles::owner(const std::string& path) const {
  if (is_simulated(path)) return *disk_;
  return *machine_;
}

SimFiles::Access SimFiles::access_to(const std::string& path) const {
  const bool on_host = !is_simulated(path);
  return {.rank = rank_,
          .plan = plan_,
          .queue = on_host ? host_queue_ : queue_,
          .on_host = on_host,
          .counts_host = disk_ == nullptr,
          .path = path};
}

absl::Status SimFiles::begin(const char* name, const std::string& path, bool needs_room) {
  return access_to(path).begin({.name = name, .needs_room = needs_room}).status;
}

absl::Status SimFiles::begin(const char* name, const std::string& first,
                             const std::string& second) {
  if (is_simulated(first) != is_simulated(second)) {
    return absl::UnimplementedError(
        absl::StrCat("cannot ", name, " ", first, " and ", second, ": they are on two disks"));
  }
  Access access = access_to(first);
  if (!access.on_host) absl::StrAppend(&access.path, " to ", second);
  return access.begin({.name = name}).status;
}

absl::StatusOr<std::unique_ptr<ReadableFile>> SimFiles::open(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("open", path));
  return in_wrapper<Reader>(owner(path).open(path), access_to(path));
}

absl::StatusOr<std::unique_ptr<WritableFile>> SimFiles::create(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("create", path, /*needs_room=*/true));
  return in_wrapper<Writer>(owner(path).create(path), access_to(path));
}

absl::StatusOr<std::unique_ptr<ScratchFile>> SimFiles::open_scratch(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(begin("open_scratch", path, /*needs_room=*/true));
  return in_wrapper<Scratch>(owner(path).open_scratch(path), access_to(path));
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
  if (status.ok()) status = access_to(path).sync(/*written_ns=*/0);
  return status.ok() ? owner(path).sync_directory(path) : status;
}

std::string SimFiles::temporary_name(const std::string& path) const {
  return absl::StrCat(owner(path).temporary_name(path), "-rank", rank_);
}

}  // namespace accelerate::simulator
