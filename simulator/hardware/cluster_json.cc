#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "nlohmann/json.hpp"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::simulator::internal {
namespace {

using Json = nlohmann::json;

const std::vector<std::string>& families() {
  static const auto* all = new std::vector<std::string>{"gpu",  "npu",  "hpu",    "xpu", "mlu",
                                                        "sdaa", "musa", "neuron", "tpu", "cpu"};
  return *all;
}

// The device whose constants are the defaults for a device that is not a preset.
constexpr const char* kGenericDevice = "neuron";

// Reads a document into a cluster. A choice of a device is set by functions that return what they
// expected.
class Reader {
 public:
  ClusterSpec read(const DocumentNode& root) {
    root.check_keys({"num_nodes", "ranks_per_node", "torus", "device", "devices_per_rank",
                     "node_fabric", "node_link", "network_fabric", "nic", "nics_per_node", "nccl",
                     "disk"});
    read_shape(root);
    const auto device = root.find("device");
    if (!device) {
      read_without_device(root);
    } else {
      const Preset& preset = read_device(*device);
      read_fabrics(root, preset);
      read_nccl(root);
      read_disk(root);
    }
    return std::move(spec_);
  }

 private:
  static std::string text_or_empty(const DocumentNode& value) {
    return value.value().is_string() ? value.text() : "";
  }

  static int count(const DocumentNode& value, absl::string_view what) {
    const std::string expected = absl::StrCat("a number of ", what, " from 1 to ", kMaxWorldSize);
    return static_cast<int>(value.integer(expected, 1, kMaxWorldSize));
  }

  // A number in the unit that the key names, or text with a unit.
  template <typename Number>
  static void read_quantity(const DocumentNode& object, const char* key, Dimension dimension,
                            Number& quantity) {
    const auto value = object.find(key);
    if (!value) return;
    if (value->value().is_string()) {
      const std::string& text = value->text();
      const Quantity read = parse_quantity(text, dimension);
      if (!read.ok()) {
        object.fail_at(key, absl::StrCat(read.expected, " (character ", read.position + 1, " of \"",
                                         text, "\")"));
      }
      quantity = static_cast<Number>(read.value);
      return;
    }
    const double number = value->number("a number, or text with a unit");
    const bool whole = dimension == Dimension::kBytes || dimension == Dimension::kNanoseconds;
    const bool is_enough = number > 0 || (number == 0 && may_be_zero(dimension));
    if (!is_enough || number > max_quantity(dimension) || (whole && number != std::floor(number))) {
      value->fail(absl::StrCat(whole ? "a whole number" : "a number",
                               may_be_zero(dimension) ? " from 0 to " : " above zero and at most ",
                               max_quantity(dimension)));
    }
    quantity = static_cast<Number>(number);
  }

  // A link or a disk.
  template <typename Model>
  static void read_rate_and_latency(const DocumentNode& value, Model& model) {
    value.check_keys({"bytes_per_second", "latency_ns"});
    read_quantity(value, "bytes_per_second", Dimension::kBytesPerSecond, model.bytes_per_second);
    read_quantity(value, "latency_ns", Dimension::kNanoseconds, model.latency_ns);
  }

  static void read_link(const DocumentNode& root, const char* key, LinkModel& link) {
    if (const auto value = root.find(key)) read_rate_and_latency(*value, link);
  }

  void read_nccl(const DocumentNode& root) {
    const auto value = root.find("nccl");
    if (!value) return;
    const std::string expected = set_nccl_version(text_or_empty(*value), spec_);
    if (!expected.empty()) value->fail(expected);
  }

  void read_disk(const DocumentNode& root) {
    const auto value = root.find("disk");
    if (!value) return;
    if (value->value() == "off") {
      spec_.disk = {};
    } else if (value->value().is_string()) {
      value->fail("\"off\", or an object with bytes_per_second, latency_ns");
    } else {
      read_rate_and_latency(*value, spec_.disk);
    }
  }

