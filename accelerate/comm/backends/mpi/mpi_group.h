/// The members of a group as MPI knows them, and what they have under way.
///
/// Threads: everything is read and written under the engine's lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <mpi.h>

#include "accelerate/comm/backends/mpi/link.h"

namespace accelerate::internal {

class MpiWork;

struct MpiGroup {
  int rank = 0;
  std::vector<int> members;  ///< their ranks in the job, by their rank in the group
  /// Messages from rank to rank have tags of the caller's, so collectives need a communicator of
  /// their own.
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  std::chrono::milliseconds timeout{};

  /// Collectives run one after the other, as they were called; the first of them is under way.
  std::deque<c10::intrusive_ptr<MpiWork>> queue;
  std::atomic<uint32_t> calls = 0;  ///< collectives so far; read by anybody
  std::shared_ptr<Staging> staging = std::make_shared<Staging>();
  /// Set by the first failure: a rank that has left an operation half done cannot begin another.
  std::exception_ptr failure;

  int size() const { return static_cast<int>(members.size()); }

  MpiGroup() = default;
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;
};

}  // namespace accelerate::internal
