#include "accelerate/checkpoint/folder/save_load.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/files/torch_file.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/json_values.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;

std::string below(const std::string& place, const std::string& name) {
  return place.empty() ? name : absl::StrCat(place, ".", name);
}

// JSON has no numbers for them, and would say null.
void check_numbers(const ordered_json& value, const std::string& place) {
  if (value.is_number_float()) {
    TORCH_CHECK_VALUE(std::isfinite(value.get<double>()), "cannot save \"", place, "\": it is ",
                      value.get<double>(), ", which JSON cannot hold");
  } else if (value.is_structured()) {
    for (const auto& [key, entry] : value.items()) check_numbers(entry, below(place, key));
  }
}

class Flattener {
 public:
  StateDict flatten(const c10::IValue& value) {
    StateDict state{.values = values_of(value, "")};
    state.tensors = std::move(tensors_);
    return state;
  }

 private:
  // Null for a tensor.
  ordered_json values_of(const c10::IValue& value, const std::string& place) {
    if (value.isTensor()) {
      TORCH_CHECK_VALUE(names_.insert(place).second, "two tensors are called \"", place, "\"");
      tensors_.emplace_back(place, value.toTensor());
      return nullptr;
    }
    if (value.isNone()) return nullptr;
    if (value.isBool()) return value.toBool();
    if (value.isInt()) return value.toInt();
    if (value.isDouble()) return value.toDouble();
    if (value.isString()) return value.toStringRef();
    if (value.isDevice()) return value.toDevice().str();
    if (value.isGenericDict()) return values_of_dict(value.toGenericDict(), place);
    if (value.isList()) return values_of_list(value.toListRef(), place);
    if (value.isTuple()) return values_of_list(value.toTupleRef().elements(), place);
    TORCH_CHECK_VALUE(false, "cannot save \"", place, "\": it is a ", value.tagKind());
  }

  ordered_json values_of_dict(const c10::Dict<c10::IValue, c10::IValue>& dict,
                              const std::string& place) {
    ordered_json values = ordered_json::object();
    for (const auto& entry : dict) {
      const c10::IValue key = entry.key();
      TORCH_CHECK_VALUE(key.isString() || key.isInt(), "cannot save \"", place,
                        "\": a dict's keys must be names, and one is a ", key.tagKind());
      const std::string name = key.isString() ? key.toStringRef() : absl::StrCat(key.toInt());
      ordered_json value = values_of(entry.value(), below(place, name));
      if (entry.value().isTensor()) continue;
      TORCH_CHECK_VALUE(!values.contains(name), "\"", below(place, name), "\" is there twice");
      values[name] = std::move(value);
    }
    return values;
  }

  template <typename Items>
  ordered_json values_of_list(const Items& items, const std::string& place) {
    ordered_json values = ordered_json::array();
    for (const c10::IValue& item : items) {
      values.push_back(values_of(item, below(place, absl::StrCat(values.size()))));
    }
    return values;
  }

  NamedTensors tensors_;
  std::set<std::string> names_;
};

absl::Status write_tensors(FileSystem& files, const StateDict& state, const std::string& values,
                           const std::string& path) {
  const std::string folder = parent_path(path);
  ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files, folder));
  const std::string partial = files.temporary_name(path);
  absl::Status status =
      write_safetensors(files, partial, state.tensors,
                        internal::state_metadata(state.values.empty() ? "" : values))
          .status();
  if (status.ok()) status = files.rename(partial, path);
  if (status.ok()) return files.sync_directory(folder);
  files.remove(partial).IgnoreError();
  return status;
}

std::string text_of(const ordered_json& values) {
  check_numbers(values, "");
  TORCH_CHECK_VALUE(!internal::is_value_too_deep(values), "cannot save values: they are nested in ",
                    "more than ", internal::kMaxJsonDepth, " levels");
  try {
    return values.dump(2) + "\n";
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "cannot save values as JSON: ", error.what());
  }
}

