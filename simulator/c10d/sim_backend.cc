#include "simulator/c10d/sim_backend.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/comm/backends/joint_work.h"
#include "accelerate/comm/watch/call_checks.h"
#include "simulator/c10d/held_buffers.h"
#include "simulator/c10d/sim_work.h"
#include "simulator/device/host_memory.h"

namespace accelerate::simulator {
namespace {

using accelerate::internal::flattened;
using accelerate::internal::JointWork;
using c10d::OpType;
using Tensors = std::vector<at::Tensor>;

// The Work of everything issued between startCoalescing and endCoalescing.
class CoalescedWork final : public JointWork {
 public:
  using JointWork::JointWork;

  // A rank's thread is the only one that can wait, so the future is there when it is asked for.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    Tensors results = result();
    std::vector<c10::Device> devices;
    if (!results.empty() && !results[0].is_cpu()) devices.push_back(results[0].device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices);
    try {
      wait(kNoTimeout);
      future->markCompleted(c10::IValue(std::move(results)));
    } catch (...) {
      future->setError(std::current_exception());
    }
    return future;
  }
};

}  // namespace

SimBackend::SimBackend(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator,
                       int member, absl::Duration timeout)
    : Backend(member, communicator->size()),
      fabric_(std::move(fabric)),
      communicator_(std::move(communicator)),
      timeout_(timeout),
      log_(fabric_->log(communicator_->rank(member))),
      log_index_(log_.add_group(communicator_->name(), communicator_->ranks())) {
  log_.group_is_made(log_index_);
}

uint64_t SimBackend::getSequenceNumberForGroup() { return communicator_->sequence(rank_); }

Call SimBackend::make_call(OpType op) const {
  Call call;
  call.fingerprint.op = op;
  return call;
}

Call SimBackend::make_reduction(OpType op, const c10d::ReduceOp& reduce_op) const {
  Call call = make_call(op);
  call.reduce_op = reduce_op;
  call.fingerprint.reduce_op = reduce_op.op_;
  return call;
}

// The device that a call's tensors are on; null for the CPU.
SimDevice* SimBackend::device_of(const Call& call) const {
  const int rank = communicator_->rank(rank_);
  const at::Tensor* first = nullptr;
  for (const Tensors* tensors : {&call.inputs, &call.outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      if (first == nullptr) first = &tensor;
      TORCH_CHECK_VALUE(tensor.device() == first->device(), op_name(call.fingerprint.op),
                        ": tensors on ", first->device(), " and on ", tensor.device());
    }
  }
  if (first == nullptr || !first->is_privateuseone()) return nullptr;
  TORCH_CHECK_VALUE(first->device().index() == rank, op_name(call.fingerprint.op), ": rank ", rank,
                    " passes a tensor on ", first->device(), ", which is rank ",
                    static_cast<int>(first->device().index()), "'s device");
  return &SimDevice::of(rank);
}

