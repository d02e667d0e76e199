#include "accelerate/checkpoint/folder/save_load.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/checkpoint/folder/save_model.h"
#include "accelerate/checkpoint/tensor_files/safetensors.h"
#include "accelerate/checkpoint/tensor_files/torch_file.h"
#include "accelerate/comm/checkpoint_error.h"

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
  absl::Status status = make_directories_durably(files, folder);
  if (!status.ok()) return status;
  const std::string partial = files.temporary_name(path);
  status = write_safetensors(files, partial, state.tensors,
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
  uint8_t length[8];
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(length), sizeof(length));
  if (file->size() < 8) return false;
  internal::check_ok(file->read_at(0, bytes));
  uint64_t header_bytes = 0;
  for (size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | length[i];
  return header_bytes <= static_cast<uint64_t>(file->size() - 8);
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

StateDict load(FileSystem& files, const std::string& path) {
  if (is_torch_file(files, path)) return state_dict_of(read_torch_file(files, path));
  if (!is_safetensors(files, path)) {
    return {.values = internal::parse_state_values(internal::value_or_throw(read_file(files, path)),
                                                   path)};
  }
  const SafetensorsFile file = internal::value_or_throw(SafetensorsFile::open(files, path));
  return {.tensors = internal::value_or_throw(file.read_all()),
          .values = internal::state_values(file, path).value_or(ordered_json::object())};
}

StateDict state_dict_of(const c10::IValue& value) {
  TORCH_CHECK_VALUE(value.isGenericDict(), "what is saved must be a dict, and is a ",
                    value.tagKind());
  return Flattener().flatten(value);
}

}  // namespace accelerate
