#include "accelerate/comm/watch/watched_backend.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/comm/backends/backend_registry.h"

namespace accelerate {
namespace {

using c10d::OpType;

std::shared_ptr<void> end_pending_on_failure(JobWatch& job,
                                             const c10::intrusive_ptr<c10d::Backend>& inner) {
  if (dynamic_cast<Interruptible*>(inner.get()) == nullptr) return nullptr;
  return job.on_failure([inner] { dynamic_cast<Interruptible*>(inner.get())->interrupt(); });
}

CollectiveFingerprint call_of(OpType op) {
  CollectiveFingerprint call;
  call.op = op;
  return call;
}

// How long members may take to come to a call that differs, so that all are named.
constexpr std::chrono::seconds kGrace(2);

}  // namespace

WatchedBackend::WatchedBackend(BackendPtr inner, WatchedGroup group, Options options)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      group_(std::make_shared<const WatchedGroup>(std::move(group))),
      options_(std::move(options)),
      interrupt_(end_pending_on_failure(*group_->job, inner_)) {}

void WatchedBackend::check_device(OpType op, const at::Tensor& tensor) const {
  if (!options_.comparer || !tensor.defined()) return;
  // What ranks say to each other besides their tensors is on the CPU.
  TORCH_CHECK_VALUE(tensor.device().type() == options_.device_type || tensor.is_cpu(), op_name(op),
                    ": a tensor is on ", tensor.device(), ", but the ranks compute on ",
                    c10::Device(options_.device_type), "; move it there first");
}

CollectiveFingerprint WatchedBackend::describe(OpType op, const at::Tensor& tensor) const {
  check_device(op, tensor);
  CollectiveFingerprint call = call_of(op);
  call.add(tensor);
  return call;
}

CollectiveFingerprint WatchedBackend::describe(OpType op, const Tensors& tensors) const {
  CollectiveFingerprint call = call_of(op);
  for (const at::Tensor& tensor : tensors) {
    check_device(op, tensor);
    call.add(tensor);
  }
  return call;
}

Settle WatchedBackend::compare(const CollectiveFingerprint& call,
                               std::chrono::milliseconds timeout) const {
  const auto entry = options_.comparer->enter(call.hash(), timeout);
  if (!entry.agrees) {
    try {
      options_.comparer->settle(entry.round, std::min<std::chrono::milliseconds>(timeout, kGrace));
    } catch (const c10::DistBackendError&) {
      // Who does not come is not named.
    }
    group_->fail_mismatch();
  }
  return [comparer = options_.comparer, group = group_, round = entry.round, timeout] {
    if (!comparer->settle(round, timeout)) group->fail_mismatch();
  };
}

template <typename Issue>
WatchedBackend::WorkPtr WatchedBackend::run(CollectiveFingerprint call,
                                            std::chrono::milliseconds timeout, const Issue& issue) {
  group_->job->check();
  OperationLog& log = group_->job->log();
  std::unique_lock lock(one_at_a_time_, std::defer_lock);
  const bool compared = options_.comparer && !coalescing_ && !c10d::isP2POp(call.op);
  if (compared) lock.lock();
  const OperationLog::Ticket ticket = log.enter(group_->index, call);
  auto fail = [&] {
    log.set_state(ticket, OperationState::kFailed);
    group_->fail(call.to_string(), std::current_exception());
  };
  Settle settle;
  if (compared) {
    log.set_state(ticket, OperationState::kWaiting);
    try {
      settle = compare(call, timeout == c10d::kUnsetTimeout ? options_.timeout : timeout);
    } catch (...) {
      fail();
    }
    log.set_state(ticket, OperationState::kIssued);
  }
  WorkPtr work;
  try {
    work = issue();
  } catch (const c10::DistError&) {
    fail();
  } catch (const c10::Error&) {
    log.refuse(ticket);
    throw;
  } catch (...) {
    fail();
  }
  // Inside a coalesced block the backend may have nothing to give yet.
  if (!work) return work;
  return c10::make_intrusive<WatchedWork>(std::move(work), group_, ticket, std::move(settle));
}

WatchedBackend::WorkPtr WatchedBackend::broadcast(Tensors& tensors,
                                                  const c10d::BroadcastOptions& options) {
  CollectiveFingerprint call = describe(OpType::BROADCAST, tensors);
  call.root = static_cast<int>(options.rootRank);
  return run(std::move(call), options.timeout, [&] { return inner_->broadcast(tensors, options); });
}

WatchedBackend::WorkPtr WatchedBackend::allreduce(Tensors& tensors,
                                                  const c10d::AllreduceOptions& options) {
  CollectiveFingerprint call = describe(OpType::ALLREDUCE, tensors);
  call.reduce_op = options.reduceOp.op_;
  return run(std::move(call), options.timeout, [&] { return inner_->allreduce(tensors, options); });
}

WatchedBackend::WorkPtr WatchedBackend::allreduce_sparse(Tensors& tensors,
                                                         const c10d::AllreduceOptions& options) {
  CollectiveFingerprint call = describe(OpType::_ALLREDUCE_SPARSE, tensors);
  call.reduce_op = options.reduceOp.op_;
  return run(std::move(call), options.timeout,
             [&] { return inner_->allreduce_sparse(tensors, options); });
}

WatchedBackend::WorkPtr WatchedBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  CollectiveFingerprint call = describe(OpType::ALLREDUCE_COALESCED, tensors);
  call.reduce_op = options.reduceOp.op_;
  return run(std::move(call), options.timeout,
             [&] { return inner_->allreduce_coalesced(tensors, options); });
}