// No text is a plausible length.
bool is_safetensors(FileSystem& files, const std::string& path) {
  const std::unique_ptr<ReadableFile> file = internal::value_or_throw(files.open(path));
  if (file->size() < 8) return false;
  const std::string length = internal::value_or_throw(read_start(*file, 8));
  uint64_t header_bytes = 0;
  for (size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | static_cast<uint8_t>(length[i]);
  return header_bytes <= static_cast<uint64_t>(file->size() - 8);
}

constexpr char kLoggerName[] = "accelerate.checkpoint";

// A state's file ends so with tensors, and so without.
constexpr const char* kStateSuffixes[] = {".safetensors", ".json"};

bool writes(const Runtime& runtime, bool on_each_node) {
  const Topology& topology = runtime.topology();
  return (on_each_node ? topology.local_rank : topology.rank) == 0;
}

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

void check_folder(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<FileInfo> info = files.info(directory);
  TORCH_CHECK_VALUE(!info.ok() || info->is_directory, "cannot save a model in ", directory,
                    ": it is a file, not a folder");
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

StateDict load_on_host(FileSystem& files, const std::string& path) {
  if (is_torch_file(files, path)) return state_dict_of(read_torch_file(files, path));
  if (!is_safetensors(files, path)) {
    return {.values = internal::parse_state_values(internal::value_or_throw(read_file(files, path)),
                                                   path)};
  }
  const SafetensorsFile file = internal::value_or_throw(SafetensorsFile::open(files, path));
  return {.tensors = internal::value_or_throw(file.read_all()),
          .values = internal::state_values(file, path).value_or(ordered_json::object())};
}

}  // namespace

void save(FileSystem& files, const StateDict& obj, const std::string& path,
          const SaveOptions& options) {
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  for (const auto& [name, tensor] : obj.tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), "cannot save \"", name, "\": it is undefined");
  }
  const StateDict cleaned{.tensors = clean_state_dict_for_safetensors(obj.tensors),
                          .values = obj.values};
  const std::string values = text_of(cleaned.values);
  internal::check_ok(cleaned.tensors.empty() ? write_file(files, path, values)
                                             : write_tensors(files, cleaned, values, path));
}

void save(FileSystem& files, const NamedTensors& obj, const std::string& path,
          const SaveOptions& options) {
  save(files, StateDict{.tensors = obj, .values = ordered_json::object()}, path, options);
}

void save(FileSystem& files, const c10::IValue& obj, const std::string& path,
          const SaveOptions& options) {
  save(files, state_dict_of(obj), path, options);
}

void save(const StateDict& obj, const std::string& f, const SaveOnceOptions& options,
          Runtime& runtime) {
  if (!writes(runtime, options.save_on_each_node)) return;
  save(runtime.files(), obj, f, {.safe_serialization = options.safe_serialization});
}

void save(const NamedTensors& obj, const std::string& f, const SaveOnceOptions& options,
          Runtime& runtime) {
  save(StateDict{.tensors = obj, .values = ordered_json::object()}, f, options, runtime);
}

void save(const c10::IValue& obj, const std::string& f, const SaveOnceOptions& options,
          Runtime& runtime) {
  save(state_dict_of(obj), f, options, runtime);
}

StateDict load(const std::string& f, const LoadOptions& options, Runtime& runtime) {
  return load(runtime.files(), f, options);
}

StateDict load(FileSystem& files, const std::string& path, const LoadOptions& options) {
  StateDict state = load_on_host(files, path);
  if (!options.map_location) return state;
  for (auto& [name, tensor] : state.tensors) tensor = tensor.to(*options.map_location);
  return state;
}

std::string internal::custom_state_path(const std::string& folder, int64_t index) {
  return absl::StrCat(folder, "/custom_checkpoint_", index);
}

void internal::save_custom_state(const StateDict& state, const std::string& path,
                                 bool save_on_each_node, Runtime& runtime) {
  if (!writes(runtime, save_on_each_node)) return;
  const size_t kind = state.tensors.empty() ? 1 : 0;
  const StateDict wrapped{.tensors = state.tensors, .values = wrap_numbers(state.values)};
  save(runtime.files(), wrapped, path + kStateSuffixes[kind]);
  // A state of the other kind, from before, is not to be found any more.
  runtime.files().remove(path + kStateSuffixes[1 - kind]).IgnoreError();
}

StateDict internal::load_custom_state(const std::string& path, Runtime& runtime) {
  FileSystem& files = runtime.files();
  for (const char* suffix : kStateSuffixes) {
    const std::string file = path + suffix;
    if (!value_or_throw(exists(files, file))) continue;
    StateDict state = load(files, file);
    state.values = unwrap_numbers(std::move(state.values));
    return state;
  }
  throw CheckpointError(absl::StrCat("load_custom_state: there is neither ", path,
                                     kStateSuffixes[0], " nor ", path, kStateSuffixes[1]));
}

StateDict state_dict_of(const c10::IValue& value) {
  TORCH_CHECK_VALUE(value.isGenericDict(), "what is saved must be a dict, and is a ",
                    value.tagKind());
  return Flattener().flatten(value);
}

