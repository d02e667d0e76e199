#include "simulator/c10d/sim_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/backends/own_operations.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/comm/watch/operation_log.h"
#include "simulator/device/host_call.h"
#include "simulator/device/shapes.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using accelerate::internal::JointWork;
using c10d::OpType;
using Tensors = std::vector<at::Tensor>;

// The value of a result until the wait: a signalling NaN, which even an addition changes; an odd
// number for integers. Complex numbers are pairs of floating-point numbers.
uint64_t poison_bits(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool: return 1;
    case at::kHalf:
    case at::kComplexHalf: return 0x7D25;
    case at::kBFloat16: return 0x7FA5;
    case at::kFloat:
    case at::kComplexFloat: return 0x7FA5A5A5;
    case at::kDouble:
    case at::kComplexDouble: return 0x7FF4A5A5A5A5A5A5;
    default: return 0xA5A5A5A5A5A5A5A5;
  }
}

size_t poison_bytes(const at::Tensor& tensor) {
  return tensor.is_complex() ? tensor.itemsize() / 2 : std::min<size_t>(tensor.itemsize(), 8);
}

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return bytes_of(a) < bytes_of(b) + b.nbytes() && bytes_of(b) < bytes_of(a) + a.nbytes();
}

void poison(const at::Tensor& tensor) {
  const uint64_t bits = poison_bits(tensor.scalar_type());
  char* bytes = bytes_of(tensor);
  size_t filled = poison_bytes(tensor);
  std::memcpy(bytes, &bits, filled);
  while (filled < tensor.nbytes()) {
    const size_t more = std::min(filled, tensor.nbytes() - filled);
    std::memcpy(bytes + filled, bytes, more);
    filled += more;
  }
}

bool is_poison(const at::Tensor& tensor) {
  const uint64_t bits = poison_bits(tensor.scalar_type());
  const char* bytes = bytes_of(tensor);
  const size_t size = poison_bytes(tensor);
  // The first element is poison, and every other element equals the one before it.
  return std::memcmp(bytes, &bits, size) == 0 &&
         std::memcmp(bytes, bytes + size, tensor.nbytes() - size) == 0;
}

// The tensors of a call that its rank has not waited for yet. They belong to the collective: a
// program that uses them before the wait has a race on real hardware, which does not report it.
//
// On a simulated device the tensors are marked as in flight, so that an operator that uses them
// fails. Uses of CPU tensors cannot be intercepted: the collective works on private copies, its
// results read as NaN until the wait, and the wait finds what the program has written in the
// meantime.
class HeldBuffers final : public InFlightOwner, public std::enable_shared_from_this<HeldBuffers> {
 public:
  // Takes the tensors of a call before it is made; `call` gets the private copies.
  // `device` is null for CPU tensors. `member` is the rank's number in the group.
  static std::shared_ptr<HeldBuffers> take(Call& call, SimDevice* device, int member,
                                           std::shared_ptr<const Communicator> communicator);

  // Ends the hold after the program's wait: results appear, and the program may use the tensors
  // again. Idempotent. Errors: c10::Error if the program wrote to one of the tensors before the
  // wait.
  void give_back();
  // Like give_back, but without checks, for an operation that failed.
  void abandon();

  std::string describe() const override;

 private:
  struct Held {
    at::Tensor program;  // the tensor that the rank passed
    at::Tensor copy;     // the tensor that the collective uses
    bool written;        // whether the collective writes to it
  };

  HeldBuffers(SimDevice* device, int member, std::shared_ptr<const Communicator> communicator)
      : device_(device), member_(member), communicator_(std::move(communicator)) {}
  void hold(std::vector<at::Tensor>& tensors, bool written);
  void check(const Held& held) const;

  SimDevice* const device_;
  const int member_;
  const std::shared_ptr<const Communicator> communicator_;
  CollectiveFingerprint fingerprint_;
  std::vector<Held> held_;  // CPU tensors
};

std::shared_ptr<HeldBuffers> HeldBuffers::take(Call& call, SimDevice* device, int member,
                                               std::shared_ptr<const Communicator> communicator) {
  std::shared_ptr<HeldBuffers> held(new HeldBuffers(device, member, std::move(communicator)));
  held->fingerprint_ = call.fingerprint;
  held->fingerprint_.sequence = held->communicator_->sequence(member);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  // All copies are made before anything is poisoned: inputs and outputs may overlap.
  held->hold(call.inputs, writes_inputs(call, member));
  held->hold(call.outputs, true);
  for (const Held& buffer : held->held_) {
    if (buffer.written) poison(buffer.program);
  }
  return held;
}

