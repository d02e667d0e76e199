#include "accelerate/parallel/replicated/reducer_group.h"

#include "absl/strings/str_cat.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate::internal {

bool NamedPasses::prepare(int64_t steps, bool reduced) {
  pass_ = steps_ != steps ? 1 : pass_ + (reduced ? 1 : 0);
  steps_ = steps;
  std::string purpose;
  if (pass_ > 1 && pass_ < kMost) {
    purpose = absl::StrCat("gradients of backward pass ", pass_, " since the last step");
  }
  if (purpose == purpose_) return false;
  purpose_ = std::move(purpose);
  return true;
}

ProcessGroupPtr NamedPasses::named(const ProcessGroupPtr& group) const {
  if (purpose_.empty()) return group;
  return c10::make_intrusive<ReducerGroup>(
      group, [group, purpose = purpose_](std::vector<at::Tensor>& tensors,
                                         const c10d::AllreduceOptions& options) {
        const CollectivePurpose scope(purpose);
        return group->allreduce(tensors, options);
      });
}

}  // namespace accelerate::internal
