/// The Work of an operation under watch. It behaves as the backend's own, but its errors are the
/// job's report, and its state goes to the operation log.
///
/// Errors: c10::DistBackendError with the report from wait, the future and exception().
/// Threads: as the backend's Work. A future's callbacks may be delayed until the report is made
///          (JobWatch::fail).
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/watch/job_watch.h"

namespace accelerate {

/// A group, for the watch of one of its members.
struct WatchedGroup {
  std::shared_ptr<JobWatch> job;
  std::string name;
  std::vector<int> ranks;  ///< global ranks of the members
  int rank = 0;            ///< this one, globally
  int index = 0;           ///< in this rank's operation log

  /// Describes a failure of the operation; `cause` is its exception.
  OperationFailure failure(const std::string& operation, const std::exception_ptr& cause) const;
  /// Raises the alarm. Throws the job's report.
  [[noreturn]] void fail(const std::string& operation, const std::exception_ptr& cause) const;
  /// The same if the members' calls differ.
  [[noreturn]] void fail_mismatch() const;
};

/// Checks what must be true before an operation counts as done; throws the job's report otherwise.
using Settle = std::function<void()>;

class WatchedWork final : public c10d::Work {
 public:
  /// `settle` may be null.
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<const WatchedGroup> group,
              OperationLog::Ticket ticket, Settle settle);

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<const WatchedGroup> group_;
  const OperationLog::Ticket ticket_;
  const Settle settle_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accelerate
