#include "accelerate/device_map/device_map.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;

// `text` is a whole number in decimal digits.
absl::StatusOr<DevicePlacement> placement_at(absl::string_view text) {
  int index = 0;
  if (!absl::SimpleAtoi(text, &index) || index < 0) {
    return invalid(text, " is not the index of a device, which starts at 0");
  }
  return DevicePlacement::accelerator(index);
}

absl::StatusOr<DevicePlacement> placement_of(const ordered_json& value) {
  if (value.is_string()) return DevicePlacement::parse(value.get_ref<const std::string&>());
  if (value.is_number_integer()) return placement_at(internal::exact_json_text(value));
  return invalid(json_text(value),
                 " is not a device; give an index, \"cpu\", \"disk\" or a device's name");
}

}  // namespace

DevicePlacement DevicePlacement::accelerator(int index) {
  return DevicePlacement(Kind::kAccelerator, index, "");
}

DevicePlacement DevicePlacement::mps() { return DevicePlacement(Kind::kMps, -1, ""); }

DevicePlacement DevicePlacement::cpu() { return DevicePlacement(); }

DevicePlacement DevicePlacement::disk() { return DevicePlacement(Kind::kDisk, -1, ""); }

absl::StatusOr<DevicePlacement> DevicePlacement::parse(absl::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "disk") return disk();
  if (text == "mps") return mps();
  if (text.empty()) return absl::InvalidArgumentError("a device has an empty name");
  if (text.find_first_not_of("-0123456789") == text.npos) {
    return placement_at(text);
  }
  return DevicePlacement(Kind::kNamed, -1, std::string(text));
}

std::string DevicePlacement::text() const {
  switch (kind_) {
    case Kind::kAccelerator: return absl::StrCat(index_);
    case Kind::kMps: return "mps";
    case Kind::kCpu: return "cpu";
    case Kind::kDisk: return "disk";
    case Kind::kNamed: break;
  }
  return name_;
}

DeviceMap::DeviceMap(std::vector<Entry> entries) {
  for (Entry& entry : entries) set(entry.first, std::move(entry.second));
}

void DeviceMap::set(absl::string_view name, DevicePlacement placement) {
  const auto [found, is_new] = positions_.try_emplace(name, entries_.size());
  if (is_new) {
    entries_.emplace_back(name, std::move(placement));
  } else {
    entries_[found->second].second = std::move(placement);
  }
}

const DevicePlacement* DeviceMap::find_exact(absl::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &entries_[found->second].second;
}

const DevicePlacement* DeviceMap::find(absl::string_view name) const {
  for (absl::string_view path = name; !path.empty();) {
    if (const DevicePlacement* placement = find_exact(path)) return placement;
    const size_t dot = path.rfind('.');
    path = path.substr(0, dot == path.npos ? 0 : dot);
  }
  return find_exact("");
}

std::vector<DevicePlacement> DeviceMap::placements() const {
  std::set<DevicePlacement> distinct;
  for (const auto& [name, placement] : entries_) distinct.insert(placement);
  return {distinct.begin(), distinct.end()};
}

std::string DeviceMap::json(int indent) const {
  ordered_json object = ordered_json::object();
  for (const auto& [name, placement] : entries_) {
    // Names are distinct, and looking for them would take time for each.
    object.get_ref<ordered_json::object_t&>()
        .std::vector<std::pair<const std::string, ordered_json>>::emplace_back(
            name, placement.is_accelerator() ? ordered_json(placement.index())
                                             : ordered_json(placement.text()));
  }
  return json_text(object, indent);
}

absl::StatusOr<DeviceMap> DeviceMap::parse(absl::string_view json) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<DeviceMap> {
    const Document document =
        Document::json(json, {.name = "a device map is a JSON object of names and devices"});
    DeviceMap map;
    for (const DocumentNode& entry : document.root().members()) {
      absl::StatusOr<DevicePlacement> placement = placement_of(entry.value());
      if (!placement.ok()) entry.refuse(placement.status().message());
      map.set(entry.key(), *std::move(placement));
    }
    return map;
  });
}

std::string DeviceMap::text() const {
  std::string lines;
  for (const auto& [name, placement] : entries_) {
    absl::StrAppend(&lines, name.empty() ? "(model)" : name, ": ", placement.text(), "\n");
  }
  return lines;
}

bool operator==(const DeviceMap& a, const DeviceMap& b) {
  if (a.size() != b.size()) return false;
  return std::ranges::all_of(a.entries_, [&](const DeviceMap::Entry& entry) {
    const DevicePlacement* other = b.find_exact(entry.first);
    return other != nullptr && *other == entry.second;
  });
}

}  // namespace accelerate
