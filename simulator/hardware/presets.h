/// The devices that a cluster specification may name, each with the node and the network that it is
/// usually sold in. The source of every constant stands beside it in presets.cc.
///
/// Threads: pure functions; what they point to lives as long as the process.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "simulator/hardware/device_model.h"
#include "simulator/hardware/fabric_model.h"

namespace accelerate::simulator {

struct Preset {
  DeviceModel device;
  /// Other spellings of the device's name.
  std::vector<std::string> aliases;
  /// Of the node that the constants below describe; a cluster may have more or fewer.
  int devices_per_node = 8;
  NodeFabric node_fabric = NodeFabric::kSwitch;
  LinkModel node_link;
  NetworkFabric network_fabric = NetworkFabric::kRails;
  LinkModel nic;
  /// Of such a node; a rail-optimised network has one for each device instead.
  int nics_per_node = 1;
  /// kTorus only: how many axes a pod can have.
  int torus_axes = 0;
};

/// All of them, in the order of their documentation.
const std::vector<Preset>& presets();

/// By name or alias, in any case; null if there is none. The device's `name` is the one that
/// presets() lists.
const Preset* find_preset(absl::string_view name);
const DeviceModel* find_device(absl::string_view name);

/// Without aliases.
std::vector<std::string> device_names();

}  // namespace accelerate::simulator
