#include "accelerate/comm/backends/mpi/mpi_work.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/backends/mpi/mpi_engine.h"
#include "accelerate/comm/watch/collective_fingerprint.h"

namespace accelerate::internal {

namespace {

// Later times may be none that the clock can tell.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

}  // namespace

MpiWork::MpiWork(std::shared_ptr<MpiGroup> group, c10d::OpType op,
                 std::chrono::milliseconds timeout, Tensors results, Tensors kept)
    : Work(group->rank, op),
      group_(std::move(group)),
      timeout_(std::min(timeout <= kNoTimeout ? group_->timeout : timeout, kLongest)),
      deadline_(Clock::now() + timeout_),
      results_(std::move(results)),
      kept_(std::move(kept)) {
  link_.rank = group_->rank;
  link_.size = group_->size();
  link_.staging = group_->staging;
}

std::string MpiWork::name() const { return absl::StrCat(op_name(opType_), peer_); }

bool MpiWork::isCompleted() {
  if (!done()) MpiEngine::get().poll();
  return done();
}

bool MpiWork::wait(std::chrono::milliseconds timeout) {
  const bool own = timeout <= kNoTimeout;
  if (!done()) {
    MpiEngine::get().wait(*this, own ? deadline_ : Clock::now() + std::min(timeout, kLongest));
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void MpiWork::abort() {
  MpiEngine::get().fail(*group_, std::make_exception_ptr(
                                     c10::DistBackendError(absl::StrCat(name(), " was aborted"))));
}

c10::intrusive_ptr<c10::ivalue::Future> MpiWork::getFuture() {
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    late = published_;
  }
  if (late) complete(*future_);
  return future_;
}

void MpiWork::publish() {
  {
    const std::lock_guard lock(mutex_);
    published_ = true;
    if (!future_) return;
  }
  complete(*future_);
}

void MpiWork::complete(c10::ivalue::Future& future) const {
  if (exception_) {
    future.setError(exception_);
  } else {
    future.markCompleted(c10::IValue(results_));
  }
}

}  // namespace accelerate::internal
