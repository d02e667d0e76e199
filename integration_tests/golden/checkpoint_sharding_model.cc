#include "integration_tests/golden/checkpoint_sharding_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/checksum.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct Dtype {
  const char* name;
  const char* format;
  at::ScalarType type;
};

// In the order in which the format has them last.
constexpr Dtype kDtypes[] = {
    {"uint64", "U64", at::kUInt64},
    {"int64", "I64", at::kLong},
    {"float64", "F64", at::kDouble},
    {"float32", "F32", at::kFloat},
    {"uint32", "U32", at::kUInt32},
    {"int32", "I32", at::kInt},
    {"bfloat16", "BF16", at::kBFloat16},
    {"float16", "F16", at::kHalf},
    {"uint16", "U16", at::kUInt16},
    {"int16", "I16", at::kShort},
    {"float8_e4m3fn", "F8_E4M3", at::kFloat8_e4m3fn},
    {"float8_e5m2", "F8_E5M2", at::kFloat8_e5m2},
    {"int8", "I8", at::kChar},
    {"uint8", "U8", at::kByte},
    {"bool", "BOOL", at::kBool},
};

size_t dtype_position(const std::string& name) {
  for (size_t i = 0; i < std::size(kDtypes); ++i) {
    if (name == kDtypes[i].name) return i;
  }
  throw CaseError("unknown dtype " + name);
}

int64_t element_bytes(const std::string& dtype) {
  return static_cast<int64_t>(c10::elementSize(kDtypes[dtype_position(dtype)].type));
}

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// Values k of the case's t-th tensor.
std::string values(const std::string& dtype, int64_t count, int64_t t) {
  std::vector<int64_t> numbers;
  const bool is_unsigned = absl::StartsWith(dtype, "uint");
  for (int64_t k = 0; k < count; ++k) {
    const int64_t mixed = 7 * k + 13 * t;
    if (dtype == "bool") {
      numbers.push_back(mixed % 2 == 0 ? 1 : 0);
    } else {
      numbers.push_back(mixed % 23 - (is_unsigned ? 0 : 11));
    }
  }
  const at::Tensor tensor =
      at::from_blob(numbers.data(), {count}, at::kLong).to(kDtypes[dtype_position(dtype)].type);
  return std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
}

std::string name_of_shard(size_t number, size_t count) {
  return count == 1 ? "model.safetensors"
                    : absl::StrFormat("model-%05d-of-%05d.safetensors", number, count);
}

bool is_shard_name(const std::string& name) {
  // model-ddddd-of-ddddd.safetensors
  static const std::string kPattern = "model-ddddd-of-ddddd.safetensors";
  if (name.size() != kPattern.size()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool is_digit_place = i >= 6 && i < 20 && kPattern[i] == 'd';
    const bool fits = is_digit_place ? name[i] >= '0' && name[i] <= '9' : name[i] == kPattern[i];
    if (!fits) return false;
  }
  return true;
}

// Nothing for an error.
std::optional<double> limit_of(const json& size) {
  if (size.is_number_integer()) return size.get<double>();
  if (!size.is_string()) throw CaseError("max_shard_size: neither a number nor a text");
  std::string text = size.get<std::string>();
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  if (text.size() < 2) return std::nullopt;
  std::string unit = text.substr(text.size() - 2);
  for (char& letter : unit) letter = static_cast<char>(std::toupper(letter));
  const std::map<std::string, double> units = {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
  if (units.count(unit) == 0) return std::nullopt;
  char* end = nullptr;
  const std::string number = text.substr(0, text.size() - 2);
  const double value = std::strtod(number.c_str(), &end) * units.at(unit);
  if (end == number.c_str() || !std::isfinite(value)) return std::nullopt;
  return std::trunc(value);
}

// Keeps the first of the tensors that are the same view.
std::vector<StoredTensor> distinct(const std::vector<StoredTensor>& tensors) {
  std::set<std::tuple<std::string, int64_t, std::vector<int64_t>>> seen;
  std::vector<StoredTensor> kept;
  for (const StoredTensor& tensor : tensors) {
    if (seen.insert({tensor.owner, tensor.offset, tensor.shape}).second) kept.push_back(tensor);
  }
  return kept;
}

std::vector<std::vector<StoredTensor>> shards_of(const std::vector<StoredTensor>& tensors,
                                                 double limit) {
  std::vector<std::vector<StoredTensor>> shards;
  std::vector<StoredTensor> open;
  double filled = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto bytes = static_cast<double>(tensor.bytes.size());
    if (bytes > limit) {
      shards.push_back({tensor});
      continue;
    }
    if (filled + bytes > limit) {
      shards.push_back(open);
      open.clear();
      filled = 0;
    }
    open.push_back(tensor);
    filled += bytes;
  }
  if (!open.empty() || shards.empty()) shards.push_back(open);
  return shards;
}

}  // namespace

