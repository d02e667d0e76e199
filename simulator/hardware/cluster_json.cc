#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "nlohmann/json.hpp"
#include "simulator/hardware/choice_names.h"
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

// Reads a document into a cluster. After the first error every reader returns at once; `status_`
// then says which value was expected at which JSON pointer.
class Reader {
 public:
  explicit Reader(absl::string_view origin) : origin_(origin) {}

  absl::StatusOr<ClusterSpec> read(absl::string_view text) {
    Json root = parse(text);
    if (status_.ok()) read_cluster(root);
    if (!status_.ok()) return status_;
    return std::move(spec_);
  }

 private:
  void fail(absl::string_view pointer, absl::string_view expected) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("bad topology", name(), ": expected ", expected, " at \"", pointer, "\""));
  }

  std::string name() const { return origin_.empty() ? "" : absl::StrCat(" \"", origin_, "\""); }

  // The library keeps the last of two equal keys without an error; here they are an error.
  Json parse(absl::string_view text) {
    std::vector<std::set<std::string>> open;
    std::string repeated;
    const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::object_start) open.emplace_back();
      if (event == Json::parse_event_t::object_end) open.pop_back();
      if (event == Json::parse_event_t::key && repeated.empty() &&
          !open.back().insert(parsed.get<std::string>()).second) {
        repeated = parsed.get<std::string>();
      }
      return true;
    };
    Json root;
    try {
      root = Json::parse(text.begin(), text.end(), watch);
    } catch (const Json::out_of_range& error) {  // A number beyond every double.
      status_ = absl::InvalidArgumentError(
          absl::StrCat("bad topology", name(), ": expected smaller numbers: ", error.what()));
      return root;
    } catch (const Json::parse_error& error) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "bad topology", name(), ": expected JSON at character ", std::max<size_t>(error.byte, 1),
          line_of(text, error.byte), ": ", error.what()));
      return root;
    }
    if (!repeated.empty()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "bad topology", name(), ": expected each key once, but \"", repeated, "\" occurs twice"));
    }
    return root;
  }

  static std::string line_of(absl::string_view text, size_t byte) {
    const absl::string_view before = text.substr(0, std::min(byte, text.size()));
    return absl::StrCat(" (line ", std::count(before.begin(), before.end(), '\n') + 1, ")");
  }

  bool check_object(const Json& value, const std::string& pointer,
                    const std::vector<std::string>& keys) {
    if (!value.is_object()) {
      fail(pointer, absl::StrCat("an object with ", absl::StrJoin(keys, ", ")));
      return false;
    }
    for (const auto& [key, unused] : value.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::string token = absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}});
      fail(absl::StrCat(pointer, "/", token), absl::StrCat("a key (", suggestion(key, keys), ")"));
      return false;
    }
    return true;
  }

  // The member `key`; null if it does not exist.
  static const Json* member(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  }

  void read_count(const Json& value, const std::string& pointer, absl::string_view what,
                  int& count) {
    if (value.is_number_integer() && value.get<double>() >= 1 &&
        value.get<double>() <= kMaxWorldSize) {
      count = value.get<int>();
      return;
    }
    fail(pointer, absl::StrCat("a number of ", what, " from 1 to ", kMaxWorldSize));
  }

  // A number in the unit that the key names, or text with a unit.
  void read_quantity(const Json& object, const std::string& pointer, const char* key,
                     Dimension dimension, double& quantity) {
    const Json* value = member(object, key);
    if (value == nullptr) return;
    const std::string at = absl::StrCat(pointer, "/", key);
    if (value->is_string()) {
      const std::string text = value->get<std::string>();
      const Quantity read = parse_quantity(text, dimension);
      if (!read.ok()) {
        return fail(at, absl::StrCat(read.expected, " (character ", read.position + 1, " of \"",
                                     text, "\")"));
      }
      quantity = read.value;
      return;
    }
    if (!value->is_number()) return fail(at, "a number, or text with a unit");
    const double number = value->get<double>();
    const bool whole = dimension == Dimension::kBytes || dimension == Dimension::kNanoseconds;
    if (!(number > 0) || number > max_quantity(dimension) ||
        (whole && number != std::floor(number))) {
      return fail(at, absl::StrCat(whole ? "a whole number" : "a number",
                                   " above zero and at most ", max_quantity(dimension)));
    }
    quantity = number;
  }

  void read_quantity(const Json& object, const std::string& pointer, const char* key,
                     Dimension dimension, int64_t& quantity) {
    double value = static_cast<double>(quantity);
    read_quantity(object, pointer, key, dimension, value);
    quantity = static_cast<int64_t>(value);
  }

  void read_link(const Json& object, const char* key, LinkModel& link) {
    const Json* value = member(object, key);
    if (value == nullptr) return;
    read_rate_and_latency(*value, absl::StrCat("/", key), link);
  }

  // The members of a link or a disk.
  template <typename Model>
  void read_rate_and_latency(const Json& value, const std::string& at, Model& model) {
    if (!check_object(value, at, {"bytes_per_second", "latency_ns"})) return;
    read_quantity(value, at, "bytes_per_second", Dimension::kBytesPerSecond,
                  model.bytes_per_second);
    read_quantity(value, at, "latency_ns", Dimension::kNanoseconds, model.latency_ns);
  }

  void read_nccl(const Json& root) {
    const Json* value = member(root, "nccl");
    if (value == nullptr || !status_.ok()) return;
    const std::string text = value->is_string() ? value->get<std::string>() : "";
    if (const std::string expected = set_nccl_version(text, spec_); !expected.empty()) {
      fail("/nccl", expected);
    }
  }

  void read_disk(const Json& root) {
    const Json* value = member(root, "disk");
    if (value == nullptr || !status_.ok()) return;
    if (*value == "off") {
      spec_.disk = {};
    } else if (value->is_string()) {
      fail("/disk", "\"off\", or an object with bytes_per_second, latency_ns");
    } else {
      read_rate_and_latency(*value, "/disk", spec_.disk);
    }
  }

  void read_cluster(const Json& root) {
    if (!check_object(
            root, "",
            {"num_nodes", "ranks_per_node", "torus", "device", "devices_per_rank", "node_fabric",
             "node_link", "network_fabric", "nic", "nics_per_node", "nccl", "disk"})) {
      return;
    }
    read_shape(root);
    if (!status_.ok()) return;
    const Json* device = member(root, "device");
    if (device == nullptr) return read_without_device(root);
    const Preset* preset = read_device(*device);
    if (!status_.ok()) return;
    read_fabrics(root, *preset);
    read_nccl(root);
    read_disk(root);
  }

  void read_without_device(const Json& root) {
    for (const auto& [key, unused] : root.items()) {
      if (key == "num_nodes" || key == "ranks_per_node") continue;
      return fail("/device", absl::StrCat("a device, because of \"/", key, "\","));
    }
    spec_ = {.num_nodes = shape_.num_nodes, .ranks_per_node = shape_.ranks_per_node};
  }

  void read_shape(const Json& root) {
    if (const Json* ranks = member(root, "ranks_per_node")) {
      read_count(*ranks, "/ranks_per_node", "ranks per node", shape_.ranks_per_node);
    } else if (!root.contains("torus")) {
      return fail("/ranks_per_node", "a number of ranks per node, or \"/torus\",");
    }
    if (const Json* nodes = member(root, "num_nodes")) {
      read_count(*nodes, "/num_nodes", "nodes", shape_.num_nodes);
    } else if (!root.contains("torus")) {
      return fail("/num_nodes", "a number of nodes, or \"/torus\",");
    }
    if (const Json* torus = member(root, "torus")) read_torus(root, *torus);
    if (static_cast<int64_t>(shape_.num_nodes) * shape_.ranks_per_node > kMaxWorldSize) {
      fail("/ranks_per_node", absl::StrCat("at most ", kMaxWorldSize, " ranks in all"));
    }
  }

  void read_torus(const Json& root, const Json& torus) {
    if (!torus.is_array() || torus.empty() || torus.size() > 3) {
      return fail("/torus", "the chips along 1 to 3 axes");
    }
    std::vector<int> axes;
    int64_t chips = 1;
    for (size_t axis = 0; axis < torus.size(); ++axis) {
      const std::string at = absl::StrCat("/torus/", axis);
      read_count(torus[axis], at, "chips along an axis", axes.emplace_back(1));
      chips *= axes.back();
      if (chips > kMaxWorldSize) return fail(at, absl::StrCat("at most ", kMaxWorldSize, " chips"));
    }
    if (!status_.ok()) return;
    const Shape hosts = shape_of_torus(axes);
    if (!root.contains("ranks_per_node")) shape_.ranks_per_node = hosts.ranks_per_node;
    if (chips % shape_.ranks_per_node != 0) {
      return fail("/ranks_per_node", absl::StrCat("a divisor of the ", chips, " chips"));
    }
    const int nodes = static_cast<int>(chips / shape_.ranks_per_node);
    if (root.contains("num_nodes") && shape_.num_nodes != nodes) {
      return fail("/num_nodes", absl::StrCat(nodes, ", by /torus and /ranks_per_node,"));
    }
    shape_.num_nodes = nodes;
    shape_.torus = std::move(axes);
  }

  // Sets device_ and returns the preset whose fabrics go with it.
  const Preset* read_device(const Json& device) {
    const std::string at = "/device";
    if (device.is_string()) {
      const std::string name = device.get<std::string>();
      const Preset* preset = find_preset(name);
      if (preset == nullptr) {
        fail(at, absl::StrCat("a device (", suggestion(name, device_names()), ")"));
      } else {
        device_ = preset->device;
      }
      return preset;
    }
    if (!check_object(
            device, at,
            {"name", "family", "memory_bytes", "memory_bytes_per_second", "flops_per_second",
             "launch_ns", "kernel_ns_min", "host_bytes_per_second", "efficiency", "kernels",
             "graphs", "expandable_segments", "max_split_bytes"})) {
      return nullptr;
    }
    const Json* name = member(device, "name");
    if (name == nullptr || !name->is_string() || name->get<std::string>().empty()) {
      fail("/device/name", "a name");
      return nullptr;
    }
    const Preset* preset = find_preset(name->get<std::string>());
    const bool known = preset != nullptr;
    if (!known) preset = find_preset(kGenericDevice);
    device_ = preset->device;
    if (!known) {
      device_.name = name->get<std::string>();
      require(device, {"family", "memory_bytes", "memory_bytes_per_second", "flops_per_second"});
    }
    read_family(device);
    read_quantity(device, at, "memory_bytes", Dimension::kBytes, device_.memory_bytes);
    read_quantity(device, at, "memory_bytes_per_second", Dimension::kBytesPerSecond,
                  device_.memory_bytes_per_second);
    read_quantity(device, at, "launch_ns", Dimension::kNanoseconds, device_.launch_ns);
    read_quantity(device, at, "kernel_ns_min", Dimension::kNanoseconds, device_.kernel_ns_min);
    read_quantity(device, at, "host_bytes_per_second", Dimension::kBytesPerSecond,
                  device_.host_bytes_per_second);
    read_flops(device, known);
    read_choice(device, "efficiency", set_efficiency);
    read_choice(device, "kernels", set_kernels);
    read_choice(device, "graphs", set_graphs);
    if (status_.ok()) {
      const std::string expected = memory_problem(device_);
      if (!expected.empty()) fail("/device/memory_bytes", expected);
    }
    read_allocator(device);
    return preset;
  }

  void require(const Json& device, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      if (device.contains(key)) continue;
      fail(absl::StrCat("/device/", key),
           absl::StrCat("a value, because \"", device_.name, "\" is not a known device (",
                        suggestion(device_.name, device_names()), "),"));
    }
  }

  void read_family(const Json& device) {
    const Json* family = member(device, "family");
    if (family == nullptr) return;
    const std::string name = family->is_string() ? family->get<std::string>() : "";
    if (std::find(families().begin(), families().end(), name) == families().end()) {
      return fail("/device/family", absl::StrCat("a family (", suggestion(name, families()), ")"));
    }
    device_.family = name;
  }

  // `set` sets it by its name, or tells what was expected.
  template <typename Set>
  void read_choice(const Json& device, const char* key, Set&& set) {
    const Json* choice = member(device, key);
    if (choice == nullptr) return;
    const std::string name = choice->is_string() ? choice->get<std::string>() : "";
    if (const std::string expected = set(name, device_); !expected.empty()) {
      fail(absl::StrCat("/device/", key), expected);
    }
  }

  void read_allocator(const Json& device) {
    if (const Json* expandable = member(device, "expandable_segments")) {
      if (!expandable->is_boolean()) {
        return fail("/device/expandable_segments", "true or false");
      }
      device_.expandable_segments = expandable->get<bool>();
    }
    if (member(device, "max_split_bytes") != nullptr) {
      read_quantity(device, "/device", "max_split_bytes", Dimension::kBytes,
                    device_.max_split_bytes.emplace(0));
    }
    for (const auto& [member_name, key] : {std::pair("expandable_segments", "expandable_segments"),
                                           std::pair("max_split_bytes", "max_split_size")}) {
      if (member(device, member_name) == nullptr) continue;
      const std::string expected = allocator_problem(key, device_);
      if (!expected.empty()) fail(absl::StrCat("/device/", member_name), expected);
    }
  }

  void read_flops(const Json& device, bool known) {
    const Json* flops = member(device, "flops_per_second");
    if (flops == nullptr) return;
    const std::string at = "/device/flops_per_second";
    if (!check_object(*flops, at, choice_names<MathType>())) return;
    if (!known) {
      // Formats that are not mentioned are computed in float32.
      if (!flops->contains("fp32")) return fail(absl::StrCat(at, "/fp32"), "a rate");
      double fp32 = 0;
      read_quantity(*flops, at, "fp32", Dimension::kFlopsPerSecond, fp32);
      device_.flops_per_second.fill(fp32);
    }
    for (size_t type = 0; type < kNumMathTypes; ++type) {
      read_quantity(*flops, at, choice_names<MathType>()[type].c_str(), Dimension::kFlopsPerSecond,
                    device_.flops_per_second[type]);
    }
  }

  template <typename Fabric>
  std::optional<Fabric> read_fabric(const Json& root, const char* key) {
    const Json* value = member(root, key);
    if (value == nullptr) return std::nullopt;
    const std::string name = value->is_string() ? value->get<std::string>() : "";
    const std::optional<Fabric> fabric = choice_of<Fabric>(name);
    if (!fabric.has_value()) fail(absl::StrCat("/", key), suggestion(name, choice_names<Fabric>()));
    return fabric;
  }

  void read_fabrics(const Json& root, const Preset& preset) {
    const bool torus = !shape_.torus.empty() ||
                       (preset.node_fabric == NodeFabric::kTorus && !root.contains("node_fabric"));
    if (torus) return read_torus_links(root, preset);
    const auto node = read_fabric<NodeFabric>(root, "node_fabric");
    const auto network = read_fabric<NetworkFabric>(root, "network_fabric");
    if (!status_.ok()) return;
    if (preset.node_fabric == NodeFabric::kTorus &&
        !(root.contains("nic") && network.has_value())) {
      return fail("/nic",
                  "\"nic\" and \"network_fabric\", because this device's usual torus has none,");
    }
    build(preset, node, network);
    read_link(root, "node_link", spec_.node_link);
    read_link(root, "nic", spec_.nic);
    if (const Json* devices = member(root, "devices_per_rank")) {
      read_count(*devices, "/devices_per_rank", "devices per rank", spec_.devices_per_rank);
    }
    if (const Json* nics = member(root, "nics_per_node")) {
      read_count(*nics, "/nics_per_node", "NICs", spec_.nics_per_node);
      if (spec_.network_fabric == NetworkFabric::kEthernet && spec_.nics_per_node != 1) {
        fail("/nics_per_node", "1: ethernet has one NIC a node,");
      }
    }
    if (spec_.nic.bytes_per_second <= 0) fail("/nic/bytes_per_second", "a bandwidth");
  }

  void read_torus_links(const Json& root, const Preset& preset) {
    const Json* fabric = member(root, "node_fabric");
    if (fabric != nullptr && *fabric != "torus") {
      return fail("/node_fabric", "\"torus\", because of \"/torus\",");
    }
    for (const char* key : {"network_fabric", "nic", "nics_per_node", "nccl"}) {
      if (root.contains(key)) return fail(absl::StrCat("/", key), "nothing: a torus has no NICs,");
    }
    if (root.contains("devices_per_rank")) {
      return fail("/devices_per_rank", "nothing: the chips of a torus are the ranks,");
    }
    build(preset, NodeFabric::kTorus, std::nullopt);
    read_link(root, "node_link", spec_.node_link);
  }

  void build(const Preset& preset, std::optional<NodeFabric> node,
             std::optional<NetworkFabric> network) {
    spec_ = usual_cluster(preset, shape_, node, network);
    spec_.device = device_;
  }

  const absl::string_view origin_;
  absl::Status status_;
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
  return Reader(origin).read(text);
}

