#include "accelerate/comm/watch/watched_backend.h"

#include <algorithm>
#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/values/exception_text.h"

namespace accelerate {
namespace {

using c10d::OpType;

// Without backtraces and the like: the first line says what.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

[[noreturn]] void fail_operation(const WatchedGroup& group, OperationLog::Ticket ticket,
                                 const std::exception_ptr& cause) {
  OperationLog& log = group.job->log();
  const std::string operation = log.describe(ticket);
  log.set_state(ticket, OperationState::kFailed);
  group.fail(operation, cause);
}

// The Work of an operation under watch. It behaves as the backend's own, but its errors are the
// job's report, and its state goes to the operation log. A future's callbacks may be delayed until
// the report is made (JobWatch::fail).
class WatchedWork final : public c10d::Work {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  // `settle` may be null.
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<const WatchedGroup> group,
              OperationLog::Ticket ticket, Settle settle)
      : Work(group->rank, inner->retrieveOpType()),
        inner_(std::move(inner)),
        group_(std::move(group)),
        ticket_(ticket),
        settle_(std::move(settle)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void abort() override { inner_->abort(); }
  FuturePtr getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

  std::exception_ptr exception() const override {
    const std::exception_ptr cause = inner_->exception();
    if (!cause) return nullptr;
    try {
      fail_operation(*group_, ticket_, cause);
    } catch (...) {
      return std::current_exception();
    }
  }

  void synchronize() override {
    try {
      inner_->synchronize();
      if (settle_) settle_();
    } catch (...) {
      fail_operation(*group_, ticket_, std::current_exception());
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    OperationLog& log = group_->job->log();
    log.set_state(ticket_, OperationState::kWaiting);
    bool finished = false;
    try {
      finished = inner_->wait(timeout);
      if (settle_) settle_();
    } catch (...) {
      fail_operation(*group_, ticket_, std::current_exception());
    }
    log.set_state(ticket_, OperationState::kDone);
    return finished;
  }

  FuturePtr getFuture() override {
    if (future_) return future_;
    const FuturePtr inner = inner_->getFuture();
    future_ = inner->then(
        [group = group_, ticket = ticket_, settle = settle_](c10::ivalue::Future& done) {
          try {
            if (done.hasError()) std::rethrow_exception(done.exception_ptr());
            if (settle) settle();
          } catch (...) {
            fail_operation(*group, ticket, std::current_exception());
          }
          group->job->log().set_state(ticket, OperationState::kDone);
          return done.constValue();
        },
        inner->elementType());
    return future_;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<const WatchedGroup> group_;
  const OperationLog::Ticket ticket_;
  const Settle settle_;
  FuturePtr future_;
};

std::shared_ptr<void> end_pending_on_failure(JobWatch& job,
                                             const c10::intrusive_ptr<c10d::Backend>& inner) {
  if (dynamic_cast<Interruptible*>(inner.get()) == nullptr) return nullptr;
  return job.on_failure([inner] { dynamic_cast<Interruptible*>(inner.get())->interrupt(); });
}

// How long other members may take to reach a call that differs, so that the report names all.
constexpr std::chrono::seconds kGrace(2);

}  // namespace

OperationFailure WatchedGroup::failure(const std::string& operation,
                                       const std::exception_ptr& cause) const {
  return {.reason = absl::StrCat("rank ", rank, ": ", operation, " of group \"", name,
                                 "\" failed: ", first_line(exception_text(cause))),
          .group = name,
          .ranks = ranks};
}

void WatchedGroup::fail(const std::string& operation, const std::exception_ptr& cause) const {
  throw c10::DistBackendError(job->fail(failure(operation, cause)));
}

void WatchedGroup::fail_mismatch() const {
  throw c10::DistBackendError(job->fail({.reason = "", .group = name, .ranks = ranks}));
}

WatchedBackend::WatchedBackend(BackendPtr inner, WatchedGroup group, Options options)
    : CallBackend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      group_(std::make_shared<const WatchedGroup>(std::move(group))),
      options_(std::move(options)),
      interrupt_(end_pending_on_failure(*group_->job, inner_)) {}

WatchedBackend::WorkPtr WatchedBackend::issue(const CollectiveCall& call) {
  if (options_.comparer) {
    for (const at::Tensor& tensor : call.share()) {
      // What the library itself exchanges, besides the user's tensors, is on the CPU.
      TORCH_CHECK_VALUE(
          !tensor.defined() || tensor.device().type() == options_.device_type || tensor.is_cpu(),
          op_name(call.op), ": a tensor is on ", tensor.device(), ", but the ranks compute on ",
          c10::Device(options_.device_type), "; move it there first");
    }
  }
  return run(call.describe(), call.timeout, [&] { return call.repeat(*inner_); });
}

Settle WatchedBackend::compare(const CollectiveFingerprint& call,
                               std::chrono::milliseconds timeout) const {
  const auto entry = options_.comparer->enter(call.hash(), timeout);
  if (!entry.agrees) {
    try {
      options_.comparer->settle(entry.round, std::min<std::chrono::milliseconds>(timeout, kGrace));
    } catch (const c10::DistBackendError&) {
      // The report does not name members that are late.
    }
    group_->fail_mismatch();
  }
  return [comparer = options_.comparer, group = group_, round = entry.round, timeout] {
    if (!comparer->settle(round, timeout)) group->fail_mismatch();
  };
}

WatchedBackend::WorkPtr WatchedBackend::run(CollectiveFingerprint call,
                                            std::chrono::milliseconds timeout,
                                            absl::FunctionRef<WorkPtr()> begin) {
  group_->job->check();
  OperationLog& log = group_->job->log();
  std::unique_lock lock(one_at_a_time_, std::defer_lock);
  const bool compared = options_.comparer && !coalescing_ && !c10d::isP2POp(call.op);
  if (compared) lock.lock();
  const OperationLog::Ticket ticket = log.enter(group_->index, call);
  auto fail = [&] {
    log.set_state(ticket, OperationState::kFailed);
    group_->fail(call.to_string(), std::current_exception());
  };
  Settle settle;
  if (compared) {
    log.set_state(ticket, OperationState::kWaiting);
    try {
      settle = compare(call, timeout == c10d::kUnsetTimeout ? options_.timeout : timeout);
    } catch (...) {
      fail();
    }
    log.set_state(ticket, OperationState::kIssued);
  }
  WorkPtr work;
  try {
    work = begin();
  } catch (const c10::DistError&) {
    fail();
  } catch (const c10::Error&) {
    log.refuse(ticket);
    throw;
  } catch (...) {
    fail();
  }
  // Inside a coalesced block the backend may not have a Work yet.
  if (!work) return work;
  return c10::make_intrusive<WatchedWork>(std::move(work), group_, ticket, std::move(settle));
}

void WatchedBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group_->job->check();
  OperationLog& log = group_->job->log();
  CollectiveFingerprint call(OpType::BARRIER);
  const OperationLog::Ticket ticket = log.enter(group_->index, call);
  log.set_state(ticket, OperationState::kWaiting);
  try {
    inner_->monitoredBarrier(options, wait_all_ranks);
  } catch (...) {
    log.set_state(ticket, OperationState::kFailed);
    group_->fail(call.to_string(), std::current_exception());
  }
  log.set_state(ticket, OperationState::kDone);
}

void WatchedBackend::startCoalescing() {
  inner_->startCoalescing();
  coalescing_ = true;
}

WatchedBackend::WorkPtr WatchedBackend::endCoalescing() {
  coalescing_ = false;
  return run(CollectiveFingerprint(OpType::COALESCED), c10d::kUnsetTimeout,
             [&] { return inner_->endCoalescing(); });
}

}  // namespace accelerate
