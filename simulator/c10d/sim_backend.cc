#include "simulator/c10d/sim_backend.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/backends/own_operations.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/comm/watch/operation_log.h"
#include "simulator/c10d/held_buffers.h"
#include "simulator/device/host_memory.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using accelerate::internal::JointWork;
using c10d::OpType;
using Tensors = std::vector<at::Tensor>;

// The Work of one member's part in an operation.
class SimWork final : public c10d::Work {
 public:
  struct Parts {
    std::shared_ptr<Operation> operation;
    std::shared_ptr<HeldBuffers> held;  // null: the tensors are not watched
    SimDevice* device = nullptr;        // null: on CPU tensors
    SimDevice* clock = nullptr;         // the device whose streams it runs on; null: the host
    int stream = -1;                    // the stream of that device that communicates
    std::vector<at::Tensor> results;    // hold the outcome on this rank
    absl::Duration timeout;             // for waits that do not name one
    OperationLog* log = nullptr;        // of the rank
    OperationLog::Ticket ticket = 0;    // in the log
  };

  SimWork(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator, int member,
          c10d::OpType op, Parts parts)
      : Work(member, op),
        fabric_(std::move(fabric)),
        communicator_(std::move(communicator)),
        member_(member),
        parts_(std::move(parts)),
        called_at_(fabric_->scheduler().now()) {}

  // Lets other ranks run if the operation is not done, so that a loop around this call ends.
  bool isCompleted() override {
    const WaitLimit limit{.timeout = parts_.timeout, .since = called_at_};
    if (!communicator_->poll(member_, parts_.operation, limit)) return false;
    Scheduler& scheduler = fabric_->scheduler();
    if (parts_.operation->end_ns > scheduler.now_ns()) scheduler.poll();
    if (parts_.operation->end_ns > scheduler.now_ns()) return false;
    if (!parts_.operation->failed) give_back();
    return true;
  }

  // On a device the current stream waits, as with NCCL, and the host goes on; with CPU tensors the
  // host waits.
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout == kNoTimeout || timeout == c10d::kUnsetTimeout) {
      wait_for(parts_.timeout, /*asked_for=*/false);
    } else {
      wait_for(absl::FromChrono(timeout), /*asked_for=*/true);
    }
    if (parts_.clock != nullptr) {
      parts_.clock->stream_waits(parts_.clock->current_stream(), parts_.operation->end_ns);
    } else {
      fabric_->scheduler().advance_to(parts_.operation->end_ns);
    }
    give_back();
    return true;
  }

  std::exception_ptr exception() const override {
    if (!parts_.operation->failed) return nullptr;
    return std::make_exception_ptr(c10::DistBackendError(communicator_->failure()));
  }

  // Blocks until the operation is done; an error is stored in the future. On a device, waiting for
  // the future makes the current stream wait; the clock of the host does not move.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future_) return future_;
    std::vector<c10::Device> devices;
    if (parts_.device != nullptr) {
      devices.emplace_back(c10::kPrivateUse1,
                           static_cast<c10::DeviceIndex>(parts_.device->index()));
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices);
    try {
      wait_for(parts_.timeout, /*asked_for=*/false);
      give_back();
      if (parts_.device == nullptr) {
        if (parts_.clock == nullptr) {
          fabric_->scheduler().advance_to(parts_.operation->end_ns);
        } else if (parts_.clock->memory().in_backward()) {
          parts_.clock->owe(parts_.operation->end_ns);
        } else {
          parts_.clock->stream_waits(parts_.clock->current_stream(), parts_.operation->end_ns);
        }
        future_->markCompleted(c10::IValue(parts_.results));
      } else {
        // The future records this stream, and a wait for the future waits for the stream.
        const c10::StreamGuard communication(
            c10::Stream(c10::Stream::UNSAFE, devices[0], parts_.stream));
        future_->markCompleted(c10::IValue(parts_.results));
      }
    } catch (...) {
      future_->setError(std::current_exception());
    }
    return future_;
  }

  bool isSuccess() const override { return parts_.operation->done && !parts_.operation->failed; }
  int sourceRank() const override { return parts_.operation->source; }
  std::vector<at::Tensor> result() override { return parts_.results; }
  void synchronize() override { wait(kNoTimeout); }
  // Fails the whole group, on all its members.
  void abort() override { communicator_->abort(member_); }

 private:
  // Waits in real time until the operation has been carried out. The callers move virtual time.
  void wait_for(absl::Duration timeout, bool asked_for) {
    const absl::Duration since = asked_for ? fabric_->scheduler().now() : called_at_;
    parts_.log->set_state(parts_.ticket, OperationState::kWaiting);
    try {
      communicator_->wait(member_, parts_.operation,
                          {.timeout = timeout, .since = since, .asked_for = asked_for});
      parts_.log->set_state(parts_.ticket, OperationState::kDone);
    } catch (...) {
      parts_.log->set_state(parts_.ticket, OperationState::kFailed);
      if (parts_.held) parts_.held->abandon();
      throw;
    }
  }

  void give_back() const {
    if (parts_.held) parts_.held->give_back();
  }

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<Communicator> communicator_;
  const int member_;
  const Parts parts_;
  const absl::Duration called_at_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The Work of all calls between startCoalescing and endCoalescing.
