#include "accelerate/files/formats/sharded_metadata.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/shard_rows.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr char kShardedFormat[] = "accelerate-sharded";
constexpr int64_t kShardedVersion = 1;
constexpr char kByRows[] = "rows";
// So that a part's end has a number as well.
constexpr int64_t kMostRows = int64_t{1} << 62;

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

bool overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    if (a.offsets[dim] + a.lengths[dim] <= b.offsets[dim] ||
        b.offsets[dim] + b.lengths[dim] <= a.offsets[dim]) {
      return false;
    }
  }
  return true;
}

int64_t first_offset(const Box& box) { return box.offsets.empty() ? 0 : box.offsets[0]; }
int64_t first_end(const Box& box) {
  return box.offsets.empty() ? 1 : box.offsets[0] + box.lengths[0];
}

// Two that overlap; absent: none do. Goes along dim 0 and compares each box with those that reach
// into it.
std::optional<std::pair<Box, Box>> find_overlap(std::vector<const Box*> boxes) {
  std::ranges::sort(boxes, {}, [](const Box* box) { return first_offset(*box); });
  std::vector<const Box*> open;
  for (const Box* box : boxes) {
    std::erase_if(open, [&](const Box* other) { return first_end(*other) <= first_offset(*box); });
    const auto other =
        std::ranges::find_if(open, [&](const Box* each) { return overlap(*each, *box); });
    if (other != open.end()) return std::pair(**other, *box);
    open.push_back(box);
  }
  return std::nullopt;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

absl::Status check_box(const std::string& name, const ShardedTensor& tensor,
                       const TensorShard& shard) {
  if (!internal::is_plain_file_name(shard.file)) {
    return wrong(name, absl::StrCat("are in \"", shard.file, "\", which is not a plain file name"));
  }
  const auto& [offsets, lengths] = shard.box;
  bool is_inside = offsets.size() == tensor.shape.size() && lengths.size() == tensor.shape.size();
  for (size_t dim = 0; is_inside && dim < tensor.shape.size(); ++dim) {
    is_inside = offsets[dim] >= 0 && lengths[dim] >= 0 && lengths[dim] <= tensor.shape[dim] &&
                offsets[dim] <= tensor.shape[dim] - lengths[dim];
  }
  if (is_inside) return absl::OkStatus();
  return wrong(name, absl::StrCat("reach beyond it: ", text_of(lengths), " at ", text_of(offsets),
                                  " of ", text_of(tensor.shape)));
}

int64_t rows_of(const std::vector<int64_t>& shape) { return shape.empty() ? 1 : shape[0]; }

// Rows of a tensor; nothing, or all, of one without dims.
std::optional<Box> box_of(const std::vector<int64_t>& shape, const ShardRows& rows) {
  if (rows.count == 0) return std::nullopt;
  Box box = shape.empty() ? Box() : row_box(shape, rows.first, rows.count);
  return box.numel() > 0 ? std::optional(std::move(box)) : std::nullopt;
}

// A place among the writers.
struct Writer {
  int64_t part = 0;
  int64_t index = 0;  // among the part's files
};

ShardRows rows_of_writer(const ShardWriters& writers, const Writer& writer, int64_t rows) {
  const ShardRows part = shard_rows(rows, static_cast<int64_t>(writers.size()), writer.part);
  const auto files = static_cast<int64_t>(writers[static_cast<size_t>(writer.part)].size());
  ShardRows own = shard_rows(part.count, files, writer.index);
  own.first += part.first;
  return own;
}

std::optional<Writer> find_writer(const ShardWriters& writers, const std::string& file) {
  for (size_t part = 0; part < writers.size(); ++part) {
    const auto found = std::ranges::find(writers[part], file);
    if (found == writers[part].end()) continue;
    return Writer{static_cast<int64_t>(part), found - writers[part].begin()};
  }
  return std::nullopt;
}

// The shards of the rows of a tensor that are in `rows`.
std::vector<TensorShard> shards_by_rows(const ShardWriters& writers, const std::string& name,
                                        const std::vector<int64_t>& shape, const ShardRows& rows) {
  std::vector<TensorShard> shards;
  const auto parts = static_cast<int64_t>(writers.size());
  const int64_t end = rows.first + rows.count;
  const int64_t most = std::max<int64_t>((rows_of(shape) + parts - 1) / parts, 1);
  for (Writer writer{.part = rows.first / most}; writer.part < parts; ++writer.part) {
    const std::vector<std::string>& files = writers[static_cast<size_t>(writer.part)];
    for (writer.index = 0; writer.index < static_cast<int64_t>(files.size()); ++writer.index) {
      const ShardRows own = rows_of_writer(writers, writer, rows_of(shape));
      if (own.first >= end) return shards;
      if (own.first + own.count <= rows.first) continue;
      std::optional<Box> box = box_of(shape, own);
      if (!box) continue;
      shards.push_back({files[static_cast<size_t>(writer.index)], name, *std::move(box)});
    }
  }
  return shards;
}

absl::Status check_writers(const ShardWriters& writers) {
  std::set<std::string> seen;
  for (const std::vector<std::string>& files : writers) {
    if (files.empty()) return absl::DataLossError("a part of the rows has no writer");
    for (const std::string& file : files) {
      if (!internal::is_plain_file_name(file)) {
        return absl::DataLossError(
            absl::StrCat("the writer \"", file, "\" is not a plain file name"));
      }
      if (!seen.insert(file).second) {
        return absl::DataLossError(absl::StrCat("the writer \"", file, "\" comes twice"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status check_tensor(const std::string& name, const ShardedTensor& tensor,
                          const ShardWriters& writers) {
  const int64_t item_bytes = safetensors_dtype_size(tensor.dtype);
  if (item_bytes == 0) {
    return wrong(name, absl::StrCat("have the unknown dtype ", tensor.dtype));
  }
  const bool is_shape = std::ranges::all_of(tensor.shape, [](int64_t size) { return size >= 0; });
  const std::optional<int64_t> bytes =
      is_shape ? volume_of(tensor.shape, item_bytes) : std::nullopt;
  if (!bytes) return wrong(name, absl::StrCat("have no possible shape: ", text_of(tensor.shape)));
  if (tensor.by_rows) {
    if (!tensor.shards.empty()) return wrong(name, "are listed, and by rows as well");
    if (rows_of(tensor.shape) > kMostRows) {
      return wrong(name, absl::StrCat("have no possible shape: ", text_of(tensor.shape)));
    }
    return *bytes == 0 || !writers.empty() ? absl::OkStatus() : wrong(name, "have no writers");
  }
  std::vector<const Box*> boxes;
  int64_t covered = 0;
  for (const TensorShard& shard : tensor.shards) {
    ACCELERATE_RETURN_IF_ERROR(check_box(name, tensor, shard));
    const int64_t box_bytes = *volume_of(shard.box.lengths, item_bytes);
    if (box_bytes == 0) continue;
    boxes.push_back(&shard.box);
    // Boxes with more bytes than the tensor have some of them twice.
    if (box_bytes > *bytes - covered) break;
    covered += box_bytes;
  }
  if (const auto twice = find_overlap(boxes)) {
    return wrong(
        name, absl::StrCat("overlap: ", box_text(twice->first), " and ", box_text(twice->second)));
  }
  if (covered == *bytes) return absl::OkStatus();
  const std::string missing =
      absl::StrCat("leave a hole: ", covered, " of ", *bytes, " bytes are there");
  // A damaged file must not cost more than a whole file.
  constexpr size_t kMostSearched = 1000;
  if (boxes.size() > kMostSearched) return wrong(name, missing);
  std::vector<Box> searched;
  for (const Box* box : boxes) searched.push_back(*box);
  const std::optional<Box> hole = find_hole(whole_box(tensor.shape), searched);
  return wrong(name, absl::StrCat(missing, ", and no box has ", box_text(hole.value_or(Box()))));
}

ShardedTensor tensor_of(const DocumentNode& value) {
  ShardedTensor tensor{.dtype = value.at("dtype").text(), .shape = value.at("shape").integers()};
  const DocumentNode shards = value.at("shards");
  tensor.by_rows = shards.value() == kByRows;
  if (tensor.by_rows) return tensor;
  for (const DocumentNode& shard : shards.items()) {
    tensor.shards.push_back({.file = shard.at("file").text(),
                             .key = shard.at("key").text(),
                             .box = {.offsets = shard.at("offsets").integers(),
                                     .lengths = shard.at("lengths").integers()}});
  }
  return tensor;
}

absl::StatusOr<ShardedMetadata> metadata_of(const DocumentNode& root) {
  if (root.at("format").value() != kShardedFormat) {
    return absl::DataLossError(absl::StrCat("its format is not \"", kShardedFormat, "\""));
  }
  const int64_t version = root.at("version").integer();
  if (version != kShardedVersion) {
    return absl::DataLossError(
        absl::StrCat("its version is ", version, "; this program knows version ", kShardedVersion));
  }
  ShardedMetadata metadata{.world_size = root.at("world_size").integer()};
  if (const auto name = root.find("root")) metadata.root = name->text();
  if (const auto values = root.find("values")) metadata.values = values->text();
  if (metadata.world_size < 1) return absl::DataLossError("its world_size is below 1");
  for (const DocumentNode& tensor : root.at("tensors").members()) {
    metadata.tensors[tensor.key()] = tensor_of(tensor);
  }
  if (const auto writers = root.find("writers")) {
    for (const DocumentNode& files : writers->items()) {
      std::vector<std::string>& names = metadata.writers.emplace_back();
      for (const DocumentNode& file : files.items()) names.push_back(file.text());
    }
  }
  ACCELERATE_RETURN_IF_ERROR(check_sharded_metadata(metadata));
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
                        {"offsets", shard.box.offsets},
                        {"lengths", shard.box.lengths}});
    }
    if (tensor.by_rows) shards = kByRows;
    tensors[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"shards", std::move(shards)}};
  }
  json value = {{"format", kShardedFormat},
                {"version", kShardedVersion},
                {"world_size", metadata.world_size},
                {"tensors", std::move(tensors)}};
  if (!metadata.root.empty()) value["root"] = metadata.root;
  if (!metadata.writers.empty()) value["writers"] = metadata.writers;
  if (!metadata.values.empty()) value["values"] = metadata.values;
  return internal::exact_json_text(value, 2) + "\n";
}

absl::StatusOr<ShardedMetadata> parse_sharded_metadata(absl::string_view text) {
  return as_status(absl::StatusCode::kDataLoss, [&]() -> absl::StatusOr<ShardedMetadata> {
    const Document document = Document::json(text, {.name = "it is not the metadata of shards"});
    return metadata_of(document.root());
  });
}

absl::Status check_sharded_metadata(const ShardedMetadata& metadata) {
  ACCELERATE_RETURN_IF_ERROR(check_writers(metadata.writers));
  for (const auto& [name, tensor] : metadata.tensors) {
    ACCELERATE_RETURN_IF_ERROR(check_tensor(name, tensor, metadata.writers));
  }
  return absl::OkStatus();
}

std::vector<TensorShard> shards_within(const ShardedMetadata& metadata, const std::string& name,
                                       const Box& box) {
  const ShardedTensor& tensor = metadata.tensors.at(name);
  if (tensor.by_rows) {
    if (box.numel() == 0) return {};
    const ShardRows rows =
        box.offsets.empty() ? ShardRows{0, 1} : ShardRows{box.offsets[0], box.lengths[0]};
    return shards_by_rows(metadata.writers, name, tensor.shape, rows);
  }
  std::vector<TensorShard> shards;
  for (const TensorShard& shard : tensor.shards) {
    if (intersection(shard.box, box).numel() > 0) shards.push_back(shard);
  }
  return shards;
}

std::vector<TensorShard> shards_of(const ShardedMetadata& metadata, const std::string& name) {
  const ShardedTensor& tensor = metadata.tensors.at(name);
  return tensor.by_rows ? shards_within(metadata, name, whole_box(tensor.shape)) : tensor.shards;
}

absl::Status check_shard_file(const ShardedMetadata& metadata, const std::string& file,
                              const SafetensorsHeader& header) {
  struct Expected {
    const std::string* dtype;
    std::vector<int64_t> lengths;
  };
  std::map<std::string, Expected> expected;
  const std::optional<Writer> writer = find_writer(metadata.writers, file);
  for (const auto& [name, tensor] : metadata.tensors) {
    if (tensor.by_rows && writer) {
      const ShardRows rows = rows_of_writer(metadata.writers, *writer, rows_of(tensor.shape));
      const std::optional<Box> box = box_of(tensor.shape, rows);
      if (box) expected[name] = {&tensor.dtype, box->lengths};
    }
    for (const TensorShard& shard : tensor.shards) {
      if (shard.file == file) expected[shard.key] = {&tensor.dtype, shard.box.lengths};
    }
  }
  std::map<std::string, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.tensors) entries.emplace(entry.name, &entry);
  for (const auto& [key, shard] : expected) {
    const auto found = entries.find(key);
    if (found == entries.end()) {
      return absl::DataLossError(
          absl::StrCat("it has no \"", key, "\", of which it has a shard by the metadata"));
    }
    const SafetensorsEntry& entry = *found->second;
    if (entry.dtype == *shard.dtype && entry.shape == shard.lengths) continue;
    return absl::DataLossError(absl::StrCat(
        "\"", key, "\" has another dtype or shape than the metadata says: ", entry.dtype, " ",
        text_of(entry.shape), ", not ", *shard.dtype, " ", text_of(shard.lengths)));
  }
  for (const auto& [key, entry] : entries) {
    if (expected.contains(key)) continue;
    return absl::DataLossError(absl::StrCat("it has \"", key, "\", which is not in the metadata"));
  }
  return absl::OkStatus();
}

}  // namespace accelerate
