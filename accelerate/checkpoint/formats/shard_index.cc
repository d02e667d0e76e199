#include "accelerate/checkpoint/formats/shard_index.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/strict_json.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr char kExtension[] = ".safetensors";
constexpr char kAsideExtension[] = ".new.safetensors";

}  // namespace

std::string shard_index_text(const ShardIndex& index) {
  const json value = {{"metadata", {{"total_size", index.total_size}}},
                      {"weight_map", index.weight_map}};
  return value.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

absl::StatusOr<ShardIndex> parse_shard_index(absl::string_view text) {
  const absl::StatusOr<json> parsed = internal::parse_strictly(text);
  if (!parsed.ok()) return parsed.status();
  const json& value = *parsed;
  if (!value.is_object() || !value.contains("weight_map") || !value["weight_map"].is_object()) {
    return absl::DataLossError("the index has no weight_map");
  }
  ShardIndex index;
  for (const auto& [name, file] : value["weight_map"].items()) {
    if (!file.is_string()) {
      return absl::DataLossError(absl::StrCat("the index names no file for \"", name, "\""));
    }
    if (!internal::is_plain_file_name(file.get_ref<const std::string&>())) {
      return absl::DataLossError(absl::StrCat("the index has \"", name, "\" in \"",
                                              file.get_ref<const std::string&>(),
                                              "\", which is not the name of a file beside it"));
    }
    index.weight_map.emplace(name, file.get<std::string>());
  }
  const auto metadata = value.find("metadata");
  if (metadata != value.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end() && size->is_number_integer())
      index.total_size = size->get<int64_t>();
  }
  return index;
}

absl::StatusOr<ShardIndex> read_shard_index(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::string> text = read_file(files, path);
  if (!text.ok()) return text.status();
  absl::StatusOr<ShardIndex> index = parse_shard_index(*text);
  if (!index.ok()) {
    return absl::Status(index.status().code(), absl::StrCat(path, ": ", index.status().message()));
  }
  return index;
}

std::string aside_name(const std::string& file) {
  return file.substr(0, file.size() - (sizeof(kExtension) - 1)) + kAsideExtension;
}

std::string name_of_aside(const std::string& file) {
  if (!absl::EndsWith(file, kAsideExtension)) return "";
  return file.substr(0, file.size() - (sizeof(kAsideExtension) - 1)) + kExtension;
}

}  // namespace accelerate
