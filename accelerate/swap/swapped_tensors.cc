#include "accelerate/swap/swapped_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// Where tensors begin, in the file and in buffers: what disks read and write at once.
constexpr int64_t kAlignment = 4096;

int64_t slot_of(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What is read or written at once: tensors that are neighbours in the file.
struct Transfer {
  int64_t offset = 0;
  absl::Span<std::byte> memory;
};

struct Outcome {
  absl::Status read, write;
};

// The blocks of them that are in lane `lane` of `lanes`, which take turns in the buffer's memory,
// so that what a lane reads is where it has written before.
std::vector<Transfer> in_lane(absl::Span<const Transfer> transfers, const std::byte* buffer,
                              int64_t block, int lane, int lanes) {
  std::vector<Transfer> blocks;
  for (Transfer rest : transfers) {
    while (!rest.memory.empty()) {
      const int64_t at = rest.memory.data() - buffer;
      const size_t size = std::min(rest.memory.size(), static_cast<size_t>(block - at % block));
      if (at / block % lanes == lane) {
        blocks.push_back({.offset = rest.offset, .memory = rest.memory.first(size)});
      }
      rest = {.offset = rest.offset + static_cast<int64_t>(size),
              .memory = rest.memory.subspan(size)};
    }
  }
  return blocks;
}

Outcome run(ScratchFile& file, absl::Span<const Transfer> writes,
            absl::Span<const Transfer> reads) {
  Outcome outcome;
  for (const Transfer& each : writes) {
    outcome.write = file.write_at(each.offset, each.memory);
    if (!outcome.write.ok()) return outcome;
  }
  for (const Transfer& each : reads) {
    outcome.read = file.read_at(each.offset, each.memory);
    if (!outcome.read.ok()) break;
  }
  return outcome;
}

// Whether the operator uses no earlier value of the tensor that it writes to.
bool overwrites(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
}

}  // namespace

// A tensor on the disk.
class SwappedTensors::Entry final : public StorageOwner {
 public:
  Entry(std::shared_ptr<Disk> disk, std::string name, int64_t offset, int64_t bytes)
      : name(std::move(name)), offset(offset), bytes(bytes), disk_(std::move(disk)) {}
  ~Entry() override;

  void acquire(const at::Tensor& tensor, const c10::OperatorHandle& op, bool writes) override;
  void release() override;
  bool stays() const override { return false; }

  const Disk* disk() const { return disk_.get(); }
  bool is_in_memory() const { return storage->data() != nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(storage->mutable_data()); }

  void give_memory(const at::Tensor& memory, int64_t at) {
    struct Held {
      at::Tensor memory;
      c10::intrusive_ptr<Entry> entry;
    };
    auto* held = new Held{memory, c10::intrusive_ptr<Entry>::reclaim_copy(this)};
    storage->set_data_ptr_noswap({static_cast<std::byte*>(memory.mutable_data_ptr()) + at, held,
                                  [](void* each) { delete static_cast<Held*>(each); }, at::kCPU});
  }
  void take_memory() {
    drop_memory(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  }

  const std::string name;
  const int64_t offset, bytes;
  c10::StorageImpl* storage = nullptr;  // it keeps this
  size_t part = 0;                      // which of the last round's has it, if any
  int uses = 0;                         // operators that run
  bool is_changed = false;              // since it came into memory
  absl::Status lost;                    // why its values are; OK: they are not

 private:
  const std::shared_ptr<Disk> disk_;
};

class SwappedTensors::Disk : public std::enable_shared_from_this<Disk> {
 public:
  Disk(Runtime& runtime, SwapOptions options)
      : runtime_(runtime),
        options_(std::move(options)),
        buffers_(static_cast<size_t>(std::max(options_.buffer_count, 0))) {
    TORCH_CHECK_VALUE(!options_.folder.empty(), "offload to a disk needs a folder on it");
    TORCH_CHECK_VALUE(options_.buffer_count > 0,
                      "offload to a disk needs one buffer at least, not ", options_.buffer_count);
    TORCH_CHECK_VALUE(options_.blocks_in_flight > 0 && options_.block_bytes >= 0,
                      options_.blocks_in_flight, " blocks of ", options_.block_bytes,
                      " bytes at a time for offload to a disk");
    TORCH_CHECK_VALUE(options_.buffer_bytes >= 0, "buffers of ", options_.buffer_bytes,
                      " bytes for offload to a disk");
    check(runtime_.files().make_directories(options_.folder));
    auto file = runtime_.files().open_scratch(join_path(options_.folder, "swapped_tensors"));
    check(file.status());
    file_ = *std::move(file);
  }

