#include "accelerate/comm/watch/shared_memory_comparer.h"

#include <cerrno>
#include <climits>
#include <string>

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

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

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

bool SharedMemoryComparer::settle(uint64_t round, std::chrono::milliseconds timeout) {
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
