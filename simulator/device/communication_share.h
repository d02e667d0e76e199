/// The multiprocessors of a device that collectives take from its kernels.
///
/// A collective of NCCL runs on one multiprocessor for each of its channels. A kernel that is bound
/// by arithmetic and runs meanwhile has the others, so it takes longer. Kernels that are bound by
/// memory traffic are not slowed.
///
/// The interval of a collective is known to a rank once the rank has waited for it, at a point of
/// its own program, so that results do not depend on the order in which ranks run. Kernels that
/// were launched since the call are slowed at that point, all at once; later kernels that fall into
/// the interval, at their launch.
///
/// Units: nanoseconds of virtual time.
/// Threads: those of the device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace accelerate::simulator {

class CommunicationShare {
 public:
  /// The rank has called a collective, of which add_finished() will tell.
  void call() { ++calls_; }

  /// A kernel begins on the stream, and would take `duration_ns` alone. Returns how long it takes
  /// beside the collectives that are known. No later kernel begins before `host_ns`.
  int64_t launch(int stream, int64_t host_ns, int64_t start_ns, int64_t duration_ns,
                 bool is_bound_by_arithmetic);

  /// The rank knows that the collective of one call() ran from `start_ns` until `end_ns` on that
  /// share of the multiprocessors, below 1. Calls `delay(stream, end_ns)` for each stream whose
  /// earlier kernels end later because of that, with the new end of the last one.
  void add_finished(int64_t start_ns, int64_t end_ns, double share,
                    absl::FunctionRef<void(int stream, int64_t end_ns)> delay);

 private:
  struct Interval {
    int64_t start_ns;
    int64_t end_ns;
    double share;
  };
  struct Busy {
    int stream;
    bool is_bound_by_arithmetic;
    int64_t start_ns;
    int64_t end_ns;
  };

  // The end of a kernel that would take `duration_ns` alone.
  static int64_t end_beside(absl::Span<const Interval> collectives, int64_t start_ns,
                            int64_t duration_ns);

  std::vector<Interval> known_;  // that kernels may still fall into
  std::vector<Busy> busy_;       // since the first of the calls, if there are some
  int calls_ = 0;
};

}  // namespace accelerate::simulator