  at::Tensor move(const std::string& name, const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    const auto bytes = static_cast<int64_t>(values.nbytes());
    if (bytes == 0) return values;
    const at::Tensor from = values.detach().cpu().contiguous();
    auto entry = c10::make_intrusive<Entry>(shared_from_this(), name, allocate(bytes), bytes);
    at::Tensor absent = entry->make_absent(from, at::kCPU);
    entry->storage = absent.storage().unsafeGetStorageImpl();
    set_absent_text(absent, absl::StrCat("swapped-out tensor \"", name, "\""));
    const absl::MutexLock lock(&mutex_);
    traffic_.bytes_written += bytes;
    check(file_->write_at(entry->offset,
                          {static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes()}));
    return absent;
  }

  Entry* find(const at::Tensor& tensor) const {
    auto* entry = dynamic_cast<Entry*>(storage_owner(tensor));
    return entry != nullptr && entry->disk() == this ? entry : nullptr;
  }

  // In the order of the file, so that neighbours are one transfer.
  std::vector<Entry*> entries_of(const Part& part) const {
    std::vector<Entry*> entries;
    for (const at::Tensor& each : part) {
      if (Entry* entry = find(each)) entries.push_back(entry);
    }
    std::ranges::sort(entries, {}, &Entry::offset);
    entries.erase(std::ranges::unique(entries).begin(), entries.end());
    return entries;
  }

  void begin_round(const std::vector<Part>& parts) {
    const absl::MutexLock lock(&mutex_);
    displace();
    std::vector<std::vector<Entry*>> entries;
    int64_t largest = 0;
    for (const Part& part : parts) {
      entries.push_back(entries_of(part));
      largest = std::max(largest, size_of(entries.back()));
    }
    check_fits(largest);
    for (size_t i = 0; i < std::min(buffers_.size(), entries.size()); ++i) {
      make_room(buffers_[i], largest);
    }
    if (entries != parts_) {
      // In other parts tensors have other buffers, which must not keep what they had.
      for (Buffer& buffer : buffers_) {
        settle(buffer);
        buffer.holds.clear();
      }
      parts_ = std::move(entries);
      for (size_t part = 0; part < parts_.size(); ++part) {
        for (Entry* entry : parts_[part]) entry->part = part;
      }
    }
    read_first_parts();
    throw_failure();
  }

  void expect_round() {
    const absl::MutexLock lock(&mutex_);
    read_first_parts();
  }

  void swap_in(size_t part) {
    const absl::MutexLock lock(&mutex_);
    displace();
    throw_failure();
    Buffer& buffer = buffer_of(part);
    const std::vector<Entry*>& entries = parts_.at(part);
    if (buffer.holds != entries) read(buffer, entries, false);
    settle(buffer);
    throw_failure();
    for (const Entry* entry : entries) check_not_lost(*entry);
    int64_t at = 0;
    for (Entry* entry : entries) {
      entry->give_memory(buffer.memory, at);
      at += slot_of(entry->bytes);
    }
  }

  void swap_out(size_t part) {
    const absl::MutexLock lock(&mutex_);
    Buffer& buffer = buffer_of(part);
    for (Entry* entry : buffer.holds) {
      entry->take_memory();
      entry->is_changed = false;
    }
    const std::vector<Transfer> writes = transfers(buffer.holds, buffer);
    buffer.writing = buffer.holds;
    traffic_.bytes_written += bytes_in(writes);
    if (!options_.pipeline_write) {
      start(buffer, writes, {}, /*behind=*/false);
      settle(buffer);
    }
    const size_t next = part + buffers_.size();
    std::vector<Transfer> reads;
    if (options_.pipeline_read && next < parts_.size()) {
      buffer.holds = parts_[next];
      reads = transfers(buffer.holds, buffer);
      traffic_.bytes_read += bytes_in(reads);
    }
    if (options_.pipeline_write) {
      start(buffer, writes, std::move(reads), /*behind=*/true);
    } else if (!reads.empty()) {
      start(buffer, {}, std::move(reads), /*behind=*/true);
    }
    throw_failure();
  }

  void finish() {
    const absl::MutexLock lock(&mutex_);
    settle_all();
    throw_failure();
  }

