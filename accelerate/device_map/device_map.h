/// Which device each part of a model lies on.
///
/// Errors:  absl::InvalidArgument for texts that are not a device or a map, in one line.
/// Threads: values.
/// Mirrors: the `device_map` and the keys of `max_memory` of accelerate utils/modeling.py.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// A place for tensors: an accelerator by its index, Apple's "mps", host memory "cpu", files
/// "disk", or another device by its name, as in "cuda:1" or "meta".
class DevicePlacement {
 public:
  /// Host memory.
  DevicePlacement() = default;

  /// The accelerator with this index, which is not negative, of the kind that the rank computes on.
  static DevicePlacement accelerator(int index);
  static DevicePlacement mps();
  static DevicePlacement cpu();
  static DevicePlacement disk();
  /// A device that only its name describes. The names "mps", "cpu" and "disk", and digits alone,
  /// make the placements above.
  /// Errors: InvalidArgument for an empty name and for an index that is negative or above 2^31 - 1.
  static absl::StatusOr<DevicePlacement> parse(absl::string_view text);

  bool is_accelerator() const { return kind_ == Kind::kAccelerator; }
  bool is_mps() const { return kind_ == Kind::kMps; }
  bool is_cpu() const { return kind_ == Kind::kCpu; }
  bool is_disk() const { return kind_ == Kind::kDisk; }
  /// Whether it is none of these, but a device by its name.
  bool is_named() const { return kind_ == Kind::kNamed; }
  /// Whether hooks bring its tensors to another device to compute with them.
  bool is_offloaded() const { return is_cpu() || is_disk(); }

  /// The index of an accelerator; -1 for others.
  int index() const { return index_; }
  /// "0", "mps", "cpu", "disk", "cuda:1": what `parse` reads.
  std::string text() const;

  /// Accelerators ascending, then mps, cpu, disk, and other devices by name.
  friend auto operator<=>(const DevicePlacement&, const DevicePlacement&) = default;

 private:
  enum class Kind { kAccelerator, kMps, kCpu, kDisk, kNamed };

  DevicePlacement(Kind kind, int index, std::string name)
      : kind_(kind), index_(index), name_(std::move(name)) {}

  Kind kind_ = Kind::kCpu;
  int index_ = -1;
  std::string name_;
};

/// Names of modules and tensors, each with the placement of itself and of all below it. The name ""
/// is the whole model.
///
///   DeviceMap map;
///   map.set("model.embed_tokens", DevicePlacement::accelerator(0));
///   map.set("model", DevicePlacement::cpu());
///   map.find("model.embed_tokens.weight")->text()  // "0"
///   map.json()  // {"model.embed_tokens": 0, "model": "cpu"}
class DeviceMap {
 public:
  using Entry = std::pair<std::string, DevicePlacement>;

  DeviceMap() = default;
  /// As `set`, entry by entry.
  explicit DeviceMap(std::vector<Entry> entries);

  /// In the order in which the names were first set.
  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  /// Adds the name, or moves it to another placement.
  void set(absl::string_view name, DevicePlacement placement);

  /// The entry with exactly this name; null if there is none. Valid until the map changes.
  const DevicePlacement* find_exact(absl::string_view name) const;
  /// The placement of a module or tensor: that of the longest name in the map which is `name`, or
  /// the dotted path to a module around it. Null if the map leaves it out. Valid until the map
  /// changes. Its time depends on the length of the name, not on the size of the map.
  const DevicePlacement* find(absl::string_view name) const;

  /// Every placement that occurs, once and in order of DevicePlacement.
  std::vector<DevicePlacement> placements() const;

  /// A JSON object in the order of the entries, with whole numbers for accelerators and texts for
  /// others, on one line or with `indent` spaces for each level.
  std::string json(int indent = -1) const;
  /// What `json` writes, or a user: an accelerator may be a text of digits as well.
  static absl::StatusOr<DeviceMap> parse(absl::string_view json);

  /// A line for each entry, as in "model.embed_tokens: 0"; the whole model is "(model)".
  std::string text() const;

  /// Whether both have the same entries, in any order.
  friend bool operator==(const DeviceMap& a, const DeviceMap& b);

 private:
  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, size_t> positions_;  // in entries_
};

}  // namespace accelerate