  void read_without_device(const DocumentNode& root) {
    for (const DocumentNode& each : root.members()) {
      if (each.key() == "num_nodes" || each.key() == "ranks_per_node") continue;
      root.fail_at("device", absl::StrCat("a device, because of \"/", each.key(), "\","));
    }
    spec_ = {.num_nodes = shape_.num_nodes, .ranks_per_node = shape_.ranks_per_node};
  }

  void read_shape(const DocumentNode& root) {
    const auto torus = root.find("torus");
    if (const auto ranks = root.find("ranks_per_node")) {
      shape_.ranks_per_node = count(*ranks, "ranks per node");
    } else if (!torus) {
      root.fail_at("ranks_per_node", "a number of ranks per node, or \"/torus\",");
    }
    if (const auto nodes = root.find("num_nodes")) {
      shape_.num_nodes = count(*nodes, "nodes");
    } else if (!torus) {
      root.fail_at("num_nodes", "a number of nodes, or \"/torus\",");
    }
    if (torus) read_torus(root, *torus);
    if (static_cast<int64_t>(shape_.num_nodes) * shape_.ranks_per_node > kMaxWorldSize) {
      root.fail_at("ranks_per_node", absl::StrCat("at most ", kMaxWorldSize, " ranks in all"));
    }
  }

  void read_torus(const DocumentNode& root, const DocumentNode& torus) {
    constexpr char kExpected[] = "the chips along 1 to 3 axes";
    const std::vector<DocumentNode> items = torus.items(kExpected);
    if (items.empty() || items.size() > 3) torus.fail(kExpected);
    std::vector<int> axes;
    int64_t chips = 1;
    for (const DocumentNode& item : items) {
      axes.push_back(count(item, "chips along an axis"));
      chips *= axes.back();
      if (chips > kMaxWorldSize) item.fail(absl::StrCat("at most ", kMaxWorldSize, " chips"));
    }
    const Shape hosts = shape_of_torus(axes);
    if (!root.has("ranks_per_node")) shape_.ranks_per_node = hosts.ranks_per_node;
    if (chips % shape_.ranks_per_node != 0) {
      root.fail_at("ranks_per_node", absl::StrCat("a divisor of the ", chips, " chips"));
    }
    const int nodes = static_cast<int>(chips / shape_.ranks_per_node);
    if (root.has("num_nodes") && shape_.num_nodes != nodes) {
      root.fail_at("num_nodes", absl::StrCat(nodes, ", by /torus and /ranks_per_node,"));
    }
    shape_.num_nodes = nodes;
    shape_.torus = std::move(axes);
  }

  // Sets device_ and returns the preset whose fabrics go with it.
  const Preset& read_device(const DocumentNode& device) {
    if (device.value().is_string()) {
      const Preset* preset = find_preset(device.text());
      if (preset == nullptr) {
        device.fail(absl::StrCat("a device (", suggestion(device.text(), device_names()), ")"));
      }
      device_ = preset->device;
      return *preset;
    }
    device.check_keys({"name", "family", "memory_bytes", "memory_bytes_per_second",
                       "flops_per_second", "launch_ns", "kernel_ns_min", "host_bytes_per_second",
                       "efficiency", "kernels", "graphs", "expandable_segments",
                       "max_split_bytes"});
    const std::string name = device.at("name", "a name").text("a name");
    if (name.empty()) device.at("name").fail("a name");
    const Preset* preset = find_preset(name);
    const bool known = preset != nullptr;
    if (!known) preset = find_preset(kGenericDevice);
    device_ = preset->device;
    if (!known) {
      device_.name = name;
      for (const char* key :
           {"family", "memory_bytes", "memory_bytes_per_second", "flops_per_second"}) {
        device.at(key, absl::StrCat("a value, because \"", name, "\" is not a known device (",
                                    suggestion(name, device_names()), "),"));
      }
    }
    if (const auto family = device.find("family")) {
      device_.family = families()[family->choice("a family", families())];
    }
    read_quantity(device, "memory_bytes", Dimension::kBytes, device_.memory_bytes);
    read_quantity(device, "memory_bytes_per_second", Dimension::kBytesPerSecond,
                  device_.memory_bytes_per_second);
    read_quantity(device, "launch_ns", Dimension::kNanoseconds, device_.launch_ns);
    read_quantity(device, "kernel_ns_min", Dimension::kNanoseconds, device_.kernel_ns_min);
    read_quantity(device, "host_bytes_per_second", Dimension::kBytesPerSecond,
                  device_.host_bytes_per_second);
    read_flops(device, known);
    read_choice(device, "efficiency", set_efficiency);
    read_choice(device, "kernels", set_kernels);
    read_choice(device, "graphs", set_graphs);
    if (const std::string expected = memory_problem(device_); !expected.empty()) {
      device.fail_at("memory_bytes", expected);
    }
    read_allocator(device);
    return *preset;
  }