std::string cluster_to_json(const ClusterSpec& spec) {
  Json root = {{"num_nodes", spec.num_nodes}, {"ranks_per_node", spec.ranks_per_node}};
  if (!spec.device.has_value()) return accelerate::internal::exact_json_text(root);
  const DeviceModel& device = *spec.device;
  Json flops;
  for (size_t type = 0; type < kNumMathTypes; ++type) {
    flops[choice_names<MathType>()[type]] = device.flops_per_second[type];
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
  if (device.kernels != KernelSet::kEager) root["device"]["kernels"] = name_of(device.kernels);
  if (device.graphs) root["device"]["graphs"] = "on";
  if (device.expandable_segments) {
    root["device"]["expandable_segments"] = *device.expandable_segments;
  }
  if (device.max_split_bytes) root["device"]["max_split_bytes"] = *device.max_split_bytes;
  root["node_fabric"] = name_of(spec.node_fabric);
  root["node_link"] = rate_and_latency(spec.node_link);
  root["disk"] = spec.disk.takes_time() ? rate_and_latency(spec.disk) : Json("off");
  if (spec.node_fabric == NodeFabric::kTorus) {
    root["torus"] = spec.torus;
    return accelerate::internal::exact_json_text(root);
  }
  root["devices_per_rank"] = spec.devices_per_rank;
  root["network_fabric"] = name_of(spec.network_fabric);
  root["nic"] = rate_and_latency(spec.nic);
  root["nics_per_node"] = spec.nics_per_node;
  if (spec.nccl_version != kDefaultNcclVersion) root["nccl"] = nccl_version_text(spec.nccl_version);
  return accelerate::internal::exact_json_text(root);
}

}  // namespace accelerate::simulator::internal
