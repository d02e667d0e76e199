#include "accelerate/checkpoint/folder/save_model.h"

#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/checkpoint/formats/merge_weights.h"
#include "accelerate/checkpoint/formats/weight_files.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/checkpoint/tensor_files/safetensors.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {
namespace {

constexpr char kLoggerName[] = "accelerate.checkpoint";

// Without a PartialState it is unknown which rank logs.
bool can_log() {
  const Runtime* runtime = Runtime::find_current();
  return runtime != nullptr && PartialState::find(*runtime) != nullptr;
}

int64_t bytes_of(const std::variant<int64_t, std::string>& size) {
  if (const auto* bytes = std::get_if<int64_t>(&size)) return *bytes;
  const absl::StatusOr<int64_t> parsed = parse_shard_size(std::get<std::string>(size));
  TORCH_CHECK_VALUE(parsed.ok(), std::string(parsed.status().message()));
  return *parsed;
}

void check_memory(const NamedTensors& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) {
    TORCH_CHECK_VALUE(tensor.defined(), "cannot save \"", name, "\": it is undefined");
    if (tensor.is_meta()) names.push_back(name);
  }
  TORCH_CHECK_VALUE(names.empty(), "cannot save tensors that are on the meta device: ",
                    absl::StrJoin(names, ", "));
}

ShardPlan plan_of(const NamedTensors& state, int64_t max_shard_bytes) {
  std::vector<int64_t> sizes;
  for (const auto& [name, tensor] : state) sizes.push_back(static_cast<int64_t>(tensor.nbytes()));
  return plan_shards(sizes, max_shard_bytes);
}

}  // namespace

void save_model(FileSystem& files, const NamedTensors& state, const std::string& directory,
                const SaveModelOptions& options) {
  const absl::StatusOr<FileInfo> info = files.info(directory);
  TORCH_CHECK_VALUE(!info.ok() || info->is_directory, "cannot save a model in ", directory,
                    ": it is a file, not a folder");
  check_memory(state);
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  const int64_t max_shard_bytes = bytes_of(options.max_shard_size);
  const NamedTensors cleaned = clean_state_dict_for_safetensors(state);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : cleaned) names.push_back(name);
  const auto write = [&](const std::string& path, const std::vector<size_t>& positions) {
    NamedTensors tensors;
    for (size_t position : positions) tensors.push_back(cleaned[position]);
    return write_safetensors(files, path, tensors, {{{"format", "pt"}}}).status();
  };
  internal::check_ok(
      internal::replace_weights(files, directory, plan_of(cleaned, max_shard_bytes), names, write));
}

NamedTensors clean_state_dict_for_safetensors(const NamedTensors& state) {
  const std::vector<size_t> firsts = internal::first_identical_views(state);
  NamedTensors cleaned;
  std::vector<std::string> removed;
  for (size_t i = 0; i < state.size(); ++i) {
    if (firsts[i] == i) {
      cleaned.push_back(state[i]);
    } else {
      removed.push_back(absl::StrCat(state[i].first, " (as ", state[firsts[i]].first, ")"));
    }
  }
  if (!removed.empty() && can_log()) {
    get_logger(kLoggerName).warning([&] {
      return absl::StrCat("tied tensors are saved once; not under these names: ",
                          absl::StrJoin(removed, ", "));
    });
  }
  return cleaned;
}

namespace internal {

void warn_of_unsafe_serialization(bool safe_serialization) {
  if (safe_serialization || !can_log()) return;
  get_logger(kLoggerName)
      .warning_once(
          "safe_serialization=false has no effect: safetensors are written, never pickle");
}

}  // namespace internal

void merge_fsdp_weights(const std::string& checkpoint_dir, const std::string& output_path,
                        const MergeFsdpWeightsOptions& options, Runtime& runtime) {
  PartialState& state = PartialState::get(runtime);
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  internal::agree_with_rank0(state.group(), "merge_fsdp_weights: ", [&] {
    internal::check_ok(merge_weights(runtime.files(), checkpoint_dir, output_path,
                                     {.remove_checkpoint_dir = options.remove_checkpoint_dir})
                           .status());
    return "";
  });
}

}  // namespace accelerate
