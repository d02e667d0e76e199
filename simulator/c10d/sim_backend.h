/// The c10d backend "sim": the collectives of ranks that are threads of one process.
///
/// All of c10d's collectives and messages, for every dtype and reduce op that c10d's own backends
/// allow. As strict as they are: one tensor where they take one, contiguous memory, equal shapes.
/// Errors: c10::ValueError or NotImplementedError for a call that is wrong by itself, on that rank
///         at once; c10::DistBackendError from Work::wait for what ranks disagree on.
/// Futures: Work::getFuture blocks until the operation is done, because nothing can give up the
///          baton inside c10::ivalue::Future::wait.
/// Time:    on devices, operations run on a stream of the group's own, after what is on the current
///          stream when they are called; see Communicator.
/// Threads: a member's methods are called by its rank only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/time/time.h"
#include "simulator/c10d/communicator.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

class SimBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  SimBackend(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator, int member,
             absl::Duration timeout);

  const std::string getBackendName() const override { return "sim"; }
  uint64_t getSequenceNumberForGroup() override;
  void setSequenceNumberForGroup() override {}

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
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  /// Between these, calls are issued as usual; the returned Work stands for all of them.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  Call make_call(c10d::OpType op) const;
  Call make_reduction(c10d::OpType op, const c10d::ReduceOp& reduce_op) const;
  WorkPtr join(Call call, std::chrono::milliseconds timeout = c10d::kUnsetTimeout);
  SimDevice* device_of(const Call& call) const;

  const std::shared_ptr<Fabric> fabric_;  // what the communicator stands on
  const std::shared_ptr<Communicator> communicator_;
  const absl::Duration timeout_;
  OperationLog& log_;    // the rank's
  const int log_index_;  // of this group in it
  int stream_ = -1;      // of the rank's device, for this group's communication
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace accelerate::simulator
