/// One rank's part in finding out why an operation failed, and on which ranks.
///
/// Ranks communicate through the job's store, not through the backend that has just failed. A
/// helper thread blocks until some rank raises the alarm; it then publishes this rank's operation
/// log, whatever the rank itself is doing. The rank that raised the alarm merges the logs into one
/// report, which all others use: a job has one alarm, and afterwards every operation of every group
/// throws that report.
///
/// A rank whose operation does not end for a while asks the others for their logs in the same way,
/// and one rank of the job says who holds the operation up, or which call differs. Nothing fails by
/// that, but what debug mode refuses (Options::fails_crossed).
///
/// A store that does not answer, because rank 0 is frozen or gone, blocks only the helper threads:
/// no call here takes longer than a few times the grace.
/// Threads: any may call at any time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/time/time.h"
#include "accelerate/comm/watch/operation_log.h"

namespace accelerate {

class JobWatch {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    /// Connects to the job's store. Called for the helper thread, which blocks its own connection,
    /// for requests, and for each question to the others.
    std::function<c10::intrusive_ptr<c10d::Store>()> connect;
    /// How long ranks may take to answer.
    absl::Duration grace = absl::Seconds(2);
    /// How long an operation may last without a word about it.
    absl::Duration patience = absl::Seconds(30);
    /// Whether an operation fails after that time, as in debug mode, where ranks have entered
    /// groups in different orders (crossed_groups), so that it cannot end.
    bool fails_crossed = false;
    /// Where the word about it goes, a line; by default to standard error. Called on a thread of
    /// its own.
    std::function<void(const std::string& line)> say = nullptr;
    /// Where this rank writes what it did last when the job has failed (see rank_dump.h); empty:
    /// nowhere. A helper thread writes it, even if the rank computes.
    std::string dump_folder = {};
  };
  using Interrupt = std::function<void()>;

  explicit JobWatch(Options options);
  /// As stop().
  ~JobWatch();

  OperationLog& log();

  /// Throws the report, as c10::DistBackendError, if the job has failed.
  void check() const {
    if (failed_->load(std::memory_order_acquire)) raise();
  }
  [[noreturn]] void raise() const;

  /// Raises the alarm, if no other rank has done so before. Returns the one report about the first
  /// failure in the job.
  std::string fail(const OperationFailure& failure);

  /// As fail, for a failure that the other ranks' logs do not need to explain: `failure.reason` is
  /// the report, and the members of the group have it already.
  void fail_explained(const OperationFailure& failure);

  /// Calls `interrupt` when the job fails, unless the result has been released by then.
  [[nodiscard]] std::shared_ptr<void> on_failure(Interrupt interrupt);

  /// Publishes the log at the end of the rank's program. Local.
  void end(const std::string& how);

  /// Ends the threads: this rank no longer answers alarms and questions.
  void stop();

 private:
  // Shared with the threads: one that a silent store blocks may outlive this object.
  class State;

  const std::shared_ptr<State> state_;
  const std::atomic<bool>* const failed_;  // the state's
  std::thread helper_;
  std::thread observer_;
};

}  // namespace accelerate
