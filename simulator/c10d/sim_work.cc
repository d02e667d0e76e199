#include "simulator/c10d/sim_work.h"

#include <utility>

#include <c10/util/Exception.h>

namespace accelerate::simulator {

SimWork::SimWork(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator,
                 std::shared_ptr<Operation> operation, int member, c10d::OpType op,
                 std::vector<at::Tensor> results, absl::Duration timeout)
    : Work(member, op),
      fabric_(std::move(fabric)),
      communicator_(std::move(communicator)),
      operation_(std::move(operation)),
      member_(member),
      results_(std::move(results)),
      timeout_(timeout),
      called_at_(fabric_->scheduler().now()) {}

void SimWork::wait_for(absl::Duration timeout, bool asked_for) {
  const absl::Duration since = asked_for ? fabric_->scheduler().now() : called_at_;
  communicator_->wait(member_, operation_,
                      {.timeout = timeout, .since = since, .asked_for = asked_for});
}

bool SimWork::isCompleted() {
  return communicator_->poll(member_, operation_, {.timeout = timeout_, .since = called_at_});
}

bool SimWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout || timeout == c10d::kUnsetTimeout) {
    wait_for(timeout_, /*asked_for=*/false);
  } else {
    wait_for(absl::FromChrono(timeout), /*asked_for=*/true);
  }
  return true;
}

std::exception_ptr SimWork::exception() const {
  if (!operation_->failed) return nullptr;
  return std::make_exception_ptr(c10::DistBackendError(communicator_->failure()));
}

c10::intrusive_ptr<c10::ivalue::Future> SimWork::getFuture() {
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  try {
    wait_for(timeout_, /*asked_for=*/false);
    future_->markCompleted(c10::IValue(results_));
  } catch (...) {
    future_->setError(std::current_exception());
  }
  return future_;
}

}  // namespace accelerate::simulator
