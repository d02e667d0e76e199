/// The devices that a cluster specification may name, each with its usual node and network.
/// presets.cc names the source of every constant.
///
/// A new device is a function in presets.cc and a line in presets(). Its name also belongs into the
/// lists of presets_test.cc and of integration_tests/hardware/kinds_test.cc. Other code goes by
///   - the family: the DistributedType; HCCL's and HCL's times (network/library_forms.cc);
///   - compute_capability: NCCL's generation (network/nccl/search.cc), kernels of attention;
///   - the name: is_amd and is_first_gaudi below; RCCL's times (network/library_forms.cc).
/// A device with published measurements of its kernels has, besides,
///   - kernels/NAME.json, a constant for the file in BUILD and kernel_table_text.h, and a line in
///     kernel_tables.cc: then its efficiency is `measured` by default;
///   - a line in driver_memory.cc: the memory that its driver takes.
///
/// Threads: pure functions; the results live as long as the process.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "simulator/hardware/device_model.h"

namespace accelerate::simulator {

/// By default, eight devices behind a switch, and rails between the nodes.
struct Preset {
  DeviceModel device;
  /// NVIDIA's, as in 90; 0 for devices of other vendors.
  int compute_capability = 0;
  /// Other spellings of the device's name.
  std::vector<std::string> aliases;
  /// Devices in the node that the constants below describe; a cluster may have more or fewer.
  int devices_per_node = 8;
  NodeFabric node_fabric = NodeFabric::kSwitch;
  LinkModel node_link;
  NetworkFabric network_fabric = NetworkFabric::kRails;
  LinkModel nic;
  /// NICs of that node; a rail-optimised network has one NIC per device instead.
  int nics_per_node = 1;
  /// kTorus only: the number of axes that a pod can have.
  int torus_axes = 0;
};

/// All presets, in the order of their documentation. Those of devices with a table of kernels
/// (kernel_tables.h) are measured, others ideal.
const std::vector<Preset>& presets();

/// Finds a preset by name or alias, in any case; null if there is none. The device's `name` is the
/// one that presets() lists.
const Preset* find_preset(absl::string_view name);
const DeviceModel* find_device(absl::string_view name);

/// Whether the device multiplies matrices in fp8 itself: one of presets(), of which this goes by
/// the peaks.
bool multiplies_fp8(const DeviceModel& device);
/// Whether it is a GPU of AMD's, whose names begin with "mi".
bool is_amd(const DeviceModel& device);
/// Whether it is a Gaudi of the first generation, which is called "gaudi" or "gaudi1".
bool is_first_gaudi(const DeviceModel& device);

/// The names of all devices, without aliases.
std::vector<std::string> device_names();

// How the parsers of cluster specifications set what a device's preset allows.
namespace internal {

/// Sets the efficiency by its name, or to that of a table in a file. Otherwise tells what was
/// expected.
std::string set_efficiency(absl::string_view name, DeviceModel& device);
/// What set_efficiency reads as the device's.
std::string efficiency_text(const DeviceModel& device);

/// The same for "eager" and "transformer_engine", and for "on" and "off".
std::string set_kernels(absl::string_view name, DeviceModel& device);
std::string set_graphs(absl::string_view name, DeviceModel& device);

}  // namespace internal
}  // namespace accelerate::simulator
