/// A real backend under watch: every operation is logged, its failure is explained by all ranks'
/// logs together, and in debug mode, or where a ComparedCalls asks for it, it is compared with the
/// other members' before it runs.
///
/// Errors: a call that is wrong by itself throws what the backend throws, and leaves the job alone.
///         Any other failure, of a call, a wait or a future, is a c10::DistBackendError with the
///         job's one report (accelerate/comm/watch/job_watch.h); afterwards every call of every
///         group throws it.
/// Comparing: each member publishes a hash of the call it is about to make. If two calls differ in
///         operation, root, reduce op, dtype, shape or position, the later one does not begin, so
///         the operation cannot complete, and all members throw. An operation counts as done when
///         all members have made the same call. Point-to-point messages are not compared.
/// Threads: as the backend's; calls that are compared are made one after the other.
/// Mirrors: accelerate utils/operations.py, verify_operation (here WatchedBackend in debug mode).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/comm/watch/job_watch.h"

namespace accelerate {

/// A group, for the watch of one of its members.
struct WatchedGroup {
  std::shared_ptr<JobWatch> job;
  std::string name;
  std::vector<int> ranks;  ///< global ranks of the members
  int rank = 0;            ///< this one, globally
  int index = 0;           ///< in this rank's operation log

  /// Raises the alarm; `cause` is the operation's exception. Throws the job's report.
  [[noreturn]] void fail(const std::string& operation, const std::exception_ptr& cause) const;
  /// The same if the members' calls differ.
  [[noreturn]] void fail_mismatch() const;
};

/// Checks what must be true before an operation counts as done; throws the job's report otherwise.
using FinishComparison = std::function<void()>;

class WatchedBackend final : public CallBackend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  struct Options {
    std::chrono::milliseconds timeout;       ///< of operations that name none
    std::shared_ptr<CallComparer> comparer;  ///< null: no call is compared
    bool compares_all = false;               ///< debug mode; else those that ComparedCalls asks for
    /// In debug mode: where tensors have to be, if not on the CPU.
    c10::DeviceType device_type = c10::kCPU;
  };

  WatchedBackend(BackendPtr inner, WatchedGroup group, Options options);

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void eagerConnectSingleDevice(at::Device device) override {
    inner_->eagerConnectSingleDevice(device);
  }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }

  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  WorkPtr issue(const CollectiveCall& call) override;
  WorkPtr run(CollectiveFingerprint call, std::chrono::milliseconds timeout,
              absl::FunctionRef<WorkPtr()> begin);
  // Publishes the call. Returns the check that is left until the operation is done.
  FinishComparison compare(const CollectiveFingerprint& call,
                           std::chrono::milliseconds timeout) const;

  const BackendPtr inner_;
  const std::shared_ptr<const WatchedGroup> group_;
  const Options options_;
  const std::shared_ptr<void> interrupt_;
  std::mutex one_at_a_time_;  // of calls that are compared
  bool coalescing_ = false;
};

/// Members of a group on one machine compare their calls through shared memory. No member waits to
/// begin a call: each compares its call with those of the members that came before.
///
/// Errors and threads: as CallComparer's.
class SharedMemoryComparer final : public CallComparer {
 public:
  /// Null on all members if one of them cannot map the memory. Collective.
  static std::unique_ptr<SharedMemoryComparer> make(c10d::Store& store, int member, int members);

  ~SharedMemoryComparer() override;

  Entry enter(uint64_t hash, std::chrono::milliseconds timeout) override;
  bool compare_all(uint64_t round, std::chrono::milliseconds timeout) override;
  void interrupt() override { interrupted_.store(true); }

 private:
  struct Slot;
  SharedMemoryComparer(Slot* slots, int member, int members);
  // Waits until the member has made so many calls.
  void wait_for(Slot& slot, uint64_t calls, std::chrono::milliseconds timeout) const;

  Slot* const slots_;
  const int member_;
  const int members_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace accelerate
