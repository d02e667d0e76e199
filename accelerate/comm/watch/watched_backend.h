/// A real backend under watch: every operation is logged, its failure is explained by all ranks'
/// logs together, and in debug mode it is compared with the other members' before it runs.
///
/// Errors: a call that is wrong by itself throws what the backend throws, and leaves the job alone.
///         Any other failure, of a call, a wait or a future, is a c10::DistBackendError with the
///         job's one report (accelerate/comm/watch/job_watch.h); afterwards every call of every
///         group throws it.
/// Debug mode: each member shows the others what it is about to call. Where two differ, in
///         operation, root, reduce op, dtype, shape or position, the later one does not begin, so
///         that the operation cannot complete, and all members throw. An operation counts as done
///         when all members have come to it with the same call. Messages from rank to rank are not
///         compared.
/// Threads: as the backend's; in debug mode calls are made one after the other.
/// Mirrors: accelerate utils/operations.py, verify_operation.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accelerate/comm/backends/call_comparer.h"
#include "accelerate/comm/watch/collective_fingerprint.h"
#include "accelerate/comm/watch/watched_work.h"

namespace accelerate {

class WatchedBackend final : public c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  struct Options {
    std::chrono::milliseconds timeout;       ///< of operations that name none
    std::shared_ptr<CallComparer> comparer;  ///< switches debug mode on
    /// In debug mode: where tensors have to be, if not on the CPU.
    c10::DeviceType device_type = c10::kCPU;
  };

  WatchedBackend(BackendPtr inner, WatchedGroup group, Options options);

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void eagerConnectSingleDevice(at::Device device) override {
    inner_->eagerConnectSingleDevice(device);
  }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }

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

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  template <typename Issue>
  WorkPtr run(CollectiveFingerprint call, std::chrono::milliseconds timeout, const Issue& issue);
  CollectiveFingerprint describe(c10d::OpType op, const at::Tensor& tensor) const;
  CollectiveFingerprint describe(c10d::OpType op, const Tensors& tensors) const;
  void check_device(c10d::OpType op, const at::Tensor& tensor) const;
  // Shows the members the call, and gives what is left to find out before it is done.
  Settle compare(const CollectiveFingerprint& call, std::chrono::milliseconds timeout) const;

  const BackendPtr inner_;
  const std::shared_ptr<const WatchedGroup> group_;
  const Options options_;
  const std::shared_ptr<void> interrupt_;
  std::mutex one_at_a_time_;  // in debug mode
  bool coalescing_ = false;
};

}  // namespace accelerate
