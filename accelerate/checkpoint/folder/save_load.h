/// A model's weights as files that others read, and any object's tensors and values as one file,
/// and back.
///
/// An object with tensors becomes a safetensors file, with its other values as JSON text under the
/// metadata key "values"; an object without tensors becomes a JSON file. A file appears complete
/// and durable, or not at all, and then the file before stays.
///
/// Errors:  c10::ValueError naming a value that cannot be saved; CheckpointError, naming the file,
///          if it is damaged or of an unknown format, and if the disk fails.
/// Threads: any.
/// Mirrors: accelerate utils/other.py, save and load; Accelerator.save_model, save_torch_state_dict
///          and clean_state_dict_for_safetensors.
/// Differs: pickle is read, and never written; partial views and empty tensors are saved, with all
///          that are not identical; a model without tensors is a file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct SaveOptions {
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
};

/// Local, for one rank; missing folders are made. Only the first of tied tensors is saved, with a
/// warning.
void save(FileSystem& files, const StateDict& obj, const std::string& path,
          const SaveOptions& options = {});
void save(FileSystem& files, const NamedTensors& obj, const std::string& path,
          const SaveOptions& options = {});
/// A dict with names as keys, of tensors, numbers, texts, None, and lists, tuples and dicts of
/// them; see state_dict_of.
void save(FileSystem& files, const c10::IValue& obj, const std::string& path,
          const SaveOptions& options = {});

struct SaveOnceOptions {
  /// Each node's first rank writes, for nodes with disks of their own; else the job's first rank.
  bool save_on_each_node = false;
  /// See SaveOptions.
  bool safe_serialization = true;
};

/// The same into the Runtime's files, by the rank that `options` names; the other ranks return at
/// once. Local: Accelerator::save is the collective one, whose errors reach all ranks.
void save(const StateDict& obj, const std::string& f, const SaveOnceOptions& options = {},
          Runtime& runtime = Runtime::current());
void save(const NamedTensors& obj, const std::string& f, const SaveOnceOptions& options = {},
          Runtime& runtime = Runtime::current());
void save(const c10::IValue& obj, const std::string& f, const SaveOnceOptions& options = {},
          Runtime& runtime = Runtime::current());

struct LoadOptions {
  /// Where the tensors go. Absent: they stay on the CPU.
  std::optional<c10::Device> map_location = std::nullopt;
};

/// Reads a safetensors or JSON file, or a torch.save zip (see torch_file.h). Local.
StateDict load(FileSystem& files, const std::string& path, const LoadOptions& options = {});
/// The same from the Runtime's files.
StateDict load(const std::string& f, const LoadOptions& options = {},
               Runtime& runtime = Runtime::current());

namespace internal {

std::string custom_state_path(const std::string& folder, int64_t index);
void save_custom_state(const StateDict& state, const std::string& path, bool save_on_each_node,
                       Runtime& runtime);
StateDict load_custom_state(const std::string& path, Runtime& runtime);

}  // namespace internal

/// Writes what a registered object (see Accelerator::register_for_checkpointing) would have in a
/// checkpoint: `path`/custom_checkpoint_{index}.safetensors, or .json for a state without tensors.
/// The rank that writes is that of save(); the others return at once. Local.
/// Mirrors: accelerate checkpointing.py, save_custom_state and load_custom_state.
template <Checkpointable T>
void save_custom_state(T& obj, const std::string& path, int64_t index = 0,
                       bool save_on_each_node = false, Runtime& runtime = Runtime::current()) {
  internal::save_custom_state(internal::checkpointed(obj).state_dict(),
                              internal::custom_state_path(path, index), save_on_each_node, runtime);
}
/// The same back, also out of a checkpoint's folder. Tensors are on the CPU. Local.
template <Checkpointable T>
void load_custom_state(T& obj, const std::string& path, int64_t index = 0,
                       Runtime& runtime = Runtime::current()) {
  internal::checkpointed(obj).load_state_dict(
      internal::load_custom_state(internal::custom_state_path(path, index), runtime));
}

/// A nested value as a StateDict: tensors have the names of the dicts' keys and the lists'
/// positions on the way to them, with dots between; in lists of the values null has their place,
/// in dicts nothing. Local.
StateDict state_dict_of(const c10::IValue& value);

struct SaveModelOptions {
  /// Bytes, or a text (see parse_shard_size).
  std::variant<int64_t, std::string> max_shard_size = "10GB";
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
};

/// Writes `model.safetensors`, or shards with an index, if the weights are larger than
/// `max_shard_size`. Local, for one rank. The folder is made where there is none.
///
/// A save may be interrupted anywhere: the folder then holds the old weights or the new ones,
/// complete (see replace_weights). What is left of earlier saves is removed last. Other files, such
/// as `pytorch_model.bin`, stay.
/// Errors:  c10::ValueError for a directory that is a file, tensors on the meta device (naming
///          them), and a size that cannot be parsed; CheckpointError if the disk fails.
/// Threads: one at a time for a folder, without readers meanwhile.
void save_model(FileSystem& files, const NamedTensors& state, const std::string& directory,
                const SaveModelOptions& options = {});

/// A tensor whose values are made when they are to be written.
struct StreamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  /// Collective. The values on the host where they are wanted; elsewhere undefined.
  std::function<at::Tensor(bool is_wanted)> values;
};

/// The same as save_model, one tensor at a time: no rank has more of the model than that. All ranks
/// of `group` call it with the same tensors, and those that `writes` write. The error of one
/// reaches all. Collective.
void save_model_streamed(const ProcessGroupPtr& group, FileSystem& files,
                         const std::vector<StreamedTensor>& tensors, const std::string& directory,
                         bool writes, const SaveModelOptions& options = {});

/// Keeps the first of those tensors that are the same elements of the same memory; a warning names
/// the others. Local.
NamedTensors clean_state_dict_for_safetensors(const NamedTensors& state);

namespace internal {

/// Warns once per Runtime that pickle is not written, if it was asked for.
void warn_of_unsafe_serialization(bool safe_serialization);

}  // namespace internal

struct MergeFsdpWeightsOptions {
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
  /// Removes what was merged, once that is complete.
  bool remove_checkpoint_dir = false;
};

/// Makes `output_path`/model.safetensors of a checkpoint in shards: the main process runs
/// merge_weights, and all ranks return or throw together. Collective.
/// Errors:  CheckpointError on all ranks; see merge_weights.h.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/fsdp_utils.py, merge_fsdp_weights.
void merge_fsdp_weights(const std::string& checkpoint_dir, const std::string& output_path,
                        const MergeFsdpWeightsOptions& options = {},
                        Runtime& runtime = Runtime::current());

}  // namespace accelerate
