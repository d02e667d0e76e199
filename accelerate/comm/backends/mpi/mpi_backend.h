/// c10d over MPI, for ranks that mpirun or srun started.
///
/// Linking it registers the backend "mpi". All collectives and messages, on CPU tensors, of all
/// dtypes; sums are taken in the order of ranks by LibTorch's kernels (schedules.h). Operations are
/// asynchronous and run in the order of their calls (mpi_engine.h).
///
/// Errors:  those of check_call, at once; c10::NotImplementedError for premultiplied sums;
///          c10::DistBackendError naming the rank, the operation and the ranks it waited for when
///          it fails or runs into its time-out. Afterwards the group throws it for every call.
/// Threads: any; collectives of a group are called by one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/mpi/mpi_engine.h"
#include "accelerate/comm/backends/mpi/schedules.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {

class MpiBackend final : public CallBackend, public Interruptible {
 public:
  /// Collective over the group.
  explicit MpiBackend(const BackendOptions& options);
  ~MpiBackend() override;

  const std::string getBackendName() const override { return "mpi"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group_->calls; }

  void interrupt() override;

  /// Calls in between run as usual; endCoalescing returns one Work for all of them.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  WorkPtr issue(const CollectiveCall& call) override;
  internal::Schedule schedule_of(c10d::OpType op, const CollectiveCall& call,
                                 internal::Link& link) const;
  internal::Schedule exchange(const CollectiveCall& call, internal::Link& link,
                              std::vector<internal::Bytes> sends,
                              std::vector<internal::Bytes> receives) const;

  const std::shared_ptr<internal::MpiGroup> group_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace accelerate