  void clear_failures() {
    const absl::MutexLock lock(&mutex_);
    settle_all();
    failure_ = absl::OkStatus();
  }

  void expect(const Part& part) {
    if (!options_.pipeline_read) return;
    const absl::MutexLock lock(&mutex_);
    const std::vector<Entry*> entries = entries_of(part);
    if (std::ranges::count(buffers_, entries, &Buffer::holds) == 0) read_in_turn(entries, true);
  }

  std::vector<at::Tensor> fetch(const Part& part) {
    const absl::MutexLock lock(&mutex_);
    displace();
    const std::vector<Entry*> entries = entries_of(part);
    auto buffer = std::ranges::find(buffers_, entries, &Buffer::holds);
    if (buffer == buffers_.end()) buffer = buffers_.begin() + read_in_turn(entries, false);
    settle(*buffer);
    throw_failure();
    std::vector<at::Tensor> values;
    for (const at::Tensor& each : part) {
      const Entry* const entry = find(each);
      check_not_lost(*entry);
      int64_t at = each.storage_offset() * static_cast<int64_t>(each.element_size());
      for (const Entry* before : entries) {
        if (before == entry) break;
        at += slot_of(before->bytes);
      }
      values.push_back(buffer->memory.narrow(0, at, static_cast<int64_t>(each.nbytes()))
                           .view(each.scalar_type())
                           .view(each.sizes()));
    }
    return values;
  }

  void store(const at::Tensor& tensor, const at::Tensor& values) {
    Entry* const entry = find(tensor);
    TORCH_INTERNAL_ASSERT(entry != nullptr && tensor.is_contiguous() && values.is_contiguous() &&
                          values.is_cpu() && values.nbytes() == tensor.nbytes());
    const absl::MutexLock lock(&mutex_);
    displace();
    settle_tasks_of(*entry);
    for (Buffer& buffer : buffers_) {
      if (concerns(buffer, *entry)) buffer.holds.clear();
    }
    if (stores_.size() >= buffers_.size()) settle_store();
    entry->lost = absl::OkStatus();
    traffic_.bytes_written += static_cast<int64_t>(values.nbytes());
    Store& store = stores_.emplace_back();
    store.entry = entry;
    store.outcome = std::make_shared<absl::Status>();
    const auto at = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
    store.task = runtime_.start_background(
        [this, outcome = store.outcome, values, offset = entry->offset + at] {
          *outcome = file_->write_at(
              offset, {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
          return true;
        },
        BackgroundStart::kAtOnce);
    throw_failure();
  }

  at::Tensor copy_of(const at::Tensor& tensor) {
    Entry* const entry = find(tensor);
    TORCH_INTERNAL_ASSERT(entry != nullptr && tensor.is_contiguous());
    at::Tensor copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.dtype()));
    const absl::MutexLock lock(&mutex_);
    const auto at = static_cast<int64_t>(tensor.storage_offset() * tensor.element_size());
    const absl::Span<std::byte> to(static_cast<std::byte*>(copy.mutable_data_ptr()), copy.nbytes());
    if (entry->is_in_memory()) {
      std::memcpy(to.data(), entry->data() + at, to.size());
      return copy;
    }
    settle_tasks_of(*entry);
    check_not_lost(*entry);
    traffic_.bytes_read += static_cast<int64_t>(to.size());
    check(file_->read_at(entry->offset + at, to));
    return copy;
  }

  void acquire(Entry& entry, const c10::OperatorHandle& op, bool writes) {
    const absl::MutexLock lock(&mutex_);
    if (!entry.is_in_memory()) {
      displace();
      settle_tasks_of(entry);
      const bool is_lost = !entry.lost.ok();
      if (!writes || !overwrites(op)) check_not_lost(entry);
      at::Tensor memory = at::empty({entry.bytes}, at::kByte);
      const absl::Span<std::byte> bytes(static_cast<std::byte*>(memory.mutable_data_ptr()),
                                        static_cast<size_t>(entry.bytes));
      if (is_lost) {
        std::ranges::fill(bytes, std::byte{0});
        entry.lost = absl::OkStatus();
      } else {
        traffic_.bytes_read += entry.bytes;
        check(file_->read_at(entry.offset, bytes));
      }
      entry.give_memory(memory, 0);
      alone_.push_back(&entry);
    }
    ++entry.uses;
    entry.is_changed = entry.is_changed || writes;
  }

  void release(Entry& entry) {
    const absl::MutexLock lock(&mutex_);
    --entry.uses;
  }

