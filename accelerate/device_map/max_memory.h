/// How much of each device a model may take.
///
/// Units:   bytes, as doubles: nine tenths of a device's memory need not be whole.
/// Errors:  absl::InvalidArgument, in one line.
/// Threads: pure functions.
/// Mirrors: accelerate utils/modeling.py, get_max_memory with an argument, get_balanced_memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/module_sizes.h"
#include "accelerate/device_map/module_tree.h"

namespace accelerate {

/// Devices and their limits, in order of DevicePlacement. The limit of "disk" is not kept to.
using MaxMemory = std::vector<std::pair<DevicePlacement, double>>;

/// Puts the devices in order. Errors: a limit that is negative or not a number, a device twice, and
/// one that only its name describes.
absl::StatusOr<MaxMemory> ordered_max_memory(MaxMemory limits);

/// Reads limits as a user gives them: a JSON object, {"0": "20GB", "cpu": 1000000}, or the same
/// without punctuation, "0=20GB,cpu=64GiB". Amounts are whole numbers of bytes or texts of
/// parse_byte_size. Errors: as above, and what is not of this form.
absl::StatusOr<MaxMemory> parse_max_memory(absl::string_view text);

struct BalanceOptions {
  SizeOptions sizes = {};
  /// Classes of modules that are never divided between devices.
  std::vector<std::string> no_split_module_classes = {};
  /// Whether as little as possible goes to device 0, which has other work, as generation has.
  bool low_zero = false;
  /// Whether the limits are all the memory that is free, of which one accelerator alone shall keep
  /// a tenth.
  bool limits_are_free_memory = false;
};

/// Limits with which `infer_auto_device_map` gives each accelerator about as much: the model's part
/// and some more, for what does not divide evenly; the last one keeps its limit. Other devices keep
/// theirs.
/// Differs: "disk" among the devices is accepted.
absl::StatusOr<MaxMemory> get_balanced_memory(const ModuleTree& tree, const MaxMemory& limits,
                                              const BalanceOptions& options = {});

}  // namespace accelerate