SimBackend::WorkPtr SimBackend::join(Call call, std::chrono::milliseconds timeout) {
  fabric_->use();
  const OpType op = call.fingerprint.op;
  const bool message = op == OpType::SEND || op == OpType::RECV || op == OpType::RECVANYSOURCE;
  SimWork::Parts parts;
  parts.device = device_of(call);
  parts.results = call.outputs.empty() ? call.inputs : call.outputs;
  parts.timeout = timeout == c10d::kUnsetTimeout ? timeout_ : absl::FromChrono(timeout);
  const Scheduler& scheduler = fabric_->scheduler();
  call.deadline_ns = absl::ToInt64Nanoseconds(scheduler.now() + parts.timeout);
  call.ready_ns = scheduler.now_ns();
  // Whose time it takes: CPU tensors may stand for a device's.
  parts.clock = parts.device != nullptr ? parts.device : ChargeScope::charged_device();
  if (parts.clock != nullptr) {
    SimDevice& device = *parts.clock;
    if (stream_ < 0) stream_ = device.new_stream();
    parts.stream = call.stream = stream_;
    device.host_waits(device.host_ns() + device.model().launch_ns);
    call.ready_ns = std::max(device.host_ns(), device.stream_ns(device.current_stream()));
  }
  if (fabric_->detects_races()) {
    parts.held = HeldBuffers::take(call, parts.device, rank_, communicator_);
  }
  parts.log = &log_;
  parts.ticket = log_.enter(log_index_, call.fingerprint);
  if (!message) {
    parts.operation = communicator_->join(rank_, std::move(call));
  } else if (op == OpType::SEND) {
    parts.operation = communicator_->send(rank_, std::move(call));
  } else {
    parts.operation = communicator_->receive(rank_, std::move(call));
  }
  auto work = c10::make_intrusive<SimWork>(fabric_, communicator_, rank_, op, std::move(parts));
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

SimBackend::WorkPtr SimBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Call call = make_call(OpType::BROADCAST);
  check_count(tensors, 1, OpType::BROADCAST, "input");
  call.inputs = tensors;
  call.fingerprint.root = check_root(options.rootRank, size_);
  call.fingerprint.add(tensors[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "all_reduce: expected 1 input tensor(s), got ",
                    tensors.size());
  if (tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  Call call = make_reduction(OpType::ALLREDUCE, options.reduceOp);
  check_contiguous(tensors[0], OpType::ALLREDUCE);
  check_reducible(options.reduceOp.op_, tensors[0].scalar_type());
  call.inputs = tensors;
  call.fingerprint.add(tensors[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::allreduce_sparse(Tensors& tensors,
                                                 const c10d::AllreduceOptions& options) {
  Call call = make_reduction(OpType::_ALLREDUCE_SPARSE, options.reduceOp);
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse(),
                    "all_reduce_sparse: expected one sparse tensor");
  TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM,
                    "all_reduce_sparse: only sums are defined");
  check_reducible(options.reduceOp.op_, tensors[0].scalar_type());
  call.inputs = tensors;
  call.fingerprint.add(tensors[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Call call = make_reduction(OpType::ALLREDUCE_COALESCED, options.reduceOp);
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce_coalesced: no tensors");
  check_count(tensors, tensors.size(), OpType::ALLREDUCE_COALESCED, "input");
  for (const at::Tensor& tensor : tensors) {
    check_reducible(options.reduceOp.op_, tensor.scalar_type());
    call.fingerprint.add(tensor);
  }
  call.inputs = tensors;
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call = make_reduction(OpType::REDUCE, options.reduceOp);
  check_count(tensors, 1, OpType::REDUCE, "input");
  check_reducible(options.reduceOp.op_, tensors[0].scalar_type());
  call.inputs = tensors;
  call.fingerprint.root = check_root(options.rootRank, size_);
  call.fingerprint.add(tensors[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  Call call = make_call(OpType::ALLGATHER);
  check_count(inputs, 1, OpType::ALLGATHER, "input");
  check_list_count(outputs.size(), 1, OpType::ALLGATHER, "output");
  check_count(outputs[0], size_, OpType::ALLGATHER, "output");
  check_alike(outputs[0], inputs[0], OpType::ALLGATHER, "output");
  call.inputs = inputs;
  call.outputs = outputs[0];
  call.fingerprint.add(inputs[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

SimBackend::WorkPtr SimBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  Call call = make_call(OpType::ALLGATHER_COALESCED);
  check_count(inputs, inputs.size(), OpType::ALLGATHER_COALESCED, "input");
  check_list_count(outputs.size(), size_, OpType::ALLGATHER_COALESCED, "output");
  for (const Tensors& from_rank : outputs) {
    check_count(from_rank, inputs.size(), OpType::ALLGATHER_COALESCED, "output");
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_alike({from_rank[i]}, inputs[i], OpType::ALLGATHER_COALESCED, "output");
    }
  }
  call.inputs = inputs;
  call.outputs = flattened(outputs);
  for (const at::Tensor& input : inputs) call.fingerprint.add(input);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Call call = make_call(OpType::_ALLGATHER_BASE);
  check_count(inputs, inputs.size(), OpType::_ALLGATHER_BASE, "input");
  check_count(outputs, inputs.size(), OpType::_ALLGATHER_BASE, "output");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(outputs[i], inputs[i], size_, OpType::_ALLGATHER_BASE);
    call.fingerprint.add(inputs[i]);
  }
  call.inputs = inputs;
  call.outputs = outputs;
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  Call call = make_call(OpType::GATHER);
  const int root = check_root(options.rootRank, size_);
  check_count(inputs, 1, OpType::GATHER, "input");
  if (rank_ == root) {
    check_list_count(outputs.size(), 1, OpType::GATHER, "output");
    check_count(outputs[0], size_, OpType::GATHER, "output");
    check_alike(outputs[0], inputs[0], OpType::GATHER, "output");
  } else {
    check_list_count(outputs.size(), 0, OpType::GATHER, "output");
  }
  call.inputs = inputs;
  call.outputs = flattened(outputs);
  call.fingerprint.root = root;
  call.fingerprint.add(inputs[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  Call call = make_call(OpType::SCATTER);
  const int root = check_root(options.rootRank, size_);
  check_count(outputs, 1, OpType::SCATTER, "output");
  if (rank_ == root) {
    check_list_count(inputs.size(), 1, OpType::SCATTER, "input");
    check_count(inputs[0], size_, OpType::SCATTER, "input");
    check_alike(inputs[0], outputs[0], OpType::SCATTER, "input");
  } else {
    check_list_count(inputs.size(), 0, OpType::SCATTER, "input");
  }
  call.inputs = flattened(inputs);
  call.outputs = outputs;
  call.fingerprint.root = root;
  call.fingerprint.add(outputs[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  Call call = make_reduction(OpType::REDUCE_SCATTER, options.reduceOp);
  check_count(outputs, 1, OpType::REDUCE_SCATTER, "output");
  check_list_count(inputs.size(), 1, OpType::REDUCE_SCATTER, "input");
  check_count(inputs[0], size_, OpType::REDUCE_SCATTER, "input");
  check_alike(inputs[0], outputs[0], OpType::REDUCE_SCATTER, "input");
  check_reducible(options.reduceOp.op_, outputs[0].scalar_type());
  call.inputs = inputs[0];
  call.outputs = outputs;
  call.fingerprint.add(outputs[0]);
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

SimBackend::WorkPtr SimBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  Call call = make_reduction(OpType::_REDUCE_SCATTER_BASE, options.reduceOp);
  check_count(inputs, inputs.size(), OpType::_REDUCE_SCATTER_BASE, "input");
  check_count(outputs, inputs.size(), OpType::_REDUCE_SCATTER_BASE, "output");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(inputs[i], outputs[i], size_, OpType::_REDUCE_SCATTER_BASE);
    check_reducible(options.reduceOp.op_, inputs[i].scalar_type());
    call.fingerprint.add(outputs[i]);
  }
  call.inputs = inputs;
  call.outputs = outputs;
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  Call call = make_call(OpType::ALLTOALL_BASE);
  check_contiguous(input, OpType::ALLTOALL_BASE);
  check_contiguous(output, OpType::ALLTOALL_BASE);
  check_splits(input_splits, input, size_, "input");
  check_splits(output_splits, output, size_, "output");
  call.inputs = {input};
  call.outputs = {output};
  call.fingerprint.shapes_may_differ = true;
  call.fingerprint.add(input);
  call.input_splits = input_splits;
  call.output_splits = output_splits;
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  Call call = make_call(OpType::ALLTOALL);
  check_count(inputs, size_, OpType::ALLTOALL, "input");
  check_count(outputs, size_, OpType::ALLTOALL, "output");
  call.fingerprint.shapes_may_differ = true;
  for (const at::Tensor& input : inputs) call.fingerprint.add(input);
  call.inputs = inputs;
  call.outputs = outputs;
  return join(std::move(call), options.timeout);
}

SimBackend::WorkPtr SimBackend::send(Tensors& tensors, int destination, int tag) {
  Call call = make_call(OpType::SEND);
  check_count(tensors, 1, OpType::SEND, "input");
  call.inputs = tensors;
  call.fingerprint.peer = check_root(destination, size_);
  call.fingerprint.tag = tag;
  call.fingerprint.add(tensors[0]);
  return join(std::move(call));
}

SimBackend::WorkPtr SimBackend::recv(Tensors& tensors, int source, int tag) {
  Call call = make_call(OpType::RECV);
  check_count(tensors, 1, OpType::RECV, "output");
  call.outputs = tensors;
  call.fingerprint.peer = check_root(source, size_);
  call.fingerprint.tag = tag;
  call.fingerprint.add(tensors[0]);
  return join(std::move(call));
}

SimBackend::WorkPtr SimBackend::recvAnysource(Tensors& tensors, int tag) {
  Call call = make_call(OpType::RECVANYSOURCE);
  check_count(tensors, 1, OpType::RECVANYSOURCE, "output");
  call.outputs = tensors;
  call.fingerprint.tag = tag;
  call.fingerprint.add(tensors[0]);
  return join(std::move(call));
}

SimBackend::WorkPtr SimBackend::barrier(const c10d::BarrierOptions& options) {
  return join(make_call(OpType::BARRIER), options.timeout);
}

void SimBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  // The report of any failed barrier names the missing ranks, which is all a monitored one adds.
  barrier(options)->wait(kNoTimeout);
}

void SimBackend::startCoalescing() {
  // What an earlier block issued before one of its calls threw is nobody's any more.
  coalesced_.clear();
  coalescing_ = true;
}

SimBackend::WorkPtr SimBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace accelerate::simulator