  // `set` sets it by its name, or tells what was expected.
  template <typename Set>
  void read_choice(const DocumentNode& device, const char* key, Set&& set) {
    const auto choice = device.find(key);
    if (!choice) return;
    const std::string expected = set(text_or_empty(*choice), device_);
    if (!expected.empty()) choice->fail(expected);
  }

  void read_allocator(const DocumentNode& device) {
    if (const auto expandable = device.find("expandable_segments")) {
      device_.expandable_segments = expandable->boolean();
    }
    if (device.has("max_split_bytes")) {
      read_quantity(device, "max_split_bytes", Dimension::kBytes,
                    device_.max_split_bytes.emplace(0));
    }
    for (const auto& [member_name, key] : {std::pair("expandable_segments", "expandable_segments"),
                                           std::pair("max_split_bytes", "max_split_size")}) {
      if (!device.has(member_name)) continue;
      const std::string expected = allocator_problem(key, device_);
      if (!expected.empty()) device.fail_at(member_name, expected);
    }
  }

  void read_flops(const DocumentNode& device, bool known) {
    const auto flops = device.find("flops_per_second");
    if (!flops) return;
    flops->check_keys(accelerate::texts<MathType>());
    if (!known) {
      // Formats that are not mentioned are computed in float32.
      flops->at("fp32", "a rate");
      double fp32 = 0;
      read_quantity(*flops, "fp32", Dimension::kFlopsPerSecond, fp32);
      device_.flops_per_second.fill(fp32);
    }
    for (const MathType type : accelerate::values<MathType>()) {
      read_quantity(*flops, accelerate::to_string(type), Dimension::kFlopsPerSecond,
                    device_.flops_per_second[static_cast<size_t>(type)]);
    }
  }

  template <typename Fabric>
  static std::optional<Fabric> read_fabric(const DocumentNode& root, const char* key) {
    const auto value = root.find(key);
    if (!value) return std::nullopt;
    return static_cast<Fabric>(value->choice("a fabric", fabric_names<Fabric>()));
  }

  void read_fabrics(const DocumentNode& root, const Preset& preset) {
    const bool torus = !shape_.torus.empty() ||
                       (preset.node_fabric == NodeFabric::kTorus && !root.has("node_fabric"));
    if (torus) return read_torus_links(root, preset);
    const auto node = read_fabric<NodeFabric>(root, "node_fabric");
    const auto network = read_fabric<NetworkFabric>(root, "network_fabric");
    if (preset.node_fabric == NodeFabric::kTorus && !(root.has("nic") && network.has_value())) {
      root.fail_at("nic",
                   "\"nic\" and \"network_fabric\", because this device's usual torus has none,");
    }
    build(preset, node, network);
    read_link(root, "node_link", spec_.node_link);
    read_link(root, "nic", spec_.nic);
    if (const auto devices = root.find("devices_per_rank")) {
      spec_.devices_per_rank = count(*devices, "devices per rank");
    }
    if (const auto nics = root.find("nics_per_node")) {
      spec_.nics_per_node = count(*nics, "NICs");
      if (spec_.network_fabric == NetworkFabric::kEthernet && spec_.nics_per_node != 1) {
        nics->fail("1: ethernet has one NIC a node,");
      }
    }
    if (spec_.nic.bytes_per_second > 0) return;
    root.at("nic", "a link with a bandwidth").fail_at("bytes_per_second", "a bandwidth");
  }