WatchedBackend::WorkPtr WatchedBackend::reduce(Tensors& tensors,
                                               const c10d::ReduceOptions& options) {
  CollectiveFingerprint call = describe(OpType::REDUCE, tensors);
  call.reduce_op = options.reduceOp.op_;
  call.root = static_cast<int>(options.rootRank);
  return run(std::move(call), options.timeout, [&] { return inner_->reduce(tensors, options); });
}

WatchedBackend::WorkPtr WatchedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return run(describe(OpType::ALLGATHER, inputs), options.timeout,
             [&] { return inner_->allgather(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  return run(describe(OpType::_ALLGATHER_BASE, input), options.timeout,
             [&] { return inner_->_allgather_base(output, input, options); });
}

WatchedBackend::WorkPtr WatchedBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  return run(describe(OpType::ALLGATHER_COALESCED, inputs), options.timeout,
             [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return run(describe(OpType::_ALLGATHER_BASE, inputs), options.timeout,
             [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  CollectiveFingerprint call = describe(OpType::GATHER, inputs);
  call.root = static_cast<int>(options.rootRank);
  return run(std::move(call), options.timeout,
             [&] { return inner_->gather(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  CollectiveFingerprint call = describe(OpType::SCATTER, outputs);
  call.root = static_cast<int>(options.rootRank);
  return run(std::move(call), options.timeout,
             [&] { return inner_->scatter(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::reduce_scatter(Tensors& outputs,
                                                       std::vector<Tensors>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  CollectiveFingerprint call = describe(OpType::REDUCE_SCATTER, outputs);
  call.reduce_op = options.reduceOp.op_;
  return run(std::move(call), options.timeout,
             [&] { return inner_->reduce_scatter(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  CollectiveFingerprint call = describe(OpType::_REDUCE_SCATTER_BASE, output);
  call.reduce_op = options.reduceOp.op_;
  return run(std::move(call), options.timeout,
             [&] { return inner_->_reduce_scatter_base(output, input, options); });
}

WatchedBackend::WorkPtr WatchedBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  CollectiveFingerprint call = describe(OpType::_REDUCE_SCATTER_BASE, outputs);
  call.reduce_op = options.reduceOp.op_;
  return run(std::move(call), options.timeout,
             [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  CollectiveFingerprint call = describe(OpType::ALLTOALL_BASE, input);
  call.shapes_may_differ = true;
  return run(std::move(call), options.timeout, [&] {
    return inner_->alltoall_base(output, input, output_splits, input_splits, options);
  });
}

WatchedBackend::WorkPtr WatchedBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  CollectiveFingerprint call = describe(OpType::ALLTOALL, inputs);
  call.shapes_may_differ = true;
  return run(std::move(call), options.timeout,
             [&] { return inner_->alltoall(outputs, inputs, options); });
}

WatchedBackend::WorkPtr WatchedBackend::send(Tensors& tensors, int destination, int tag) {
  CollectiveFingerprint call = describe(OpType::SEND, tensors);
  call.peer = destination;
  call.tag = tag;
  return run(std::move(call), c10d::kUnsetTimeout,
             [&] { return inner_->send(tensors, destination, tag); });
}

WatchedBackend::WorkPtr WatchedBackend::recv(Tensors& tensors, int source, int tag) {
  CollectiveFingerprint call = describe(OpType::RECV, tensors);
  call.peer = source;
  call.tag = tag;
  return run(std::move(call), c10d::kUnsetTimeout,
             [&] { return inner_->recv(tensors, source, tag); });
}

WatchedBackend::WorkPtr WatchedBackend::recvAnysource(Tensors& tensors, int tag) {
  CollectiveFingerprint call = describe(OpType::RECVANYSOURCE, tensors);
  call.tag = tag;
  return run(std::move(call), c10d::kUnsetTimeout,
             [&] { return inner_->recvAnysource(tensors, tag); });
}

WatchedBackend::WorkPtr WatchedBackend::barrier(const c10d::BarrierOptions& options) {
  return run(call_of(OpType::BARRIER), options.timeout, [&] { return inner_->barrier(options); });
}

void WatchedBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group_->job->check();
  OperationLog& log = group_->job->log();
  CollectiveFingerprint call = call_of(OpType::BARRIER);
  const OperationLog::Ticket ticket = log.enter(group_->index, call);
  log.set_state(ticket, OperationState::kWaiting);
  try {
    inner_->monitoredBarrier(options, wait_all_ranks);
  } catch (...) {
    log.set_state(ticket, OperationState::kFailed);
    group_->fail(call.to_string(), std::current_exception());
  }
  log.set_state(ticket, OperationState::kDone);
}

void WatchedBackend::startCoalescing() {
  inner_->startCoalescing();
  coalescing_ = true;
}

WatchedBackend::WorkPtr WatchedBackend::endCoalescing() {
  coalescing_ = false;
  return run(call_of(OpType::COALESCED), c10d::kUnsetTimeout,
             [&] { return inner_->endCoalescing(); });
}

}  // namespace accelerate