std::string format_name(const std::string& dtype) { return kDtypes[dtype_position(dtype)].format; }

std::vector<StoredTensor> tensors_of_model(const json& in) {
  std::map<std::string, std::string> storages;
  std::map<std::string, StoredTensor> by_name;
  std::vector<StoredTensor> tensors;
  int64_t t = 0;
  for (const json& entry : field(in, "tensors")) {
    StoredTensor tensor{.name = entry.at(0), .dtype = entry.at(2), .shape = entry.at(1)};
    const json& alias = entry.at(3);
    const int64_t item = element_bytes(tensor.dtype);
    const int64_t count = count_of(tensor.shape);
    if (alias.is_null()) {
      tensor.owner = tensor.name;
      storages[tensor.owner] = values(tensor.dtype, count, t);
    } else {
      const StoredTensor& other = by_name.at(alias.at("of"));
      tensor.owner = other.owner;
      tensor.offset = alias.contains("offset") ? int_field(alias, "offset") : other.offset;
    }
    tensor.bytes = storages.at(tensor.owner).substr(tensor.offset * item, count * item);
    by_name[tensor.name] = tensor;
    tensors.push_back(tensor);
    ++t;
  }
  return tensors;
}

std::vector<StoredTensor> tensors_of_file(const json& in) {
  std::vector<StoredTensor> tensors;
  for (const json& entry : field(in, "tensors")) {
    StoredTensor tensor{.name = entry.at(0), .dtype = entry.at(2), .shape = entry.at(1)};
    if (!absl::HexStringToBytes(entry.at(3).get<std::string>(), &tensor.bytes)) {
      throw CaseError("bytes that are not hexadecimal");
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string safetensors_bytes(std::vector<StoredTensor> tensors,
                              const std::optional<std::map<std::string, std::string>>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(dtype_position(a.dtype), a.name) < std::pair(dtype_position(b.dtype), b.name);
  });
  ordered_json header = ordered_json::object();
  if (metadata) header["__metadata__"] = *metadata;
  std::string data;
  for (const StoredTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {{"dtype", format_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text + data;
}

json description_of(const std::string& name, const std::string& bytes) {
  if (absl::EndsWith(name, ".json")) return {{"text", bytes}};
  const json size = {{"bytes", bytes.size()}};
  if (!absl::EndsWith(name, ".safetensors") || bytes.size() < 8) return size;
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  const json header = json::parse(bytes.substr(8, length), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return size;
  json tensors = json::object();
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") continue;
    tensors[key] = {value.at("dtype"), value.at("shape"), value.at("data_offsets")};
  }
  return {{"bytes", bytes.size()},
          {"header_len", length},
          {"metadata", header.value("__metadata__", json())},
          {"sha256", sha256(bytes)},
          {"tensors", tensors}};
}

json expected_folder(const json& in) {
  const std::optional<double> limit = limit_of(field(in, "max_shard_size"));
  if (!limit) return nullptr;
  json files = json::object();
  if (in.contains("existing_files")) {
    for (const std::string name : in["existing_files"]) {
      const bool is_replaced = is_shard_name(name) || name == "model.safetensors" ||
                               name == "model.safetensors.index.json";
      if (!is_replaced) files[name] = description_of(name, "old");
    }
  }
  const auto shards = shards_of(distinct(tensors_of_model(in)), *limit);
  json weight_map = json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = name_of_shard(i + 1, shards.size());
    files[name] = description_of(name, safetensors_bytes(shards[i], {{{"format", "pt"}}}));
    for (const StoredTensor& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      total_bytes += static_cast<int64_t>(tensor.bytes.size());
    }
  }
  if (shards.size() > 1) {
    const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    const std::string name = "model.safetensors.index.json";
    files[name] = description_of(name, index.dump(2, ' ', /*ensure_ascii=*/true) + "\n");
  }
  return files;
}

}  // namespace accelerate::golden