  // The tensor is gone.
  void forget(Entry& entry) {
    const absl::MutexLock lock(&mutex_);
    std::erase(alone_, &entry);
    if (entry.part < parts_.size()) std::erase(parts_[entry.part], &entry);
    for (Buffer& buffer : buffers_) {
      if (!concerns(buffer, entry)) continue;
      settle_quietly(buffer);
      buffer.holds.clear();
    }
    while (std::ranges::count(stores_, &entry, &Store::entry) > 0) settle_store_quietly();
    const int64_t slot = slot_of(entry.bytes);
    traffic_.file_bytes -= slot;
    free_[slot].push_back(entry.offset);
  }

  // Frees the buffers.
  void end() {
    const absl::MutexLock lock(&mutex_);
    for (Buffer& buffer : buffers_) {
      settle_quietly(buffer);
      buffer = {};
    }
    while (!stores_.empty()) settle_store_quietly();
    traffic_.buffer_bytes = 0;
  }

  void check_fits(int64_t bytes) const {
    TORCH_CHECK_VALUE(options_.buffer_bytes == 0 || bytes <= options_.buffer_bytes,
                      "tensors that are needed together have ", bytes, " bytes", on_rank(),
                      ", which do not fit in a buffer of ", options_.buffer_bytes,
                      " bytes for offload to a disk: make buffers larger, or parts smaller");
  }
  int64_t bytes_of(const Part& part) const { return size_of(entries_of(part)); }
  const SwapOptions& options() const { return options_; }
  SwapTraffic traffic() const {
    const absl::MutexLock lock(&mutex_);
    return traffic_;
  }

 private:
  struct Buffer {
    // Whose values it has, or gets from the tasks.
    std::vector<Entry*> holds;
    // Whose values the tasks write.
    std::vector<Entry*> writing;
    at::Tensor memory;
    std::shared_ptr<std::vector<Outcome>> outcomes;      // by task
    std::vector<std::unique_ptr<BackgroundTask>> tasks;  // they use the memory
  };

  // A tensor that is being overwritten.
  struct Store {
    Entry* entry = nullptr;
    std::shared_ptr<absl::Status> outcome;
    std::unique_ptr<BackgroundTask> task;
  };

  std::string on_rank() const { return absl::StrCat(" on rank ", runtime_.topology().rank); }
  void check(const absl::Status& status) const {
    TORCH_CHECK(status.ok(), status.message(), on_rank());
  }
  void check_not_lost(const Entry& entry) const {
    TORCH_CHECK(entry.lost.ok(), "the values of \"", entry.name, "\" are lost", on_rank(), ": ",
                entry.lost.message(), "; load a checkpoint");
  }
  void throw_failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    check(std::exchange(failure_, absl::OkStatus()));
  }

  int64_t allocate(int64_t bytes) {
    const absl::MutexLock lock(&mutex_);
    const int64_t slot = slot_of(bytes);
    traffic_.file_bytes += slot;
    std::vector<int64_t>& free = free_[slot];
    if (free.empty()) return std::exchange(end_, end_ + slot);
    const int64_t offset = free.back();
    free.pop_back();
    return offset;
  }

  static int64_t size_of(const std::vector<Entry*>& entries) {
    int64_t size = 0;
    for (const Entry* entry : entries) size += slot_of(entry->bytes);
    return size;
  }
  static int64_t bytes_in(const std::vector<Transfer>& transfers) {
    int64_t bytes = 0;
    for (const Transfer& each : transfers) bytes += static_cast<int64_t>(each.memory.size());
    return bytes;
  }

  Buffer& buffer_of(size_t part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return buffers_[part % buffers_.size()];
  }
  static bool concerns(const Buffer& buffer, const Entry& entry) {
    return std::ranges::count(buffer.holds, &entry) > 0 ||
           std::ranges::count(buffer.writing, &entry) > 0;
  }