void HeldBuffers::hold(std::vector<at::Tensor>& tensors, bool written) {
  for (at::Tensor& tensor : tensors) {
    // A sparse tensor has no storage of its own.
    if (!tensor.has_storage() || tensor.numel() == 0) continue;
    if (device_ == nullptr) {
      held_.push_back({tensor, tensor.clone(), written});
      tensor = held_.back().copy;
      continue;
    }
    const char* begin = static_cast<const char*>(tensor.storage().data()) +
                        tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
    device_->add_in_flight({c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                                tensor.storage().unsafeGetStorageImpl()),
                            begin, begin + tensor.nbytes(), written, shared_from_this()});
    if (written) {
      device_->memory().set_observed_category(block_of(tensor.storage().data_ptr()),
                                              MemoryCategory::kBuckets);
    }
  }
}

std::string HeldBuffers::describe() const {
  return absl::StrCat(fingerprint_.to_string(), " of group \"", communicator_->name(), "\"");
}

void HeldBuffers::check(const Held& held) const {
  if (held.written) {
    TORCH_CHECK(is_poison(held.program), "rank ", communicator_->rank(member_),
                " wrote to the result of ", describe(), " before it had waited for it");
    return;
  }
  // An input that shares memory with a result was checked there.
  for (const Held& other : held_) {
    if (other.written && overlap(other.program, held.program)) return;
  }
  TORCH_CHECK(std::memcmp(bytes_of(held.program), bytes_of(held.copy), held.program.nbytes()) == 0,
              "rank ", communicator_->rank(member_), " changed the input of ", describe(),
              " before it had waited for it");
}

void HeldBuffers::give_back() {
  for (const Held& held : held_) check(held);
  abandon();
}

void HeldBuffers::abandon() {
  if (device_ != nullptr) device_->free_in_flight(this);
  for (const Held& held : std::exchange(held_, {})) {
    if (held.written) {
      std::memcpy(bytes_of(held.program), bytes_of(held.copy), held.program.nbytes());
    }
  }
}

// The Work of one member's part in an operation.
class SimWork final : public c10d::Work {
 public:
  struct Parts {
    std::shared_ptr<Operation> operation;
    std::shared_ptr<HeldBuffers> held;  // null: the tensors are not watched
    SimDevice* device = nullptr;        // null: on CPU tensors
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
    if (parts_.operation->failed) return true;
    learn();
    give_back();
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
    if (parts_.device != nullptr) {
      parts_.device->stream_waits(parts_.device->current_stream(), parts_.operation->end_ns);
    } else {
      fabric_->host_waits(parts_.operation->end_ns);
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
      devices.push_back(torch_device(parts_.device->index()));
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices);
    try {
      wait_for(parts_.timeout, /*asked_for=*/false);
      give_back();
      if (parts_.device == nullptr) {
        fabric_->host_waits(parts_.operation->end_ns);
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
      learn();
      parts_.log->set_state(parts_.ticket, OperationState::kDone);
    } catch (...) {
      parts_.log->set_state(parts_.ticket, OperationState::kFailed);
      if (parts_.held) parts_.held->abandon();
      throw;
    }
  }

  // The rank's device knows when the collective runs.
  void learn() {
    if (parts_.device == nullptr || c10d::isP2POp(retrieveOpType()) ||
        std::exchange(has_learned_, true)) {
      return;
    }
    const Operation& operation = *parts_.operation;
    parts_.device->add_finished_collective(operation.start_ns, operation.end_ns,
                                           operation.channels);
  }

