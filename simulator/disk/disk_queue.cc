#include "simulator/disk/disk_queue.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace accelerate::simulator {

DiskQueue::DiskQueue(const DiskModel& model, Hooks hooks)
    : model_(model), hooks_(std::move(hooks)) {}

void DiskQueue::end() {
  model_ = {};
  // The hooks refer to the run, which is over.
  hooks_ = {};
}

void DiskQueue::report(int rank, const char* operation, int64_t bytes, int64_t waited_ns) const {
  if (hooks_.on_operation) hooks_.on_operation(rank, operation, bytes, waited_ns);
}

int64_t DiskQueue::wait_until(int rank, int64_t until_ns) {
  const int64_t from_ns = hooks_.now_ns(rank);
  hooks_.wait_until(rank, until_ns);
  return std::max<int64_t>(until_ns - from_ns, 0);
}

int64_t DiskQueue::transfer(int rank, int64_t bytes, bool writes) {
  int64_t& idle_from_ns = idle_from_ns_[writes ? 1 : 0];
  const double speed = hooks_.speed ? hooks_.speed(rank) : 1;
  const int64_t own_ns =
      std::llround(static_cast<double>(bytes) / (speed * model_.bytes_per_second) * 1e9);
  const int64_t ranks = hooks_.counts_for ? hooks_.counts_for(rank) : 1;
  idle_from_ns = std::max(idle_from_ns, hooks_.now_ns(rank)) + ranks * own_ns;
  if (hooks_.on_transfer && own_ns > 0) {
    hooks_.on_transfer(rank, {.writes = writes,
                              .bytes = bytes,
                              .start_ns = idle_from_ns - own_ns,
                              .end_ns = idle_from_ns});
  }
  return idle_from_ns;
}

void DiskQueue::read(int rank, int64_t bytes) {
  int64_t waited_ns = 0;
  if (takes_time()) {
    waited_ns = wait_until(rank, transfer(rank, bytes, /*writes=*/false) + model_.latency_ns);
  }
  report(rank, "read", bytes, waited_ns);
}

int64_t DiskQueue::write(int rank, int64_t bytes) {
  report(rank, "write", bytes, /*waited_ns=*/0);
  return takes_time() ? transfer(rank, bytes, /*writes=*/true) : 0;
}

void DiskQueue::sync(int rank, int64_t written_ns) {
  int64_t waited_ns = 0;
  if (takes_time()) {
    waited_ns = wait_until(rank, std::max(hooks_.now_ns(rank), written_ns) + model_.latency_ns);
  }
  report(rank, "sync", /*bytes=*/0, waited_ns);
}

}  // namespace accelerate::simulator