  void read_torus_links(const DocumentNode& root, const Preset& preset) {
    const auto fabric = root.find("node_fabric");
    if (fabric && fabric->value() != "torus") fabric->fail("\"torus\", because of \"/torus\",");
    for (const char* key : {"network_fabric", "nic", "nics_per_node", "nccl"}) {
      if (root.has(key)) root.fail_at(key, "nothing: a torus has no NICs,");
    }
    if (root.has("devices_per_rank")) {
      root.fail_at("devices_per_rank", "nothing: the chips of a torus are the ranks,");
    }
    build(preset, NodeFabric::kTorus, std::nullopt);
    read_link(root, "node_link", spec_.node_link);
  }

  void build(const Preset& preset, std::optional<NodeFabric> node,
             std::optional<NetworkFabric> network) {
    spec_ = usual_cluster(preset, shape_, node, network);
    spec_.device = device_;
  }

  Shape shape_;
  DeviceModel device_;
  ClusterSpec spec_;
};

template <typename Model>
Json rate_and_latency(const Model& model) {
  return {{"bytes_per_second", model.bytes_per_second}, {"latency_ns", model.latency_ns}};
}

}  // namespace

absl::StatusOr<ClusterSpec> parse_cluster_json(absl::string_view text, absl::string_view origin) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<ClusterSpec> {
    const std::string name = origin.empty() ? "" : absl::StrCat(" \"", origin, "\"");
    const Document document = Document::json(text, {.name = absl::StrCat("bad topology", name)});
    return Reader().read(document.root());
  });
}

std::string cluster_to_json(const ClusterSpec& spec) {
  Json root = {{"num_nodes", spec.num_nodes}, {"ranks_per_node", spec.ranks_per_node}};
  if (!spec.device.has_value()) return accelerate::internal::exact_json_text(root);
  const DeviceModel& device = *spec.device;
  Json flops;
  for (const MathType type : accelerate::values<MathType>()) {
    flops[accelerate::to_string(type)] = device.flops(type);
  }
  root["device"] = {{"name", device.name},
                    {"family", device.family},
                    {"memory_bytes", device.memory_bytes},
                    {"memory_bytes_per_second", device.memory_bytes_per_second},
                    {"flops_per_second", flops},
                    {"launch_ns", device.launch_ns},
                    {"kernel_ns_min", device.kernel_ns_min},
                    {"host_bytes_per_second", device.host_bytes_per_second},
                    {"efficiency", efficiency_text(device)}};
  if (device.kernels != KernelSet::kEager) {
    root["device"]["kernels"] = accelerate::to_string(device.kernels);
  }
  if (device.graphs) root["device"]["graphs"] = "on";
  if (device.expandable_segments) {
    root["device"]["expandable_segments"] = *device.expandable_segments;
  }
  if (device.max_split_bytes) root["device"]["max_split_bytes"] = *device.max_split_bytes;
  root["node_fabric"] = accelerate::to_string(spec.node_fabric);
  root["node_link"] = rate_and_latency(spec.node_link);
  root["disk"] = spec.disk.takes_time() ? rate_and_latency(spec.disk) : Json("off");
  if (spec.node_fabric == NodeFabric::kTorus) {
    root["torus"] = spec.torus;
    return accelerate::internal::exact_json_text(root);
  }
  root["devices_per_rank"] = spec.devices_per_rank;
  root["network_fabric"] = accelerate::to_string(spec.network_fabric);
  root["nic"] = rate_and_latency(spec.nic);
  root["nics_per_node"] = spec.nics_per_node;
  if (spec.nccl_version != kDefaultNcclVersion) root["nccl"] = nccl_version_text(spec.nccl_version);
  return accelerate::internal::exact_json_text(root);
}

}  // namespace accelerate::simulator::internal
