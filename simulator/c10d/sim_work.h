/// The c10d::Work of one member's part in an operation.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "simulator/c10d/communicator.h"

namespace accelerate::simulator {

class SimWork final : public c10d::Work {
 public:
  /// `results` are the tensors that hold the outcome on this rank. `timeout` is the default for
  /// waits that do not name one.
  SimWork(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator,
          std::shared_ptr<Operation> operation, int member, c10d::OpType op,
          std::vector<at::Tensor> results, absl::Duration timeout);

  /// Lets other ranks go on if it is not, so that a loop around it ends.
  bool isCompleted() override;
  bool isSuccess() const override { return operation_->done && !operation_->failed; }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return operation_->source; }
  std::vector<at::Tensor> result() override { return results_; }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  /// Fails the whole group, on all its members.
  void abort() override { communicator_->abort(member_); }
  /// Blocks until the operation is done; an error is in the future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void wait_for(absl::Duration timeout, bool asked_for);

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Operation> operation_;
  const int member_;
  const std::vector<at::Tensor> results_;
  const absl::Duration timeout_;
  const absl::Duration called_at_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accelerate::simulator