  void make_room(Buffer& buffer, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (buffer.memory.defined() && buffer.memory.numel() >= bytes) return;
    settle(buffer);
    buffer.holds.clear();
    if (buffer.memory.defined()) traffic_.buffer_bytes -= buffer.memory.numel();
    buffer.memory.reset();
    buffer.memory =
        at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(options_.pin_memory));
    traffic_.buffer_bytes += bytes;
  }

  static std::vector<Transfer> transfers(const std::vector<Entry*>& entries, Buffer& buffer) {
    std::vector<Transfer> transfers;
    auto* memory = static_cast<std::byte*>(buffer.memory.mutable_data_ptr());
    int64_t end = -1;  // in the file, of the last slot
    for (const Entry* entry : entries) {
      if (entry->offset != end)
        transfers.push_back({.offset = entry->offset, .memory = {memory, 0}});
      absl::Span<std::byte>& span = transfers.back().memory;
      span = {span.data(), static_cast<size_t>(memory + entry->bytes - span.data())};
      end = entry->offset + slot_of(entry->bytes);
      memory += slot_of(entry->bytes);
    }
    return transfers;
  }

  // Reads into the next buffer, and returns its number.
  int64_t read_in_turn(const std::vector<Entry*>& entries, bool ahead)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t number = next_buffer_++ % buffers_.size();
    const int64_t size = size_of(entries);
    check_fits(size);
    make_room(buffers_[number], size);
    for (const Entry* entry : entries) settle_tasks_of(*entry);
    read(buffers_[number], entries, ahead);
    return static_cast<int64_t>(number);
  }

  void read_first_parts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!options_.pipeline_read) return;
    const size_t used = std::min(buffers_.size(), parts_.size());
    for (size_t i = 0; i < used; ++i) {
      if (buffers_[i].holds != parts_[i]) read(buffers_[i], parts_[i], true);
    }
  }

  void read(Buffer& buffer, const std::vector<Entry*>& entries, bool ahead)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    settle(buffer);
    buffer.holds = entries;
    std::vector<Transfer> reads = transfers(entries, buffer);
    traffic_.bytes_read += bytes_in(reads);
    start(buffer, {}, std::move(reads), ahead);
  }

  // `behind`: whether the rank goes on meanwhile.
  void start(Buffer& buffer, std::vector<Transfer> writes, std::vector<Transfer> reads, bool behind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto* memory = static_cast<const std::byte*>(buffer.memory.const_data_ptr());
    const int64_t size = buffer.memory.numel();
    const int64_t block =
        options_.block_bytes > 0 ? options_.block_bytes : std::max(size, kAlignment);
    const auto lanes = static_cast<int>(
        std::clamp<int64_t>((size + block - 1) / block, 1, options_.blocks_in_flight));
    const absl::Status not_run = absl::InternalError("a transfer could not begin");
    buffer.outcomes = std::make_shared<std::vector<Outcome>>(lanes, Outcome{not_run, not_run});
    for (int lane = 0; lane < lanes; ++lane) {
      auto step = [this, outcomes = buffer.outcomes, lane,
                   writes = in_lane(writes, memory, block, lane, lanes),
                   reads = in_lane(reads, memory, block, lane, lanes)] {
        (*outcomes)[lane] = run(*file_, writes, reads);
        return true;
      };
      if (behind || lanes > 1) {
        buffer.tasks.push_back(
            runtime_.start_background(std::move(step), BackgroundStart::kAtOnce));
      } else {
        step();
      }
    }
  }

  // Returns when the buffer's tasks are done. Errors: `failure_`.
  void settle(Buffer& buffer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& task : std::exchange(buffer.tasks, {})) task->wait();
    const auto outcomes = std::exchange(buffer.outcomes, nullptr);
    const std::vector<Entry*> writing = std::exchange(buffer.writing, {});
    if (outcomes == nullptr) return;
    for (const Outcome& outcome : *outcomes) {
      if (!outcome.write.ok()) {
        for (Entry* entry : writing) entry->lost = outcome.write;
        failure_.Update(outcome.write);
      }
      failure_.Update(outcome.read);
      if (!outcome.write.ok() || !outcome.read.ok()) buffer.holds.clear();
    }
  }

  void settle_all() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    displace();
    for (Buffer& buffer : buffers_) settle(buffer);
    while (!stores_.empty()) settle_store();
  }

  // For destructors.
  void settle_quietly(Buffer& buffer) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    try {
      settle(buffer);
    } catch (...) {
      // The rank is dead or stalled: the disk does nothing more.
    }
  }
  void settle_store_quietly() noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    try {
      settle_store();
    } catch (...) {
      // As above.
    }
  }

  // Returns when the file has the values that the entry has.
  void settle_tasks_of(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Buffer& buffer : buffers_) {
      if (concerns(buffer, entry)) settle(buffer);
    }
    while (std::ranges::count(stores_, &entry, &Store::entry) > 0) settle_store();
  }

  // Returns when the oldest is done.
  void settle_store() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Store store = std::move(stores_.front());
    stores_.erase(stores_.begin());
    store.task->wait();
    if (store.outcome->ok()) return;
    store.entry->lost = *store.outcome;
    failure_.Update(*store.outcome);
  }

  // Tensors that operators brought, and use no more, leave memory.
  void displace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Entry*> left;
    for (Entry* entry : std::exchange(alone_, {})) {
      if (entry->uses > 0) {
        left.push_back(entry);
        continue;
      }
      if (std::exchange(entry->is_changed, false)) {
        settle_tasks_of(*entry);
        for (Buffer& buffer : buffers_) {
          if (concerns(buffer, *entry)) buffer.holds.clear();
        }
        traffic_.bytes_written += entry->bytes;
        const absl::Status written =
            file_->write_at(entry->offset, {entry->data(), static_cast<size_t>(entry->bytes)});
        if (!written.ok()) {
          entry->lost = written;
          failure_.Update(written);
        }
      }
      entry->take_memory();
    }
    alone_ = std::move(left);
  }

  Runtime& runtime_;
  const SwapOptions options_;
  std::unique_ptr<ScratchFile> file_;
  mutable absl::Mutex mutex_;
  int64_t end_ ABSL_GUARDED_BY(mutex_) = 0;  // of the file's slots
  // Offsets of slots without a tensor, by their size.
  std::map<int64_t, std::vector<int64_t>> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<Entry*>> parts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Entry*> alone_ ABSL_GUARDED_BY(mutex_);  // that operators brought outside of parts
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);       // that was not thrown yet
  SwapTraffic traffic_ ABSL_GUARDED_BY(mutex_);
  size_t next_buffer_ ABSL_GUARDED_BY(mutex_) = 0;     // to be read into in turn
  std::vector<Store> stores_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::vector<Buffer> buffers_ ABSL_GUARDED_BY(mutex_);
};

