#include "simulator/c10d/sim_work.h"

#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

namespace accelerate::simulator {

SimWork::SimWork(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator,
                 int member, c10d::OpType op, Parts parts)
    : Work(member, op),
      fabric_(std::move(fabric)),
      communicator_(std::move(communicator)),
      member_(member),
      parts_(std::move(parts)),
      called_at_(fabric_->scheduler().now()) {}

// Waits in real time: until the operation has been carried out. Virtual time is the caller's.
void SimWork::wait_for(absl::Duration timeout, bool asked_for) {
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

void SimWork::give_back() const {
  if (parts_.held) parts_.held->give_back();
}

bool SimWork::isCompleted() {
  const Patience patience{.timeout = parts_.timeout, .since = called_at_};
  if (!communicator_->poll(member_, parts_.operation, patience)) return false;
  Scheduler& scheduler = fabric_->scheduler();
  if (parts_.operation->end_ns > scheduler.now_ns()) scheduler.poll();
  if (parts_.operation->end_ns > scheduler.now_ns()) return false;
  if (!parts_.operation->failed) give_back();
  return true;
}

bool SimWork::wait(std::chrono::milliseconds timeout) {
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

std::exception_ptr SimWork::exception() const {
  if (!parts_.operation->failed) return nullptr;
  return std::make_exception_ptr(c10::DistBackendError(communicator_->failure()));
}

c10::intrusive_ptr<c10::ivalue::Future> SimWork::getFuture() {
  if (future_) return future_;
  std::vector<c10::Device> devices;
  if (parts_.device != nullptr) {
    devices.emplace_back(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(parts_.device->index()));
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     devices);
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
      // Whoever waits for the future, waits for what is on this stream now.
      const c10::StreamGuard communication(
          c10::Stream(c10::Stream::UNSAFE, devices[0], parts_.stream));
      future_->markCompleted(c10::IValue(parts_.results));
    }
  } catch (...) {
    future_->setError(std::current_exception());
  }
  return future_;
}

}  // namespace accelerate::simulator