  void give_back() const {
    if (parts_.held) parts_.held->give_back();
  }

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<Communicator> communicator_;
  const int member_;
  const Parts parts_;
  const absl::Duration called_at_;
  bool has_learned_ = false;
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
        log_index_(log_.add_group(communicator_->name())) {
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
  static SimDevice* device_of_call(const Call& call) {
    const char* op = op_name(call.fingerprint.op);
    const at::Tensor* first = nullptr;
    SimDevice* device = nullptr;
    for (const Tensors* tensors : {&call.inputs, &call.outputs}) {
      for (const at::Tensor& tensor : *tensors) {
        if (first == nullptr) first = &tensor;
        TORCH_CHECK_VALUE(tensor.device() == first->device(), op, ": tensors on ", first->device(),
                          " and on ", tensor.device());
        if (tensor.is_privateuseone()) device = &device_of(tensor, op);
      }
    }
    return device;
  }

  // A device that communicates in this group.
  struct Part {
    SimDevice* device;
    int stream;  // for this group's communication
    bool has_buffers = false;
  };

  Part& part_of(SimDevice& device) {
    for (Part& part : parts_) {
      if (part.device == &device) return part;
    }
    return parts_.emplace_back(&device, device.new_stream());
  }

  // As with NCCL: the first collective of a communicator allocates its buffers.
  void take_buffers(Part& part) {
    if (part.has_buffers) return;
    part.device->memory().allocate_for_library(
        communicator_->device_bytes(),
        absl::StrCat("NCCL for group \"", communicator_->name(), "\""));
    part.has_buffers = true;  // not where the device had no room
  }

  // Tells the run's witness what the rank contributes. What a member only receives is not known
  // before.
  void note_values(const Call& call) {
    const OpType op = call.fingerprint.op;
    const bool has_root = op == OpType::BROADCAST || op == OpType::SCATTER;
    if (op == OpType::BARRIER || (has_root && call.fingerprint.root != rank_)) return;
    uint64_t hash = 0;
    for (const at::Tensor& input : call.inputs) {
      if (input.is_sparse() || !has_values(input) || !input.is_contiguous()) continue;
      const at::Tensor host = host_alias(input);
      const auto* bytes = static_cast<const unsigned char*>(host.const_data_ptr());
      for (size_t i = 0; i < host.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    fabric_->witness()->note(RunLog::Kind::kValues, communicator_->rank(rank_),
                             absl::StrCat(op_name(op), " of ", communicator_->name()),
                             static_cast<int64_t>(hash), fabric_->scheduler().now_ns());
  }

  // The rank has come to the call: what strikes its values.
  std::vector<SiteFault> reach(const Call& call) {
    const OpType op = call.fingerprint.op;
    const int peer = call.fingerprint.peer;
    const bool is_message = c10d::isP2POp(op);
    const Site site = !is_message          ? Site::kCollective
                      : op == OpType::SEND ? Site::kSend
                                           : Site::kRecv;
    const std::string words = absl::StrCat(op_name(op), " of ", communicator_->name());
    const std::vector<int> peers = is_message && peer >= 0
                                       ? std::vector<int>{communicator_->rank(peer)}
                                       : communicator_->ranks();
    return fabric_->faults()->reach(communicator_->rank(rank_), site, words, peers);
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
    if (fabric_->faults() != nullptr) call.faults = reach(call);
    if (fabric_->witness() != nullptr) note_values(call);
    if (!c10d::isP2POp(op)) call.fingerprint.sequence = communicator_->sequence(rank_);
    fabric_->spot_check().compare(communicator_->rank(rank_), call.fingerprint, size_);
    SimWork::Parts parts;
    parts.device = call.device = device_of_call(call);
    strike(fabric_->faults(), call, /*results=*/false);  // before the collective has them
    parts.results = call.outputs.empty() ? call.inputs : call.outputs;
    parts.timeout =
        asked.timeout == c10d::kUnsetTimeout ? timeout_ : absl::FromChrono(asked.timeout);
    const Scheduler& scheduler = fabric_->scheduler();
    call.deadline_ns = absl::ToInt64Nanoseconds(scheduler.now() + parts.timeout);
    call.called_ns = call.ready_ns = scheduler.now_ns();
    if (parts.device != nullptr) {
      SimDevice& device = *parts.device;
      Part& part = part_of(device);
      if (!c10d::isP2POp(op)) {
        take_buffers(part);
        device.call_collective();
      }
      parts.stream = call.stream = part.stream;
      // LibTorch's backend for NCCL keeps results until the wait, and records its stream for
      // what it reads.
      for (const at::Tensor& input : call.inputs) {
        if (input.has_storage()) {
          device.memory().record_stream(block_of(input.storage().data_ptr()), part.stream);
        }
      }
      device.launch_collective();
      call.ready_ns = std::max(device.host_ns(), device.stream_ns(device.current_stream()));
      call.waits_for_host = call.ready_ns == device.host_ns();
    }
    if (fabric_->options().detect_races) {
      parts.held = HeldBuffers::take(call, parts.device, rank_, communicator_);
    }
    parts.log = &log_;
    parts.ticket = log_.enter(log_index_, call.fingerprint);
    parts.operation = c10d::isP2POp(op) ? communicator_->post(rank_, std::move(call))
                                        : communicator_->join(rank_, std::move(call));
    auto work = c10::make_intrusive<SimWork>(fabric_, communicator_, rank_, op, std::move(parts));
    if (coalescing_) coalesced_.push_back(work);
    return work;
  }

  const std::shared_ptr<Fabric> fabric_;  // keeps alive what the communicator uses
  const std::shared_ptr<Communicator> communicator_;
  const absl::Duration timeout_;
  OperationLog& log_;    // of the rank
  const int log_index_;  // of this group in the log
  std::vector<Part> parts_;
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
