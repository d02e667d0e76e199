#include "accelerate/checkpoint/formats/sharded_metadata.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/checkpoint/formats/safetensors_header.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "accelerate-sharded";
constexpr int64_t kVersion = 1;

absl::Status wrong(const std::string& tensor, const std::string& what) {
  return absl::DataLossError(absl::StrCat("the shards of \"", tensor, "\" ", what));
}

// Nothing if the product needs more than 63 bits.
std::optional<int64_t> volume_of(const std::vector<int64_t>& lengths, int64_t item_bytes) {
  int64_t volume = item_bytes;
  for (int64_t length : lengths) {
    if (__builtin_mul_overflow(volume, length, &volume)) return std::nullopt;
  }
  return volume;
}

bool overlap(const TensorShard& a, const TensorShard& b) {
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    if (a.offsets[dim] + a.lengths[dim] <= b.offsets[dim] ||
        b.offsets[dim] + b.lengths[dim] <= a.offsets[dim]) {
      return false;
    }
  }
  return true;
}

int64_t first_offset(const TensorShard& shard) {
  return shard.offsets.empty() ? 0 : shard.offsets[0];
}
int64_t first_end(const TensorShard& shard) {
  return shard.offsets.empty() ? 1 : shard.offsets[0] + shard.lengths[0];
}

// Goes along dim 0 and compares each box with those that reach into it.
bool any_overlap(std::vector<const TensorShard*> shards) {
  std::ranges::sort(shards, {}, [](const TensorShard* shard) { return first_offset(*shard); });
  std::vector<const TensorShard*> open;
  for (const TensorShard* shard : shards) {
    std::erase_if(
        open, [&](const TensorShard* other) { return first_end(*other) <= first_offset(*shard); });
    if (std::ranges::any_of(open, [&](const auto* other) { return overlap(*other, *shard); })) {
      return true;
    }
    open.push_back(shard);
  }
  return false;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

absl::Status check_box(const std::string& name, const ShardedTensor& tensor,
                       const TensorShard& shard) {
  if (!internal::is_plain_file_name(shard.file)) {
    return wrong(name, absl::StrCat("are in \"", shard.file, "\", which is not a plain file name"));
  }
  bool is_inside =
      shard.offsets.size() == tensor.shape.size() && shard.lengths.size() == tensor.shape.size();
  for (size_t dim = 0; is_inside && dim < tensor.shape.size(); ++dim) {
    is_inside = shard.offsets[dim] >= 0 && shard.lengths[dim] >= 0 &&
                shard.lengths[dim] <= tensor.shape[dim] &&
                shard.offsets[dim] <= tensor.shape[dim] - shard.lengths[dim];
  }
  if (is_inside) return absl::OkStatus();
  return wrong(name, absl::StrCat("reach beyond it: ", text_of(shard.lengths), " at ",
                                  text_of(shard.offsets), " of ", text_of(tensor.shape)));
}

absl::Status check_tensor(const std::string& name, const ShardedTensor& tensor) {
  const int64_t item_bytes = safetensors_dtype_size(tensor.dtype);
  if (item_bytes == 0) {
    return wrong(name, absl::StrCat("have the unknown dtype ", tensor.dtype));
  }
  const bool is_shape = std::ranges::all_of(tensor.shape, [](int64_t size) { return size >= 0; });
  const std::optional<int64_t> bytes =
      is_shape ? volume_of(tensor.shape, item_bytes) : std::nullopt;
  if (!bytes) return wrong(name, absl::StrCat("have no possible shape: ", text_of(tensor.shape)));
  std::vector<const TensorShard*> boxes;
  int64_t covered = 0;
  for (const TensorShard& shard : tensor.shards) {
    if (absl::Status box = check_box(name, tensor, shard); !box.ok()) return box;
    const int64_t box_bytes = *volume_of(shard.lengths, item_bytes);
    if (box_bytes == 0) continue;
    if (box_bytes > *bytes - covered) return wrong(name, "overlap");
    covered += box_bytes;
    boxes.push_back(&shard);
  }
  if (any_overlap(std::move(boxes))) return wrong(name, "overlap");
  if (covered != *bytes) {
    return wrong(name, absl::StrCat("leave a hole: ", covered, " of ", *bytes, " bytes are there"));
  }
  return absl::OkStatus();
}

TensorShard shard_of(const json& value) {
  return {.file = value.at("file").get<std::string>(),
          .key = value.at("key").get<std::string>(),
          .offsets = internal::integers_of(value.at("offsets")),
          .lengths = internal::integers_of(value.at("lengths"))};
}

ShardedTensor tensor_of(const json& value) {
  ShardedTensor tensor{.dtype = value.at("dtype").get<std::string>(),
                       .shape = internal::integers_of(value.at("shape"))};
  const json& shards = value.at("shards");
  if (!shards.is_array()) throw std::invalid_argument("shards is not a list");
  for (const json& shard : shards) tensor.shards.push_back(shard_of(shard));
  return tensor;
}

absl::StatusOr<ShardedMetadata> metadata_of(const json& value) {
  if (!value.is_object() || value.value("format", "") != kFormat) {
    return absl::DataLossError(absl::StrCat("its format is not \"", kFormat, "\""));
  }
  const int64_t version = internal::integer_of(value.at("version"));
  if (version != kVersion) {
    return absl::DataLossError(
        absl::StrCat("its version is ", version, "; this program knows version ", kVersion));
  }
  ShardedMetadata metadata{.world_size = internal::integer_of(value.at("world_size")),
                           .root = value.value("root", "")};
  if (metadata.world_size < 1) return absl::DataLossError("its world_size is below 1");
  const json& tensors = value.at("tensors");
  if (!tensors.is_object()) return absl::DataLossError("its tensors are not an object");
  for (const auto& [name, tensor] : tensors.items()) metadata.tensors[name] = tensor_of(tensor);
  if (absl::Status checked = check_sharded_metadata(metadata); !checked.ok()) return checked;
  return metadata;
}

}  // namespace

std::string sharded_file_name(int64_t rank) {
  return absl::StrFormat("shard_%05d.safetensors", rank);
}

std::string sharded_metadata_text(const ShardedMetadata& metadata) {
  json tensors = json::object();
  for (const auto& [name, tensor] : metadata.tensors) {
    json shards = json::array();
    for (const TensorShard& shard : tensor.shards) {
      shards.push_back({{"file", shard.file},
                        {"key", shard.key},
                        {"offsets", shard.offsets},
                        {"lengths", shard.lengths}});
    }
    tensors[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"shards", std::move(shards)}};
  }
  json value = {{"format", kFormat},
                {"version", kVersion},
                {"world_size", metadata.world_size},
                {"tensors", std::move(tensors)}};
  if (!metadata.root.empty()) value["root"] = metadata.root;
  return value.dump(2) + "\n";
}

absl::StatusOr<ShardedMetadata> parse_sharded_metadata(absl::string_view text) {
  const absl::StatusOr<json> value = internal::parse_strictly(text);
  if (!value.ok()) return value.status();
  try {
    return metadata_of(*value);
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat("it is not the metadata of shards: ", error.what()));
  }
}

absl::Status check_sharded_metadata(const ShardedMetadata& metadata) {
  for (const auto& [name, tensor] : metadata.tensors) {
    if (absl::Status checked = check_tensor(name, tensor); !checked.ok()) return checked;
  }
  return absl::OkStatus();
}

}  // namespace accelerate
