#include "accelerate/files/formats/manifest.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

constexpr char kFormat[] = "accelerate-checkpoint";
constexpr int64_t kVersion = 1;
// Doubles hold every integer up to this one, and many JSON readers have only doubles.
constexpr int64_t kMaxCount = int64_t{1} << 53;
// What errors begin with.
constexpr char kName[] = "not a manifest";

using Json = nlohmann::json;

uint32_t checksum(const Json& json) { return internal::crc32c(internal::exact_json_text(json)); }

int64_t count_of(const DocumentNode& value) { return value.integer("a count", 0, kMaxCount); }

uint32_t crc_of(const DocumentNode& value) {
  constexpr char kExpected[] = "a checksum of eight digits";
  const std::string& text = value.text(kExpected);
  uint32_t crc = 0;
  if (text.size() != 8 || !absl::SimpleHexAtoi(text, &crc)) value.fail(kExpected);
  return crc;
}

std::string text_or_empty(const std::optional<DocumentNode>& value) {
  return value ? value->text() : "";
}

// Relative, and below the folder.
bool is_plain(const std::string& name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return !absl::StrContains(name, '\0') && std::ranges::none_of(parts, [](absl::string_view part) {
    return part.empty() || part == "." || part == "..";
  });
}

Json files_json(const std::map<std::string, ManifestFile>& files) {
  Json json = Json::object();
  for (const auto& [name, file] : files) {
    Json& entry = json[name];
    entry["size"] = file.size;
    entry["crc32c"] = checksum_text(file.crc32c);
    if (!file.header) continue;
    entry["header"] = checksum_text(*file.header);
    entry["tensors"] = Json::object();
    for (const auto& [tensor, crc] : file.tensors) entry["tensors"][tensor] = checksum_text(crc);
  }
  return json;
}

std::map<std::string, ManifestFile> files_of(const DocumentNode& root) {
  std::map<std::string, ManifestFile> files;
  for (const DocumentNode& entry : root.members()) {
    if (!is_plain(entry.key())) {
      entry.refuse(absl::StrCat("\"", entry.key(), "\" is not the name of a file in it"));
    }
    ManifestFile& file = files[entry.key()];
    file.size = count_of(entry.at("size"));
    file.crc32c = crc_of(entry.at("crc32c"));
    const auto header = entry.find("header");
    if (!header) continue;
    file.header = crc_of(*header);
    for (const DocumentNode& tensor : entry.at("tensors").members()) {
      file.tensors[tensor.key()] = crc_of(tensor);
    }
  }
  return files;
}

Json json_of(const Manifest& manifest) {
  Json json{{"format", kFormat},
            {"version", kVersion},
            {"id", manifest.id},
            {"durable", manifest.durable},
            {"world_size", manifest.world_size},
            {"iteration", manifest.iteration},
            {"step", manifest.step},
            {"versions", manifest.versions},
            {"counts", manifest.counts},
            {"files", files_json(manifest.files)}};
  if (manifest.metric) json["metric"] = *manifest.metric;
  if (!manifest.numerics.empty()) json["numerics"] = manifest.numerics;
  if (!manifest.mesh.empty()) json["mesh"] = manifest.mesh;
  if (!manifest.share_ranks.empty()) json["share_ranks"] = manifest.share_ranks;
  return json;
}

Manifest manifest_of(const DocumentNode& root) {
  const DocumentNode format = root.at("format");
  if (format.value() != kFormat) format.fail(absl::StrCat("\"", kFormat, "\""));
  const int64_t version = count_of(root.at("version"));
  const uint32_t own = crc_of(root.at("checksum"));
  if (version != kVersion) {
    root.refuse(
        absl::StrCat("it is of version ", version, ", and this software reads version ", kVersion));
  }
  Manifest manifest{.id = root.at("id").text(),
                    .durable = root.at("durable").boolean(),
                    .world_size = count_of(root.at("world_size")),
                    .mesh = text_or_empty(root.find("mesh")),
                    .iteration = count_of(root.at("iteration")),
                    .step = count_of(root.at("step")),
                    .numerics = text_or_empty(root.find("numerics"))};
  if (const auto metric = root.find("metric")) manifest.metric = metric->number();
  if (const auto ranks = root.find("share_ranks")) {
    for (const DocumentNode& rank : ranks->items()) {
      manifest.share_ranks.push_back(rank.integer("a count", 0));
    }
  }
  for (const DocumentNode& each : root.at("versions").members()) {
    manifest.versions[each.key()] = each.text();
  }
  for (const DocumentNode& each : root.at("counts").members()) {
    manifest.counts[each.key()] = each.integer("a count", 0);
  }
  manifest.files = files_of(root.at("files"));
  if (checksum(json_of(manifest)) != own) {
    root.refuse("its own checksum does not match: it is damaged");
  }
  return manifest;
}

}  // namespace

std::string checksum_text(uint32_t crc32c) { return absl::StrFormat("%08x", crc32c); }

std::string manifest_text(const Manifest& manifest) {
  Json json = json_of(manifest);
  const std::string own = checksum_text(checksum(json));
  json["checksum"] = own;
  return internal::exact_json_text(json, 2) + "\n";
}

absl::StatusOr<Manifest> parse_manifest(absl::string_view text) {
  return as_status(absl::StatusCode::kDataLoss, [&]() -> absl::StatusOr<Manifest> {
    return manifest_of(Document::json(text, {.name = kName}).root());
  });
}

std::string manifest_files_text(const std::map<std::string, ManifestFile>& files) {
  return internal::exact_json_text(files_json(files));
}

absl::StatusOr<std::map<std::string, ManifestFile>> parse_manifest_files(absl::string_view text) {
  using Files = std::map<std::string, ManifestFile>;
  return as_status(absl::StatusCode::kDataLoss, [&]() -> absl::StatusOr<Files> {
    return files_of(Document::json(text, {.name = kName}).root());
  });
}

}  // namespace accelerate
