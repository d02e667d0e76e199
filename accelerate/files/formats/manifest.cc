#include "accelerate/files/formats/manifest.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

constexpr char kFormat[] = "accelerate-checkpoint";
constexpr int64_t kVersion = 1;
// Doubles hold every integer up to this one, and many JSON readers have only doubles.
constexpr uint64_t kMaxCount = uint64_t{1} << 53;

using Json = nlohmann::json;

template <typename... Parts>
[[noreturn]] void fail(const Parts&... what) {
  throw std::invalid_argument(absl::StrCat("not a manifest: ", what...));
}

uint32_t checksum(const Json& json) { return internal::crc32c(internal::exact_json_text(json)); }

// The members of one JSON object, each of the type that it must have.
class Members {
 public:
  Members(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) fail(where_, " is not an object");
  }

  std::string text(const char* name) const {
    return get(name, &Json::is_string, "a string").get<std::string>();
  }
  bool flag(const char* name) const {
    return get(name, &Json::is_boolean, "a boolean").get<bool>();
  }
  int64_t count(const char* name) const {
    const Json& value = get(name, &Json::is_number_unsigned, "a count");
    if (value.get<uint64_t>() > kMaxCount) wrong(name, "a count");
    return value.get<int64_t>();
  }
  std::vector<int64_t> counts(const char* name) const {
    const Json& list = get(name, &Json::is_array, "a list");
    if (!std::ranges::all_of(list, &Json::is_number_unsigned)) wrong(name, "a list of counts");
    return list.get<std::vector<int64_t>>();
  }
  const Json& object(const char* name) const { return get(name, &Json::is_object, "an object"); }

  uint32_t crc(const char* name) const { return crc_of(find(name), name); }
  uint32_t crc_of(const Json& value, const std::string& name) const {
    uint32_t crc = 0;
    if (!value.is_string() || value.get_ref<const std::string&>().size() != 8 ||
        !absl::SimpleHexAtoi(value.get_ref<const std::string&>(), &crc)) {
      fail(where_, " has a checksum \"", name, "\" that is none");
    }
    return crc;
  }

 private:
  const Json& find(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) fail(where_, " has no \"", name, "\"");
    return *found;
  }
  const Json& get(const char* name, bool (Json::*is)() const noexcept, const char* type) const {
    const Json& value = find(name);
    if (!(value.*is)()) wrong(name, type);
    return value;
  }
  [[noreturn]] void wrong(const char* name, const char* type) const {
    fail(where_, " has a \"", name, "\" that is not ", type);
  }

  const Json& json_;
  const std::string where_;
};

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

std::map<std::string, ManifestFile> files_of(const Json& json) {
  std::map<std::string, ManifestFile> files;
  for (const auto& [name, entry] : json.items()) {
    if (!is_plain(name)) fail("\"", name, "\" is not the name of a file in it");
    const Members members(entry, absl::StrCat("the entry of \"", name, "\""));
    ManifestFile& file = files[name];
    file.size = members.count("size");
    file.crc32c = members.crc("crc32c");
    if (!entry.contains("header")) continue;
    file.header = members.crc("header");
    for (const auto& [tensor, crc] : members.object("tensors").items()) {
      file.tensors[tensor] = members.crc_of(crc, tensor);
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
  if (!manifest.numerics.empty()) json["numerics"] = manifest.numerics;
  if (!manifest.mesh.empty()) json["mesh"] = manifest.mesh;
  if (!manifest.share_ranks.empty()) json["share_ranks"] = manifest.share_ranks;
  return json;
}

Json parse(absl::string_view text) {
  // The parser is recursive, so depth is checked first.
  if (internal::is_text_too_deep(text)) fail("it is nested too deeply");
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail("it is not JSON");
  if (!json.is_object()) fail("it is not a JSON object");
  return json;
}

Manifest manifest_of(const Json& json) {
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat) {
    fail("its \"format\" is not \"", kFormat, "\"");
  }
  const Members members(json, "it");
  const int64_t version = members.count("version");
  const uint32_t own = members.crc("checksum");
  if (version != kVersion) {
    fail("it is of version ", version, ", and this software reads version ", kVersion);
  }
  Manifest manifest{.id = members.text("id"),
                    .durable = members.flag("durable"),
                    .world_size = members.count("world_size"),
                    .mesh = json.contains("mesh") ? members.text("mesh") : "",
                    .iteration = members.count("iteration"),
                    .step = members.count("step"),
                    .numerics = json.contains("numerics") ? members.text("numerics") : ""};
  if (json.contains("share_ranks")) manifest.share_ranks = members.counts("share_ranks");
  for (const auto& [name, value] : members.object("versions").items()) {
    if (!value.is_string()) fail("it has a version that is not a string");
    manifest.versions[name] = value.get<std::string>();
  }
  for (const auto& [name, value] : members.object("counts").items()) {
    if (!value.is_number_unsigned()) fail("it has a count that is none");
    manifest.counts[name] = value.get<int64_t>();
  }
  manifest.files = files_of(members.object("files"));
  if (checksum(json_of(manifest)) != own) {
    fail("its own checksum does not match: it is damaged");
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
  return as_status(absl::StatusCode::kDataLoss,
                   [&]() -> absl::StatusOr<Manifest> { return manifest_of(parse(text)); });
}

std::string manifest_files_text(const std::map<std::string, ManifestFile>& files) {
  return internal::exact_json_text(files_json(files));
}

absl::StatusOr<std::map<std::string, ManifestFile>> parse_manifest_files(absl::string_view text) {
  using Files = std::map<std::string, ManifestFile>;
  return as_status(absl::StatusCode::kDataLoss,
                   [&]() -> absl::StatusOr<Files> { return files_of(parse(text)); });
}

}  // namespace accelerate
