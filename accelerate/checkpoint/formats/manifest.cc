#include "accelerate/checkpoint/formats/manifest.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

constexpr char kFormat[] = "accelerate-checkpoint";
constexpr int64_t kVersion = 1;
// What JSON numbers hold everywhere.
constexpr uint64_t kMaxCount = uint64_t{1} << 53;

using Json = nlohmann::json;

absl::Status bad(const std::string& what) {
  return absl::DataLossError(absl::StrCat("not a manifest: ", what));
}

uint32_t checksum(const Json& json) { return internal::crc32c(json.dump()); }

// Reads members of one JSON object; the first that is not as expected is the error.
class Members {
 public:
  Members(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) fail("is not an object");
  }

  std::string text(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) fail(absl::StrCat("has a \"", name, "\" that is not a string"));
    return value->is_string() ? value->get<std::string>() : "";
  }

  bool flag(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) fail(absl::StrCat("has a \"", name, "\" that is not a boolean"));
    return value->is_boolean() && value->get<bool>();
  }

  int64_t count(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return 0;
    const bool fits = value->is_number_unsigned() && value->get<uint64_t>() <= kMaxCount;
    if (!fits) fail(absl::StrCat("has a \"", name, "\" that is not a count"));
    return fits ? value->get<int64_t>() : 0;
  }

  uint32_t crc(const char* name) {
    const Json* value = find(name);
    return value == nullptr ? 0 : crc_of(*value, name);
  }
  uint32_t crc_of(const Json& value, const std::string& name) {
    uint32_t crc = 0;
    if (!value.is_string() || value.get_ref<const std::string&>().size() != 8 ||
        !absl::SimpleHexAtoi(value.get_ref<const std::string&>(), &crc)) {
      fail(absl::StrCat("has a checksum \"", name, "\" that is none"));
    }
    return crc;
  }

  // Each member of an object.
  template <typename Fn>
  void each(const char* name, Fn&& fn) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_object())
      return fail(absl::StrCat("has a \"", name, "\" that is not an object"));
    for (const auto& [key, member] : value->items()) fn(key, member);
  }

  bool has(const char* name) const { return json_.is_object() && json_.contains(name); }

  void fail(const std::string& what) {
    if (status_.ok()) status_ = bad(absl::StrCat(where_, " ", what));
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto found = json_.find(name);
    if (found != json_.end()) return &*found;
    fail(absl::StrCat("has no \"", name, "\""));
    return nullptr;
  }

  const Json& json_;
  const std::string where_;
  absl::Status status_;
};

// Relative, and below the folder.
bool is_plain(const std::string& name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string::npos) return false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
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

absl::StatusOr<std::map<std::string, ManifestFile>> files_of(const Json& json) {
  std::map<std::string, ManifestFile> files;
  for (const auto& [name, entry] : json.items()) {
    if (!is_plain(name)) return bad(absl::StrCat("\"", name, "\" is not the name of a file in it"));
    Members members(entry, absl::StrCat("the entry of \"", name, "\""));
    ManifestFile& file = files[name];
    file.size = members.count("size");
    file.crc32c = members.crc("crc32c");
    if (members.has("header")) {
      file.header = members.crc("header");
      members.each("tensors", [&](const std::string& tensor, const Json& crc) {
        file.tensors[tensor] = members.crc_of(crc, tensor);
      });
    }
    if (!members.status().ok()) return members.status();
  }
  return files;
}

Json json_of(const Manifest& manifest) {
  return {{"format", kFormat},
          {"version", kVersion},
          {"id", manifest.id},
          {"durable", manifest.durable},
          {"world_size", manifest.world_size},
          {"iteration", manifest.iteration},
          {"step", manifest.step},
          {"versions", manifest.versions},
          {"counts", manifest.counts},
          {"files", files_json(manifest.files)}};
}

absl::StatusOr<Json> parse(absl::string_view text) {
  // Who walks through it calls itself.
  if (internal::is_text_too_deep(text)) return bad("it is nested too deeply");
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return bad("it is not JSON");
  if (!json.is_object()) return bad("it is not a JSON object");
  return json;
}

}  // namespace

std::string checksum_text(uint32_t crc32c) { return absl::StrFormat("%08x", crc32c); }

std::string manifest_text(const Manifest& manifest) {
  Json json = json_of(manifest);
  const std::string own = checksum_text(checksum(json));
  json["checksum"] = own;
  return json.dump(2) + "\n";
}

absl::StatusOr<Manifest> parse_manifest(absl::string_view text) {
  absl::StatusOr<Json> parsed = parse(text);
  if (!parsed.ok()) return parsed.status();
  const Json& json = *parsed;
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat) {
    return bad(absl::StrCat("its \"format\" is not \"", kFormat, "\""));
  }
  Members members(json, "it");
  const int64_t version = members.count("version");
  const uint32_t own = members.crc("checksum");
  if (!members.status().ok()) return members.status();
  if (version != kVersion) {
    return bad(
        absl::StrCat("it is of version ", version, ", and this software reads version ", kVersion));
  }
  Manifest manifest;
  manifest.id = members.text("id");
  manifest.durable = members.flag("durable");
  manifest.world_size = members.count("world_size");
  manifest.iteration = members.count("iteration");
  manifest.step = members.count("step");
  members.each("versions", [&](const std::string& name, const Json& value) {
    if (!value.is_string()) return members.fail("has a version that is not a string");
    manifest.versions[name] = value.get<std::string>();
  });
  members.each("counts", [&](const std::string& name, const Json& value) {
    if (!value.is_number_unsigned()) return members.fail("has a count that is none");
    manifest.counts[name] = value.get<int64_t>();
  });
  members.each("files", [](const std::string&, const Json&) {});
  if (!members.status().ok()) return members.status();
  absl::StatusOr<std::map<std::string, ManifestFile>> files = files_of(json["files"]);
  if (!files.ok()) return files.status();
  manifest.files = *std::move(files);
  if (checksum(json_of(manifest)) != own) {
    return bad("its own checksum does not match: it is damaged");
  }
  return manifest;
}

std::string manifest_files_text(const std::map<std::string, ManifestFile>& files) {
  return files_json(files).dump();
}

absl::StatusOr<std::map<std::string, ManifestFile>> parse_manifest_files(absl::string_view text) {
  absl::StatusOr<Json> json = parse(text);
  if (!json.ok()) return json.status();
  return files_of(*json);
}

}  // namespace accelerate
