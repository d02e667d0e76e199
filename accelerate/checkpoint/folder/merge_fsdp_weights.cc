#include "accelerate/checkpoint/folder/merge_fsdp_weights.h"

#include "absl/strings/str_cat.h"
#include "accelerate/checkpoint/folder/save_model.h"
#include "accelerate/checkpoint/formats/merge_weights.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/objects.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

void merge_fsdp_weights(const std::string& checkpoint_dir, const std::string& output_path,
                        const MergeFsdpWeightsOptions& options, Runtime& runtime) {
  PartialState& state = PartialState::get(runtime);
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  std::string failure;
  if (state.is_main_process()) {
    const auto merged = merge_weights(runtime.files(), checkpoint_dir, output_path,
                                      {.remove_checkpoint_dir = options.remove_checkpoint_dir});
    failure = std::string(merged.status().message());
  }
  if (state.group()) failure = broadcast_bytes(state.group(), failure);
  if (!failure.empty()) throw CheckpointError(absl::StrCat("merge_fsdp_weights: ", failure));
}

}  // namespace accelerate
