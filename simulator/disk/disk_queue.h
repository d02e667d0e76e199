/// The virtual time that a disk takes in one run. It reads and writes at the same time: one
/// transfer in each direction, at the disk's rate, in the order in which ranks ask. The files may
/// be the machine's own. README.md in this folder says which operations wait.
///
/// A transfer occupies its direction for bytes / rate. Who waits for its end waits for the latency
/// as well; the disk goes on meanwhile, so latencies of several operations pass at once.
///
/// Units: bytes, nanoseconds of virtual time since the start of the run.
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <cstdint>
#include <functional>

#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {

/// The time in which a direction of the disk works for one operation of one rank.
struct DiskTransfer {
  bool writes = false;
  int64_t bytes = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

class DiskQueue {
 public:
  struct Hooks {
    /// The time at which a rank asks.
    std::function<int64_t(int rank)> now_ns;
    /// Makes the rank wait; may let other ranks run.
    std::function<void(int rank, int64_t until_ns)> wait_until;
    /// For how many ranks of this disk the rank counts, itself included, because they do the same
    /// and are not executed; null: for itself. The disk works for all of them, and then the rank
    /// has its bytes.
    std::function<int(int rank)> counts_for;
    /// A factor of the disk's rate for what a rank asks now; null: 1.
    std::function<double(int rank)> speed;
    /// Called after each operation on a file, which is "read", "write" or "sync", with the time
    /// that the rank waited; may be null.
    std::function<void(int rank, const char* operation, int64_t bytes, int64_t waited_ns)>
        on_operation;
    /// Called with each transfer that takes time; may be null.
    std::function<void(int rank, const DiskTransfer&)> on_transfer;
  };
  /// If the disk takes no time, `on_operation` alone is called.
  DiskQueue(const DiskModel& model, Hooks hooks);

  bool takes_time() const { return model_.takes_time(); }

  /// Ends the run: operations take no more time.
  void end();

  /// Waits until the rank has the bytes.
  void read(int rank, int64_t bytes);
  /// Gives the disk bytes to write, and does not wait. Returns the time at which they are written.
  int64_t write(int rank, int64_t bytes);
  /// Waits until the rank knows that what the disk has written at `written_ns` is durable.
  void sync(int rank, int64_t written_ns);

 private:
  void report(int rank, const char* operation, int64_t bytes, int64_t waited_ns) const;
  // Returns the time that the rank waited.
  int64_t wait_until(int rank, int64_t until_ns);
  int64_t transfer(int rank, int64_t bytes, bool writes);

  DiskModel model_;
  Hooks hooks_;
  int64_t idle_from_ns_[2] = {0, 0};  // by direction: reading, writing
};

}  // namespace accelerate::simulator
