#include "accelerate/state/process_control.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/objects.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr int kNoRank = -1;

// The first rank that failed, on every rank.
int first_failed(const ProcessGroupPtr& group, bool failed) {
  const int64_t ranks = group->getSize();
  const at::Tensor own = at::full({1}, failed ? ranks - group->getRank() : 0, at::kLong);
  const int64_t most = reduce_tensor(group, own, Reduction::kMax).item<int64_t>();
  return most == 0 ? kNoRank : static_cast<int>(ranks - most);
}

}  // namespace

// Ranks synchronise twice: when the first ones are through, and when all are.
OrderedScope::OrderedScope(ProcessGroupPtr group, bool is_first, const char* name)
    : group_(std::move(group)),
      is_first_(is_first),
      name_(name),
      exceptions_(std::uncaught_exceptions()) {
  if (group_ && !is_first_) synchronise(/*failed=*/false);
}

OrderedScope::~OrderedScope() noexcept(false) {
  if (!group_) return;
  const bool failed = std::uncaught_exceptions() > exceptions_;
  try {
    if (is_first_) synchronise(failed);
    if (!is_first_ || !failed) synchronise(failed);
  } catch (...) {
    if (!failed) throw;
  }
}

void OrderedScope::note_failure() { failure_ = exception_text(); }

void OrderedScope::synchronise(bool failed) {
  const int culprit = first_failed(group_, failed);
  if (culprit == kNoRank) return;
  const std::string text = broadcast_bytes(group_, failure_, culprit);
  if (failed) return;
  // The scope is over on all ranks: its end does not synchronise again.
  group_ = nullptr;
  C10_THROW_ERROR(DistBackendError,
                  c10::str("rank ", culprit, " left ", name_, " by ",
                           text.starts_with("an exception") ? text : "an error: " + text));
}

}  // namespace accelerate
