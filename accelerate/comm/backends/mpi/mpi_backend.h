/// c10d over MPI, for ranks that mpirun or srun started.
///
/// Linking it registers the backend "mpi". All collectives and messages, on CPU tensors, of all
/// dtypes; sums are taken in the order of ranks by LibTorch's kernels (schedules.h). Operations are
/// asynchronous and run in the order of their calls (mpi_engine.h).
///
/// Errors:  c10::ValueError and c10::NotImplementedError at once for a call that is wrong by
/// itself;
///          c10::DistBackendError naming the rank, the operation and the ranks it waited for when
///          it fails or runs into its time-out. Afterwards the group throws it for every call.
/// Threads: any; collectives of a group are called by one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/mpi/mpi_engine.h"
#include "accelerate/comm/backends/mpi/schedules.h"

namespace accelerate {

class MpiBackend final : public c10d::Backend, public Interruptible {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// Collective over the group.
  explicit MpiBackend(const BackendOptions& options);
  ~MpiBackend() override;

  const std::string getBackendName() const override { return "mpi"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group_->calls; }

  void interrupt() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  /// Every failed barrier names the ranks that it waited for.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  /// What is called in between runs as ever; the end gives a Work for all of it.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  using MpiWorkPtr = c10::intrusive_ptr<internal::MpiWork>;

  MpiWorkPtr make_work(c10d::OpType op, std::chrono::milliseconds timeout, Tensors results,
                       Tensors kept = {}) const;
  WorkPtr start(const MpiWorkPtr& work, internal::Schedule schedule);
  // An exchange in which this rank has as much for itself as it expects.
  WorkPtr start_exchange(c10d::OpType op, std::chrono::milliseconds timeout, Tensors outputs,
                         Tensors inputs, std::vector<internal::Bytes> receives,
                         std::vector<internal::Bytes> sends);
  WorkPtr start_message(const MpiWorkPtr& work, int tag, internal::Schedule schedule);
  WorkPtr keep(WorkPtr work);

  const std::shared_ptr<internal::MpiGroup> group_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace accelerate
