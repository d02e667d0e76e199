#include "accelerate/files/formats/offload_index.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/document.h"
#include "accelerate/base/dtype_names.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;

// Below the folder that it is relative to.
bool stays_inside(const std::string& path) {
  if (path.empty() || path.find_first_of(std::string("\\\0", 2)) != std::string::npos) return false;
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return normal.is_relative() && *normal.begin() != ".." && *normal.begin() != "." &&
         normal.has_filename();
}

std::string text_field(const DocumentNode& entry, const char* field) {
  const auto found = entry.find(field);
  return found && !found->value().is_null() ? found->text() : "";
}

OffloadedTensor parse_entry(const DocumentNode& entry) {
  if (!entry.value().is_object()) entry.fail("an object");
  OffloadedTensor tensor = {.dtype = text_field(entry, "dtype"),
                            .safetensors_file = text_field(entry, "safetensors_file"),
                            .weight_name = text_field(entry, "weight_name")};
  const bool is_in_safetensors = !tensor.safetensors_file.empty();
  if (is_in_safetensors ? !tensor.dtype.empty() && offload_dtype_size(tensor.dtype) == 0
                        : offload_dtype_size(tensor.dtype) == 0) {
    entry.refuse(absl::StrCat("unknown dtype \"", tensor.dtype, "\""));
  }
  if (is_in_safetensors) {
    if (stays_inside(tensor.safetensors_file)) return tensor;
    entry.refuse(
        absl::StrCat("\"", tensor.safetensors_file, "\" is not a file in the index's folder"));
  }
  tensor.weight_name.clear();
  if (const auto file = offload_file_name(entry.key()); !file.ok()) {
    entry.refuse(file.status().message());
  }
  tensor.shape = entry.at("shape").integers();
  if (const auto bytes = offloaded_bytes(tensor); !bytes.ok()) {
    entry.refuse(absl::StrCat("the tensor ", bytes.status().message()));
  }
  return tensor;
}

}  // namespace

int64_t offload_dtype_size(absl::string_view dtype) {
  const DtypeName* known = find_dtype(&DtypeName::torch, dtype);
  return known == nullptr ? 0 : known->bytes;
}

absl::StatusOr<int64_t> offloaded_bytes(const OffloadedTensor& tensor) {
  const int64_t item = offload_dtype_size(tensor.dtype);
  if (item == 0) {
    return invalid("has the unknown dtype \"", tensor.dtype, "\"");
  }
  int64_t bytes = item;
  // Also the dims beside a 0 must have a product, because strides are products of them.
  int64_t without_zeros = item;
  for (int64_t size : tensor.shape) {
    if (size < 0) return absl::InvalidArgumentError("has a negative size in its \"shape\"");
    if (__builtin_mul_overflow(without_zeros, std::max<int64_t>(size, 1), &without_zeros)) {
      return absl::InvalidArgumentError("has a \"shape\" whose number of bytes overflows");
    }
    bytes *= size;
  }
  return bytes;
}

bool is_offloaded_file_size(int64_t file_bytes, int64_t element_bytes) {
  return file_bytes == element_bytes || (element_bytes == 0 && file_bytes == 1);
}

absl::StatusOr<std::string> offload_file_name(const std::string& tensor) {
  std::string file = absl::StrCat(tensor, ".dat");
  if (!tensor.empty() && internal::is_plain_file_name(file)) return file;
  return invalid("\"", tensor, "\" cannot be offloaded: a file cannot have this name");
}

absl::StatusOr<std::string> offload_index_text(const OffloadIndex& index) {
  ordered_json text = ordered_json::object();
  // Names are distinct, and looking for them would take time for each.
  std::vector<std::pair<const std::string, ordered_json>>& entries =
      text.get_ref<ordered_json::object_t&>();
  for (const auto& [name, tensor] : index) {
    ordered_json& entry = entries.emplace_back(name, ordered_json::object()).second;
    if (tensor.safetensors_file.empty()) {
      entry["dtype"] = tensor.dtype;
      entry["shape"] = tensor.shape;
      continue;
    }
    entry["safetensors_file"] = tensor.safetensors_file;
    if (!tensor.weight_name.empty()) entry["weight_name"] = tensor.weight_name;
    if (!tensor.dtype.empty()) entry["dtype"] = tensor.dtype;
  }
  try {
    return internal::exact_json_text(text, 2, /*ascii_only=*/true);
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("an index of offloaded weights has a name that is not UTF-8");
  }
}

absl::StatusOr<OffloadIndex> parse_offload_index(absl::string_view text) {
  return as_status(absl::StatusCode::kDataLoss, [&]() -> absl::StatusOr<OffloadIndex> {
    const Document document = Document::json(text);
    OffloadIndex index;
    for (const DocumentNode& entry : document.root().members()) {
      index.emplace_back(entry.key(), parse_entry(entry));
    }
    return index;
  });
}

absl::StatusOr<OffloadIndex> read_offload_index(FileSystem& files, const std::string& folder) {
  const std::string path = join_path(folder, kOffloadIndexName);
  ACCELERATE_ASSIGN_OR_RETURN(OffloadIndex index, read_file_as(files, path, parse_offload_index));
  for (auto& [name, tensor] : index) {
    if (tensor.safetensors_file.empty()) continue;
    tensor.safetensors_file = join_path(folder, tensor.safetensors_file);
  }
  return index;
}

absl::StatusOr<std::string> merged_offload_index(FileSystem& files, const OffloadIndex& index,
                                                 const std::string& folder) {
  const std::string path = join_path(folder, kOffloadIndexName);
  OffloadIndex merged;
  ACCELERATE_ASSIGN_OR_RETURN(const bool there, exists(files, path));
  if (there) {
    // Not read_offload_index: paths stay relative to the folder.
    ACCELERATE_ASSIGN_OR_RETURN(merged, read_file_as(files, path, parse_offload_index));
  }
  // A map, because an index may have as many entries as there are.
  std::map<std::string, size_t> positions;
  for (size_t i = 0; i < merged.size(); ++i) positions.emplace(merged[i].first, i);
  const std::string inside = folder.empty() || folder.back() == '/' ? folder : folder + "/";
  for (const auto& [name, tensor] : index) {
    OffloadedTensor entry = tensor;
    if (absl::StartsWith(entry.safetensors_file, inside)) {
      entry.safetensors_file = entry.safetensors_file.substr(inside.size());
    }
    const auto [position, is_new] = positions.emplace(name, merged.size());
    if (is_new) merged.emplace_back(name, OffloadedTensor());
    merged[position->second].second = std::move(entry);
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::string text, in_file(path, offload_index_text(merged)));
  if (const auto checked = parse_offload_index(text); !checked.ok()) {
    return invalid(path, " cannot be written: ", checked.status().message());
  }
  return text;
}

absl::Status save_offload_index(FileSystem& files, const OffloadIndex& index,
                                const std::string& folder) {
  if (index.empty()) return absl::OkStatus();
  ACCELERATE_ASSIGN_OR_RETURN(const std::string text, merged_offload_index(files, index, folder));
  return write_file(files, join_path(folder, kOffloadIndexName), text);
}

}  // namespace accelerate
