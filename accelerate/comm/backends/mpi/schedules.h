/// The collectives, written over messages between two ranks.
///
/// A sum is always taken in the order of ranks, whatever its size and way: results are the same
/// on all ranks, from run to run, for any cut of the tensors into buckets, and equal to the
/// simulator's bit for bit.
///
/// MPI's own collectives are not used: the blocking ones can neither be given a time-out nor left,
/// and one thread that blocks in one group's would hold up the others'; the non-blocking ones take
/// three times as long for large tensors (accelerate/docs/performance.md).
///
/// What is passed has to stay valid until the schedule has ended. Units: bytes, unless named
/// otherwise. A schedule is a collective of the link's group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/comm/backends/mpi/link.h"
#include "accelerate/comm/backends/mpi/schedule.h"

namespace accelerate::internal {

/// Reduces memory by LibTorch's own kernels, so that every dtype and operator gives what it gives
/// on tensors, and what the simulator gives. The caller checks that the dtype can be reduced
/// (check_call).
struct Reduction {
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  at::ScalarType dtype = at::kFloat;

  size_t element_size() const { return c10::elementSize(dtype); }
  /// total = total (op) value, element by element.
  void add(char* total, const char* value, int64_t numel) const;
  /// Makes the sum of `count` ranks an average, if that is what is wanted.
  void finish(char* total, int64_t numel, int count) const;
};

/// A part of memory.
struct Bytes {
  char* data = nullptr;
  size_t size = 0;
};

Schedule barrier(Link& link);
Schedule broadcast(Link& link, Bytes data, int root);

/// sends[r] goes to rank r, and what rank r sends comes to receives[r]. Both parts have the same
/// size; two ranks without anything for each other do not talk.
Schedule exchange(Link& link, std::vector<Bytes> sends, std::vector<Bytes> receives);
/// mine comes to every rank's outputs[this rank].
Schedule all_gather(Link& link, Bytes mine, std::vector<Bytes> outputs);

/// In place.
Schedule all_reduce(Link& link, Reduction reduction, Bytes data);
/// In place on the root; other ranks' data is left alone.
Schedule reduce(Link& link, Reduction reduction, Bytes data, int root);
/// inputs[r] is this rank's term of rank r's sum, of the same size on all ranks. `output` may be
/// inputs[this rank].
Schedule reduce_scatter(Link& link, Reduction reduction, std::vector<Bytes> inputs, char* output);

}  // namespace accelerate::internal