void save_model(FileSystem& files, const NamedTensors& state, const std::string& directory,
                const SaveModelOptions& options) {
  check_folder(files, directory);
  check_memory(state);
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  const int64_t max_shard_bytes = bytes_of(options.max_shard_size);
  const NamedTensors cleaned = clean_state_dict_for_safetensors(state);
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  for (const auto& [name, tensor] : cleaned) {
    names.push_back(name);
    sizes.push_back(static_cast<int64_t>(tensor.nbytes()));
  }
  const auto write = [&](const std::string& path, const std::vector<size_t>& positions) {
    NamedTensors tensors;
    for (size_t position : positions) tensors.push_back(cleaned[position]);
    return write_safetensors(files, path, tensors, {{{"format", "pt"}}}).status();
  };
  internal::check_ok(internal::replace_weights(files, directory,
                                               plan_shards(sizes, max_shard_bytes), names, write));
}

namespace {

// Writes the files of a plan, fetching each tensor in turn: as it is written, or where nothing is
// written any more, so that no rank waits for this one.
class StreamedWriter {
 public:
  StreamedWriter(FileSystem& files, const std::vector<StreamedTensor>& tensors,
                 const ShardPlan& plan)
      : files_(files), tensors_(tensors) {
    for (const ShardPlan::Shard& shard : plan.shards) {
      File& file = planned_.emplace_back();
      std::map<std::string, size_t> positions;
      file.header.metadata = {{{"format", "pt"}}};
      for (const size_t position : shard.tensors) {
        const StreamedTensor& tensor = tensors[position];
        positions[tensor.name] = position;
        file.header.tensors.push_back(
            {.name = tensor.name,
             .dtype = internal::value_or_throw(safetensors_dtype(tensor.dtype)),
             .shape = tensor.shape});
      }
      file.start = internal::value_or_throw(lay_out_safetensors(file.header));
      for (const SafetensorsEntry& entry : file.header.tensors) {
        order_.push_back(positions.at(entry.name));
      }
    }
  }

  // The next file of the plan.
  absl::Status write(const std::string& path) {
    const File& planned = planned_[next_file_++];
    ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.create(path));
    const auto bytes_of = [](const void* data, size_t size) {
      return absl::MakeConstSpan(static_cast<const std::byte*>(data), size);
    };
    absl::Status status = file->write_at(0, bytes_of(planned.start.data(), planned.start.size()));
    for (const SafetensorsEntry& entry : planned.header.tensors) {
      const at::Tensor values = internal::without_flags(fetch()).contiguous();
      if (!status.ok() || values.numel() == 0) continue;
      status = file->write_at(planned.header.data_offset + entry.begin,
                              bytes_of(values.const_data_ptr(), values.nbytes()));
    }
    if (status.ok()) status = file->sync();
    status.Update(file->close());
    return status;
  }

  void fetch_rest(bool is_wanted) {
    while (next_ < order_.size()) fetch(is_wanted);
  }

 private:
  struct File {
    SafetensorsHeader header;
    std::string start;
  };

  at::Tensor fetch(bool is_wanted = true) { return tensors_[order_[next_++]].values(is_wanted); }

  FileSystem& files_;
  const std::vector<StreamedTensor>& tensors_;
  std::vector<File> planned_;
  std::vector<size_t> order_;  // of the tensors in the files
  size_t next_file_ = 0;
  size_t next_ = 0;
};

}  // namespace

void save_model_streamed(const ProcessGroupPtr& group, FileSystem& files,
                         const std::vector<StreamedTensor>& tensors, const std::string& directory,
                         bool writes, const SaveModelOptions& options) {
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  for (const StreamedTensor& tensor : tensors) {
    names.push_back(tensor.name);
    sizes.push_back(c10::multiply_integers(tensor.shape) *
                    static_cast<int64_t>(c10::elementSize(tensor.dtype)));
  }
  const ShardPlan plan = plan_shards(sizes, bytes_of(options.max_shard_size));
  StreamedWriter writer(files, tensors, plan);
  internal::agree(group, "save_model", [&] {
    if (!writes) {
      writer.fetch_rest(/*is_wanted=*/false);
      return "";
    }
    const internal::RankOutcome written = internal::outcome_of([&] {
      check_folder(files, directory);
      internal::check_ok(internal::replace_weights(
          files, directory, plan, names,
          [&](const std::string& path, const std::vector<size_t>&) { return writer.write(path); }));
      return "";
    });
    // After an error the others still gather.
    writer.fetch_rest(/*is_wanted=*/false);
    if (written.error) std::rethrow_exception(written.error);
    return "";
  });
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

void internal::warn_of_unsafe_serialization(bool safe_serialization) {
  if (safe_serialization || !can_log()) return;
  get_logger(kLoggerName)
      .warning_once(
          "safe_serialization=false has no effect: safetensors are written, never pickle");
}

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
