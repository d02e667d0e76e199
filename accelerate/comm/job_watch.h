/// One rank's part in finding out why an operation failed, and on whom.
///
/// Ranks talk through the job's store, not through the backend that has just failed. A helper
/// thread sleeps in a blocking wait until some rank raises the alarm; it then gives this rank's
/// operation log, whatever the rank itself is doing. The rank that raised it merges the logs into
/// one report, which all others take over: there is one alarm in a job's life, and afterwards every
/// operation of every group throws that report.
///
/// Threads: any may call at any time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/time/time.h"
#include "accelerate/comm/operation_log.h"
#include "accelerate/comm/operation_report.h"

namespace accelerate {

class JobWatch {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    /// Connects to the job's store. Called twice: the helper thread blocks its own connection.
    std::function<c10::intrusive_ptr<c10d::Store>()> connect;
    /// How long ranks may take to answer.
    absl::Duration grace = absl::Seconds(2);
  };
  using Interrupt = std::function<void()>;

  explicit JobWatch(Options options);
  /// Ends the helper thread.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  OperationLog& log() { return log_; }

  /// Throws the report, as c10::DistBackendError, if the job has failed.
  void check() const {
    if (failed_.load(std::memory_order_acquire)) raise();
  }
  [[noreturn]] void raise() const;

  /// Raises the alarm, if no other rank has done so before. Returns the one report about the first
  /// failure in the job, after at most a few times the grace.
  std::string fail(const OperationFailure& failure);

  /// As fail, for a failure that needs no explanation by the other ranks: `failure.reason` is the
  /// report, and the members of the group have it already.
  void fail_explained(const OperationFailure& failure);

  /// Calls `interrupt` when the job fails, unless the result is gone by then.
  [[nodiscard]] std::shared_ptr<void> on_failure(Interrupt interrupt);

  /// The rank's program ends; its last log stays with the store. Local.
  void end(const std::string& how);

  /// Ends the helper thread: nothing is heard of other ranks any more.
  void stop();

 private:
  void listen();
  void answer_alarm(c10d::Store& store);
  void raise_alarm(const OperationFailure& failure, bool explained);
  std::string collect_report(c10d::Store& store, const OperationFailure& failure) const;
  void publish_log(c10d::Store& store) const;
  void set_report(std::string report);

  const Options options_;
  OperationLog log_;
  std::mutex store_mutex_;
  c10::intrusive_ptr<c10d::Store> ask_store_;  // for whoever asks; the helper has its own

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;    // the alarm, by this rank
  bool listening_ = true;  // the helper thread does
  bool stopping_ = false;
  std::string report_;  // empty: the job has not failed
  std::atomic<bool> failed_ = false;
  std::vector<std::weak_ptr<Interrupt>> interrupts_;
  std::thread helper_;
};

}  // namespace accelerate
