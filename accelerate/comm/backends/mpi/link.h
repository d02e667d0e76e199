/// What one operation has of its group: the members to talk to, a tag of its own, and a place for
/// what it receives before it is added up.
///
/// Threads: none of its own; see transfers.h.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "accelerate/comm/backends/mpi/transfers.h"

namespace accelerate::internal {

/// Memory that a group's operations use one after the other, kept because fresh pages cost as much
/// as the transfer into them.
class Staging {
 public:
  char* at_least(size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();  // Not both at once.
      memory_ = std::make_unique_for_overwrite<char[]>(bytes);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  size_t bytes_ = 0;
};

struct Link {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int tag = 0;
  size_t max_message = Transfers::kMaxMessage;
  std::shared_ptr<Staging> staging;
  /// All that the operation has opened, so that it can be taken back.
  std::vector<std::unique_ptr<Transfers>> opened;

  Transfers& open() {
    return *opened.emplace_back(std::make_unique<Transfers>(communicator, tag, max_message));
  }
};

}  // namespace accelerate::internal
