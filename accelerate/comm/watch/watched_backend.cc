#include "accelerate/comm/watch/watched_backend.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using c10d::OpType;

// Without backtraces and the like: the first line says what.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

[[noreturn]] void fail_operation(const WatchedGroup& group, OperationLog::Ticket ticket,
                                 const std::exception_ptr& cause) {
  OperationLog& log = group.job->log();
  const std::string operation = log.describe(ticket);
  log.set_state(ticket, OperationState::kFailed);
  group.fail(operation, cause);
}

// The Work of an operation under watch. It behaves as the backend's own, but its errors are the
// job's report, and its state goes to the operation log. A future's callbacks may be delayed until
// the report is made (JobWatch::fail).
class WatchedWork final : public c10d::Work {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  // `finish_comparison` may be null.
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<const WatchedGroup> group,
              OperationLog::Ticket ticket, FinishComparison finish_comparison)
      : Work(group->rank, inner->retrieveOpType()),
        inner_(std::move(inner)),
        group_(std::move(group)),
        ticket_(ticket),
        finish_comparison_(std::move(finish_comparison)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void abort() override { inner_->abort(); }
  FuturePtr getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

  std::exception_ptr exception() const override {
    const std::exception_ptr cause = inner_->exception();
    if (!cause) return nullptr;
    try {
      fail_operation(*group_, ticket_, cause);
    } catch (...) {
      return std::current_exception();
    }
  }

  void synchronize() override {
    try {
      inner_->synchronize();
      if (finish_comparison_) finish_comparison_();
    } catch (...) {
      fail_operation(*group_, ticket_, std::current_exception());
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    OperationLog& log = group_->job->log();
    log.set_state(ticket_, OperationState::kWaiting);
    bool finished = false;
    try {
      finished = inner_->wait(timeout);
      if (finish_comparison_) finish_comparison_();
    } catch (...) {
      fail_operation(*group_, ticket_, std::current_exception());
    }
    log.set_state(ticket_, OperationState::kDone);
    return finished;
  }

  FuturePtr getFuture() override {
    if (future_) return future_;
    const FuturePtr inner = inner_->getFuture();
    future_ = inner->then(
        [group = group_, ticket = ticket_,
         finish_comparison = finish_comparison_](c10::ivalue::Future& done) {
          try {
            if (done.hasError()) std::rethrow_exception(done.exception_ptr());
            if (finish_comparison) finish_comparison();
          } catch (...) {
            fail_operation(*group, ticket, std::current_exception());
          }
          group->job->log().set_state(ticket, OperationState::kDone);
          return done.constValue();
        },
        inner->elementType());
    return future_;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<const WatchedGroup> group_;
  const OperationLog::Ticket ticket_;
  const FinishComparison finish_comparison_;
  FuturePtr future_;
};

std::shared_ptr<void> end_pending_on_failure(JobWatch& job,
                                             const c10::intrusive_ptr<c10d::Backend>& inner) {
  if (dynamic_cast<Interruptible*>(inner.get()) == nullptr) return nullptr;
  return job.on_failure([inner] { dynamic_cast<Interruptible*>(inner.get())->interrupt(); });
}

// How long other members may take to reach a call that differs, so that the report names all.
constexpr std::chrono::seconds kGrace(2);

// ---- Calls compared through shared memory.

// How many calls a member may be ahead of another.
constexpr uint64_t kAhead = 64;
// The member that is waited for has often come already, or is about to.
constexpr int kYields = 100;
// How often a sleeper checks that the member it waits for is still alive.
constexpr std::chrono::milliseconds kSlice(50);

constexpr char kNameKey[] = "call comparer/name";
constexpr char kUseKey[] = "call comparer/use";

std::string opened_key(int member) { return absl::StrCat("call comparer/opened/", member); }

// Process numbers can be compared within one PID namespace only.
uint64_t process_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec slice{.tv_nsec = std::chrono::nanoseconds(kSlice).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Memory shared by all processes that map this name; nullptr on failure.
void* map_shared(const std::string& name, size_t bytes, bool create) {
  const int fd = shm_open(name.c_str(), O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
  if (fd < 0) return nullptr;
  void* memory = MAP_FAILED;
  // Allocates the memory itself: if none is left, a later write would raise SIGBUS.
  if (!create || posix_fallocate(fd, 0, static_cast<off_t>(bytes)) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  return memory == MAP_FAILED ? nullptr : memory;
}

std::string fresh_name() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) return "";
  return absl::StrCat("/accelerate-", absl::Hex(bits));
}

}  // namespace

void WatchedGroup::fail(const std::string& operation, const std::exception_ptr& cause) const {
  const std::string reason = absl::StrCat("rank ", rank, ": ", operation, " of group \"", name,
                                          "\" failed: ", first_line(exception_text(cause)));
  throw c10::DistBackendError(job->fail({.reason = reason, .group = name, .ranks = ranks}));
}

void WatchedGroup::fail_mismatch() const {
  throw c10::DistBackendError(job->fail({.reason = "", .group = name, .ranks = ranks}));
}

WatchedBackend::WatchedBackend(BackendPtr inner, WatchedGroup group, Options options)
    : CallBackend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      group_(std::make_shared<const WatchedGroup>(std::move(group))),
      options_(std::move(options)),
      interrupt_(end_pending_on_failure(*group_->job, inner_)) {}

WatchedBackend::WorkPtr WatchedBackend::issue(const CollectiveCall& call) {
  if (options_.comparer && options_.compares_all) {
    for (const at::Tensor& tensor : call.share()) {
      // Tensors that the library itself exchanges, besides the user's, are on the CPU.
      TORCH_CHECK_VALUE(
          !tensor.defined() || tensor.device().type() == options_.device_type || tensor.is_cpu(),
          op_name(call.op), ": a tensor is on ", tensor.device(), ", but the ranks compute on ",
          c10::Device(options_.device_type), "; move it there first");
    }
  }
  return run(call.describe(), call.timeout, [&] { return call.repeat(*inner_); });
}

FinishComparison WatchedBackend::compare(const CollectiveFingerprint& call,
                                         std::chrono::milliseconds timeout) const {
  const auto entry = options_.comparer->enter(call.hash(), timeout);
  if (!entry.agrees) {
    try {
      options_.comparer->compare_all(entry.round,
                                     std::min<std::chrono::milliseconds>(timeout, kGrace));
    } catch (const c10::DistBackendError&) {
      // The report does not name members that are late.
    }
    group_->fail_mismatch();
  }
  return [comparer = options_.comparer, group = group_, round = entry.round, timeout] {
    if (!comparer->compare_all(round, timeout)) group->fail_mismatch();
  };
}

WatchedBackend::WorkPtr WatchedBackend::run(CollectiveFingerprint call,
                                            std::chrono::milliseconds timeout,
                                            absl::FunctionRef<WorkPtr()> begin) {
  group_->job->check();
  OperationLog& log = group_->job->log();
  std::unique_lock lock(one_at_a_time_, std::defer_lock);
  const bool compared = options_.comparer && (options_.compares_all || ComparedCalls::current()) &&
                        !coalescing_ && !c10d::isP2POp(call.op);
  if (compared) lock.lock();
  const OperationLog::Ticket ticket = log.enter(group_->index, call);
  auto fail = [&] {
    log.set_state(ticket, OperationState::kFailed);
    group_->fail(call.to_string(), std::current_exception());
  };
  FinishComparison finish_comparison;
  if (compared) {
    log.set_state(ticket, OperationState::kWaiting);
    try {
      finish_comparison =
          compare(call, timeout == c10d::kUnsetTimeout ? options_.timeout : timeout);
    } catch (...) {
      fail();
    }
    log.set_state(ticket, OperationState::kIssued);
  }
  WorkPtr work;
  try {
    work = begin();
  } catch (const c10::DistError&) {
    fail();
  } catch (const c10::Error&) {
    log.refuse(ticket);
    throw;
  } catch (...) {
    fail();
  }
  // Inside a coalesced block the backend may not have a Work yet.
  if (!work) return work;
  return c10::make_intrusive<WatchedWork>(std::move(work), group_, ticket,
                                          std::move(finish_comparison));
}

void WatchedBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group_->job->check();
  OperationLog& log = group_->job->log();
  CollectiveFingerprint call(OpType::BARRIER);
  const OperationLog::Ticket ticket = log.enter(group_->index, call);
  log.set_state(ticket, OperationState::kWaiting);
  try {
    inner_->monitoredBarrier(options, wait_all_ranks);
  } catch (...) {
    log.set_state(ticket, OperationState::kFailed);
    group_->fail(call.to_string(), std::current_exception());
  }
  log.set_state(ticket, OperationState::kDone);
}

void WatchedBackend::startCoalescing() {
  inner_->startCoalescing();
  coalescing_ = true;
}

WatchedBackend::WorkPtr WatchedBackend::endCoalescing() {
  coalescing_ = false;
  return run(CollectiveFingerprint(OpType::COALESCED), c10d::kUnsetTimeout,
             [&] { return inner_->endCoalescing(); });
}

// Zeroed memory is a valid slot of a member that has made no call yet.
struct SharedMemoryComparer::Slot {
  alignas(64) std::atomic<uint64_t> calls;  // that its member has made
  std::atomic<uint32_t> changes;            // of `calls` and `closed`; what sleepers watch
  std::atomic<uint32_t> sleepers;           // members that wait for it
  std::atomic<uint32_t> closed;
  std::atomic<int32_t> process;
  std::atomic<uint64_t> process_space;
  std::atomic<uint64_t> hashes[kAhead];  // call c's is at c % kAhead

  void wake() {
    changes.fetch_add(1);
    if (sleepers.load() > 0) futex_wake_all(changes);
  }
};

std::unique_ptr<SharedMemoryComparer> SharedMemoryComparer::make(c10d::Store& store, int member,
                                                                 int members) {
  const size_t bytes = sizeof(Slot) * static_cast<size_t>(members);
  const bool first = member == 0;
  if (first) store.set(kNameKey, fresh_name());
  // get waits for the key.
  const std::string name = store.get_to_str(kNameKey);
  void* memory = nullptr;
  if (first || store.get_to_str(opened_key(0)) == "1") {
    memory = map_shared(name, bytes, /*create=*/first);
  }
  store.set(opened_key(member), memory != nullptr ? "1" : "0");
  if (first) {
    bool all = memory != nullptr;
    for (int other = 1; all && other < members; ++other) {
      all = store.get_to_str(opened_key(other)) == "1";
    }
    if (memory != nullptr) shm_unlink(name.c_str());
    store.set(kUseKey, all ? "1" : "0");
  }
  if (store.get_to_str(kUseKey) == "1") {
    return std::unique_ptr<SharedMemoryComparer>(
        new SharedMemoryComparer(static_cast<Slot*>(memory), member, members));
  }
  if (memory != nullptr) munmap(memory, bytes);
  return nullptr;
}

SharedMemoryComparer::SharedMemoryComparer(Slot* slots, int member, int members)
    : slots_(slots), member_(member), members_(members) {
  slots_[member].process_space.store(process_namespace());
  slots_[member].process.store(getpid());
}

SharedMemoryComparer::~SharedMemoryComparer() {
  Slot& mine = slots_[member_];
  mine.closed.store(1);
  mine.wake();
  munmap(slots_, sizeof(Slot) * static_cast<size_t>(members_));
}

CallComparer::Entry SharedMemoryComparer::enter(uint64_t hash, std::chrono::milliseconds timeout) {
  Slot& mine = slots_[member_];
  Entry entry{.round = mine.calls.load()};
  if (interrupted_.load()) throw c10::DistBackendError("interrupted");
  // A slot for a hash is free once all members are past the call it was for.
  for (int member = 0; entry.round >= kAhead && member < members_; ++member) {
    if (member != member_) wait_for(slots_[member], entry.round - kAhead + 2, timeout);
  }
  mine.hashes[entry.round % kAhead].store(hash);
  // If two members come at the same time, at least one sees the other below.
  mine.calls.store(entry.round + 1);
  mine.wake();
  for (int member = 0; member < members_; ++member) {
    const Slot& slot = slots_[member];
    if (slot.calls.load() <= entry.round) continue;
    entry.agrees = entry.agrees && slot.hashes[entry.round % kAhead].load() == hash;
  }
  return entry;
}

bool SharedMemoryComparer::compare_all(uint64_t round, std::chrono::milliseconds timeout) {
  const uint64_t hash = slots_[member_].hashes[round % kAhead].load();
  bool agrees = true;
  for (int member = 0; member < members_; ++member) {
    Slot& slot = slots_[member];
    wait_for(slot, round + 1, timeout);
    agrees = agrees && slot.hashes[round % kAhead].load() == hash;
  }
  // Hashes that later ones have overwritten were compared when their members made the call.
  for (int member = 0; member < members_; ++member) {
    if (slots_[member].calls.load() >= round + kAhead) return true;
  }
  return agrees;
}

void SharedMemoryComparer::wait_for(Slot& slot, uint64_t calls,
                                    std::chrono::milliseconds timeout) const {
  auto came = [&] { return slot.calls.load() >= calls; };
  for (int i = 0; i < kYields && !came(); ++i) sched_yield();
  if (came()) return;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // A member that came, went on and ended in the meantime is not missing.
  auto check = [&](bool fine, const char* what) {
    if (!fine && !came()) throw c10::DistBackendError(what);
  };
  while (!came()) {
    check(!interrupted_.load(), "interrupted");
    check(slot.closed.load() == 0, "a member has closed the group");
    check(std::chrono::steady_clock::now() < deadline, "timed out waiting for a member to call");
    const int32_t process = slot.process.load();
    if (process > 0 && slot.process_space.load() == slots_[member_].process_space.load()) {
      check(kill(process, 0) == 0 || errno != ESRCH, "a member's process is gone");
    }
    slot.sleepers.fetch_add(1);
    const uint32_t seen = slot.changes.load();
    if (!came() && slot.closed.load() == 0) futex_wait(slot.changes, seen);
    slot.sleepers.fetch_sub(1);
  }
}

}  // namespace accelerate
