/// Planning where the parts of a model go, from their sizes and the devices' limits.
///
/// Modules are taken one after the other, as they were registered, and put on the first accelerator
/// until its limit is reached, then on the next, then on the CPU, then on disk. A module that does
/// not fit is divided into its parameters, buffers and modules, unless it has no modules or its
/// class says that it is not divided. The first accelerator and the CPU keep room for the largest
/// layer that has not been placed, which may have to come back to compute. Tensors with several
/// names count once, and modules that share one go to the same device.
///
/// Units:   bytes, as in module_tree.h.
/// Errors:  absl::InvalidArgument, in one line.
/// Threads: pure functions.
/// Mirrors: accelerate utils/modeling.py, infer_auto_device_map, fallback_allocate,
///          clean_device_map, check_device_map and get_module_size_with_ties.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/max_memory.h"
#include "accelerate/device_map/module_sizes.h"
#include "accelerate/device_map/module_tree.h"

namespace accelerate {

struct InferOptions {
  SizeOptions sizes = {};
  /// Classes of modules that are never divided between devices.
  std::vector<std::string> no_split_module_classes = {};
  /// Whether a module whose parts all lie on one device stands in the map instead of its parts.
  bool clean_result = true;
  /// Whether buffers of modules on the CPU or on disk stay there until they are used, as parameters
  /// do.
  bool offload_buffers = false;
  /// Whether a device that would stay empty, because the next module is too large for it, gets the
  /// first later module that fits.
  bool fallback_allocation = false;
  /// Whether the decisions are written down.
  bool explain = false;
};

/// What a plan puts on a device.
struct DeviceUse {
  DevicePlacement device;
  /// Absent for "disk".
  std::optional<double> limit;
  /// Bytes of its modules and tensors.
  double used = 0;
  /// Bytes kept free for the largest layer behind it.
  double reserved = 0;
};

struct InferredDeviceMap {
  DeviceMap map;
  /// In the order in which devices are filled; "disk" is the last.
  std::vector<DeviceUse> devices;
  /// Devices that nothing fitted on, with the limit that the module whose turn it was would have
  /// needed.
  std::vector<std::pair<DevicePlacement, double>> too_small;
  /// The bytes of buffers on the CPU and on disk, where they come to an accelerator all the same
  /// (offload_buffers is off) and none has room for them.
  std::optional<double> buffers_without_room;
  /// Each decision with its numbers, a line each; empty unless it was asked for.
  std::string explanation;

  /// The above as warnings for a user, one line each.
  std::vector<std::string> warnings() const;
};

/// Where `limits` come in any order, as ordered_max_memory takes them.
/// Differs: direct buffers of divided modules, and further names of a module's own tied tensors,
///          are in the map; a module's part of a tie is found by its path; ties never fail.
absl::StatusOr<InferredDeviceMap> infer_auto_device_map(const ModuleTree& tree,
                                                        const MaxMemory& limits,
                                                        const InferOptions& options = {});

struct FallbackAllocation {
  /// The module or parameter that fits.
  std::string name;
  /// What it was looked for in, without it, and with the modules around it divided.
  std::vector<std::string> remaining;
};

/// The first of `modules`, or of what is in them, that takes `size_limit` bytes at most with what
/// it is tied to: what infer_auto_device_map puts on a device that would stay empty. Nothing if
/// none does. Of the options those about sizes and classes count. Errors: also a name that the
/// model does not have, or that is below another one.
absl::StatusOr<std::optional<FallbackAllocation>> fallback_allocate(
    const ModuleTree& tree, absl::Span<const std::string> modules, double size_limit,
    const InferOptions& options = {});

/// The decisions, and below them a table of the devices and the warnings.
std::string explain(const InferredDeviceMap& inferred);

/// The map in which every module whose parts are all on one device stands for them. Other entries
/// keep their order; new ones follow. An entry with another device than those below it is kept.
/// Only what is below `module_name` is changed, and comes last.
DeviceMap clean_device_map(const DeviceMap& map, absl::string_view module_name = "");

/// Errors: parameters and persistent buffers that the map leaves out, by name.
absl::Status check_device_map(const ModuleTree& tree, const DeviceMap& map);

/// The entries of a map whose names are not modules of the model: mistakes, and tensors, which maps
/// name where a module was divided.
std::vector<std::string> names_without_module(const ModuleTree& tree, const DeviceMap& map);

struct SizeWithTies {
  double bytes = 0;
  /// The modules and tensors that share a tensor with it.
  std::vector<std::string> tied;
};

/// What placing a module or tensor takes: its own bytes and those of all of `remaining` which hold
/// a tensor that it holds too. Errors: a name that the model does not have.
absl::StatusOr<SizeWithTies> get_module_size_with_ties(const ModuleTree& tree,
                                                       const std::string& name,
                                                       absl::Span<const std::string> remaining,
                                                       const SizeOptions& options = {});

}  // namespace accelerate