class CoalescedWork final : public JointWork {
 public:
  using JointWork::JointWork;

  // Only the rank's thread can wait, so the future is completed before it is returned.
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

class SimBackend final : public CallBackend {
 public:
  SimBackend(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator, int member,
             absl::Duration timeout)
      : CallBackend(member, communicator->size()),
        fabric_(std::move(fabric)),
        communicator_(std::move(communicator)),
        timeout_(timeout),
        log_(fabric_->log(communicator_->rank(member))),
        log_index_(log_.add_group(communicator_->name(), communicator_->ranks())) {
    log_.group_is_made(log_index_);
  }

  const std::string getBackendName() const override { return "sim"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return communicator_->sequence(rank_); }

  // Between these two, calls are issued as usual; the returned Work stands for all of them.
  void startCoalescing() override {
    // Drops the calls of an earlier block that ended with an exception.
    coalesced_.clear();
    coalescing_ = true;
  }

  WorkPtr endCoalescing() override {
    TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
    coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
  }

 private:
  // The device that a call's tensors are on; null for the CPU.
  SimDevice* device_of(const Call& call) const {
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
    TORCH_CHECK_VALUE(first->device().index() == rank, op_name(call.fingerprint.op), ": rank ",
                      rank, " passes a tensor on ", first->device(), ", which is rank ",
                      static_cast<int>(first->device().index()), "'s device");
    return &SimDevice::of(rank);
  }

  WorkPtr issue(const CollectiveCall& asked) override {
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
    parts.timeout =
        asked.timeout == c10d::kUnsetTimeout ? timeout_ : absl::FromChrono(asked.timeout);
    const Scheduler& scheduler = fabric_->scheduler();
    call.deadline_ns = absl::ToInt64Nanoseconds(scheduler.now() + parts.timeout);
    call.ready_ns = scheduler.now_ns();
    // The device whose time the call takes: CPU tensors may be charged to a device.
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

  const std::shared_ptr<Fabric> fabric_;  // keeps alive what the communicator uses
  const std::shared_ptr<Communicator> communicator_;
  const absl::Duration timeout_;
  OperationLog& log_;    // of the rank
  const int log_index_;  // of this group in the log
  int stream_ = -1;      // of the rank's device, for this group's communication
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_sim_backend(std::shared_ptr<Fabric> fabric,
                                                   std::shared_ptr<Communicator> communicator,
                                                   int member, absl::Duration timeout) {
  return c10::make_intrusive<SimBackend>(std::move(fabric), std::move(communicator), member,
                                         timeout);
}

}  // namespace accelerate::simulator
