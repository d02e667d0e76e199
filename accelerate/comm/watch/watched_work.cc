#include "accelerate/comm/watch/watched_work.h"

#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/values/exception_text.h"

namespace accelerate {
namespace {

// Without backtraces and the like: the first line says what.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

[[noreturn]] void fail_operation(const WatchedGroup& group, OperationLog::Ticket ticket,
                                 const std::exception_ptr& cause) {
  OperationLog& log = group.job->log();
  const std::string operation = log.describe(ticket);
  log.set_state(ticket, OperationState::kFailed);
  group.fail(operation, cause);
}

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

WatchedWork::WatchedWork(c10::intrusive_ptr<c10d::Work> inner,
                         std::shared_ptr<const WatchedGroup> group, OperationLog::Ticket ticket,
                         Settle settle)
    : Work(group->rank, inner->retrieveOpType()),
      inner_(std::move(inner)),
      group_(std::move(group)),
      ticket_(ticket),
      settle_(std::move(settle)) {}

bool WatchedWork::wait(std::chrono::milliseconds timeout) {
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

void WatchedWork::synchronize() {
  try {
    inner_->synchronize();
    if (settle_) settle_();
  } catch (...) {
    fail_operation(*group_, ticket_, std::current_exception());
  }
}

std::exception_ptr WatchedWork::exception() const {
  const std::exception_ptr cause = inner_->exception();
  if (!cause) return nullptr;
  try {
    fail_operation(*group_, ticket_, cause);
  } catch (...) {
    return std::current_exception();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> WatchedWork::getFuture() {
  if (future_) return future_;
  const c10::intrusive_ptr<c10::ivalue::Future> inner = inner_->getFuture();
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

}  // namespace accelerate
