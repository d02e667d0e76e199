#include "simulator/c10d/sim_backend.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/comm/backends/joint_work.h"
#include "simulator/c10d/held_buffers.h"
#include "simulator/c10d/sim_work.h"
#include "simulator/device/host_memory.h"

namespace accelerate::simulator {
namespace {

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
    : CallBackend(member, communicator->size()),
      fabric_(std::move(fabric)),
      communicator_(std::move(communicator)),
      timeout_(timeout),
      log_(fabric_->log(communicator_->rank(member))),
      log_index_(log_.add_group(communicator_->name(), communicator_->ranks())) {
  log_.group_is_made(log_index_);
}

uint64_t SimBackend::getSequenceNumberForGroup() { return communicator_->sequence(rank_); }

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

SimBackend::WorkPtr SimBackend::issue(const CollectiveCall& asked) {
  const OpType op = check_call(asked, rank_, size_);
  Call call;
  call.fingerprint = asked.describe();
  call.fingerprint.op = op;
  call.inputs = flattened(asked.inputs);
  call.outputs = flattened(asked.outputs);
  if (asked.reduce_op != nullptr) call.reduce_op = *asked.reduce_op;
  call.input_splits = asked.input_splits.vec();
  call.output_splits = asked.output_splits.vec();
  fabric_->use();
  SimWork::Parts parts;
  parts.device = device_of(call);
  parts.results = call.outputs.empty() ? call.inputs : call.outputs;
  parts.timeout = asked.timeout == c10d::kUnsetTimeout ? timeout_ : absl::FromChrono(asked.timeout);
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
  if (!c10d::isP2POp(op)) {
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

void SimBackend::startCoalescing() {
  // An earlier block that threw may have left operations behind.
  coalesced_.clear();
  coalescing_ = true;
}

SimBackend::WorkPtr SimBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace accelerate::simulator