SwappedTensors::Entry::~Entry() { disk_->forget(*this); }

void SwappedTensors::Entry::acquire(const at::Tensor& /*tensor*/, const c10::OperatorHandle& op,
                                    bool writes) {
  disk_->acquire(*this, op, writes);
}

void SwappedTensors::Entry::release() { disk_->release(*this); }

SwappedTensors::SwappedTensors(Runtime& runtime, SwapOptions options)
    : disk_(std::make_shared<Disk>(runtime, std::move(options))) {}

SwappedTensors::~SwappedTensors() { disk_->end(); }

at::Tensor SwappedTensors::move(const std::string& name, const at::Tensor& values) {
  return disk_->move(name, values);
}

void SwappedTensors::move_in_place(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.layout() == at::kStrided, "\"", name,
                    "\" cannot be swapped to a disk: only dense tensors of the host can");
  const at::Tensor absent = move(name, tensor);
  const UnwatchedOperators unwatched;  // set_data is one
  if (!absent.is_same(tensor)) tensor.set_data(absent);
}

bool SwappedTensors::has(const at::Tensor& tensor) const { return disk_->find(tensor) != nullptr; }

at::Tensor SwappedTensors::copy_of(const at::Tensor& tensor) const {
  return disk_->copy_of(tensor);
}

void SwappedTensors::expect_round() { disk_->expect_round(); }
void SwappedTensors::begin_round(const std::vector<Part>& parts) { disk_->begin_round(parts); }
void SwappedTensors::swap_in(size_t part) { disk_->swap_in(part); }
void SwappedTensors::swap_out(size_t part) { disk_->swap_out(part); }
void SwappedTensors::finish() { disk_->finish(); }
void SwappedTensors::clear_failures() { disk_->clear_failures(); }

void SwappedTensors::expect(const Part& part) { disk_->expect(part); }
std::vector<at::Tensor> SwappedTensors::fetch(const Part& part) { return disk_->fetch(part); }
void SwappedTensors::store(const at::Tensor& tensor, const at::Tensor& values) {
  disk_->store(tensor, values);
}

int64_t SwappedTensors::bytes_in_buffer(int64_t bytes) { return slot_of(bytes); }
int64_t SwappedTensors::bytes_of(const Part& part) const { return disk_->bytes_of(part); }
const SwapOptions& SwappedTensors::options() const { return disk_->options(); }
SwapTraffic SwappedTensors::traffic() const { return disk_->traffic(); }

}  // namespace accelerate
