#include "simulator/hardware/cluster_spec.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/message_text.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::simulator {
namespace {

using internal::kMaxWorldSize;
using internal::Shape;

absl::Status error_at(absl::string_view text, size_t position, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("bad topology \"", text, "\": expected ", expected,
                                                 " at character ", position + 1, "\n  ", text,
                                                 "\n  ", std::string(position, ' '), "^"));
}

// The number that a key sets.
using Field = std::variant<double*, int64_t*>;

struct Key {
  absl::string_view name;
  /// The unit of the value and its place; none if the value is not a quantity.
  Dimension dimension = Dimension::kBytes;
  Field (*field)(ClusterSpec&) = nullptr;
  /// Whether the key applies to a torus.
  bool for_torus = true;
};

constexpr Key kKeys[] = {
    {"mem", Dimension::kBytes, [](ClusterSpec& spec) { return Field(&spec.device->memory_bytes); }},
    {"hbm", Dimension::kBytesPerSecond,
     [](ClusterSpec& spec) { return Field(&spec.device->memory_bytes_per_second); }},
    // The peak in bfloat16; the others are scaled by the same ratio.
    {"flops", Dimension::kFlopsPerSecond,
     [](ClusterSpec& spec) {
       return Field(&spec.device->flops_per_second[static_cast<size_t>(MathType::kBf16)]);
     }},
    {"launch", Dimension::kNanoseconds,
     [](ClusterSpec& spec) { return Field(&spec.device->launch_ns); }},
    {"host", Dimension::kBytesPerSecond,
     [](ClusterSpec& spec) { return Field(&spec.device->host_bytes_per_second); }},
    {.name = "efficiency"},
    {.name = "kernels"},
    {.name = "graphs"},
    {.name = "expandable_segments"},
    {.name = "max_split_size", .dimension = Dimension::kBytes},
    {.name = "devices", .for_torus = false},
    {.name = "node", .for_torus = false},
    {"link", Dimension::kBytesPerSecond,
     [](ClusterSpec& spec) { return Field(&spec.node_link.bytes_per_second); }},
    {"link_latency", Dimension::kNanoseconds,
     [](ClusterSpec& spec) { return Field(&spec.node_link.latency_ns); }},
    {.name = "fabric", .for_torus = false},
    {.name = "nics", .for_torus = false},
    {"nic", Dimension::kBytesPerSecond,
     [](ClusterSpec& spec) { return Field(&spec.nic.bytes_per_second); }, false},
    {"nic_latency", Dimension::kNanoseconds,
     [](ClusterSpec& spec) { return Field(&spec.nic.latency_ns); }, false},
    {.name = "nccl", .for_torus = false},
    // A rate, or kOff.
    {"disk", Dimension::kBytesPerSecond,
     [](ClusterSpec& spec) { return Field(&spec.disk.bytes_per_second); }},
    {"disk_latency", Dimension::kNanoseconds,
     [](ClusterSpec& spec) { return Field(&spec.disk.latency_ns); }},
};

// The disk that takes no time.
constexpr absl::string_view kOff = "off";

std::vector<std::string> key_names(bool torus) {
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (key.for_torus || !torus) names.emplace_back(key.name);
  }
  return names;
}

void set_quantity(ClusterSpec& spec, const Key& key, double value) {
  if (key.name == "flops") {
    const double ratio = value / spec.device->flops(MathType::kBf16);
    for (double& flops : spec.device->flops_per_second) flops *= ratio;
  }
  std::visit([value](auto* field) { *field = value; }, key.field(spec));
}

double get_quantity(ClusterSpec& spec, const Key& key) {
  return std::visit([](auto* field) { return static_cast<double>(*field); }, key.field(spec));
}

// Parses the short form. Each step reads from position_ on and moves position_ past the text it
// read.
//
//   text   = shape [":" device {"," key "=" value}]  |  device ":" axes {"," key "=" value}
//   shape  = number "x" number         axes = number {"x" number}
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<ClusterSpec> parse() {
    ClusterSpec spec;
    const bool is_valid = (names_device_first() ? parse_torus() : parse_shape()) && build(spec);
    if (!is_valid) return status_;
    return spec;
  }

 private:
  struct Assignment {
    size_t value_at = 0;
    absl::string_view value;
  };

  bool fail(size_t position, absl::string_view expected) {
    status_ = error_at(text_, position, expected);
    return false;
  }

  bool at_end() const { return position_ == text_.size(); }
  bool at(char c) const { return !at_end() && text_[position_] == c; }
  // The text up to one of `ends`, or to the end.
  absl::string_view take_until(absl::string_view ends) {
    const size_t start = position_;
    position_ = std::min(text_.find_first_of(ends, start), text_.size());
    return text_.substr(start, position_ - start);
  }

  // The name of a device contains a letter other than the "x" of a shape.
  bool names_device_first() const {
    const absl::string_view head = text_.substr(0, text_.find(':'));
    return head.size() < text_.size() && !head.empty() && absl::ascii_isalpha(head[0]) &&
           head.find_first_not_of("0123456789x") != absl::string_view::npos;
  }

  bool parse_count(absl::string_view what, int& count) {
    const size_t start = position_;
    while (!at_end() && absl::ascii_isdigit(text_[position_])) ++position_;
    if (absl::SimpleAtoi(text_.substr(start, position_ - start), &count) && count >= 1 &&
        count <= kMaxWorldSize) {
      return true;
    }
    return fail(start, absl::StrCat("a number of ", what, " from 1 to ", kMaxWorldSize));
  }

  bool parse_shape() {
    if (!parse_count("nodes", shape_.num_nodes)) return false;
    if (!at('x')) return fail(position_, "'x'");
    const size_t ranks_at = ++position_;
    if (!parse_count("ranks per node", shape_.ranks_per_node)) return false;
    if (!at_end() && !at(':')) return fail(position_, "':' or the end");
    if (shape_.num_nodes * shape_.ranks_per_node > kMaxWorldSize) {
      return fail(ranks_at, absl::StrCat("at most ", kMaxWorldSize, " ranks in all"));
    }
    if (at_end()) return true;
    ++position_;
    return parse_device(",");
  }

  bool parse_device(absl::string_view end) {
    const size_t start = position_;
    const absl::string_view name = take_until(end);
    preset_ = find_preset(name);
    if (preset_ != nullptr) return true;
    return fail(start, absl::StrCat("a device (", suggestion(name, device_names()), ")"));
  }

  bool parse_torus() {
    if (!parse_device(":")) return false;
    const std::string& device = preset_->device.name;
    if (preset_->node_fabric != NodeFabric::kTorus) {
      return fail(0, absl::StrCat("NODESxRANKS:", device, ", as in \"2x4:", device,
                                  "\" (only a torus is given by its axes)"));
    }
    ++position_;
    std::vector<int> torus;
    for (int chips = 1;; ++position_) {
      const size_t start = position_;
      if (!parse_count("chips along an axis", torus.emplace_back())) return false;
      chips *= torus.back();
      if (chips > kMaxWorldSize) {
        return fail(start, absl::StrCat("at most ", kMaxWorldSize, " chips in all"));
      }
      if (!at('x')) break;
      if (static_cast<int>(torus.size()) == preset_->torus_axes) {
        return fail(position_, absl::StrCat("',' or the end, after ", preset_->torus_axes,
                                            " axes of a ", device));
      }
    }
    if (!at_end() && !at(',')) return fail(position_, "'x', ',' or the end");
    shape_ = internal::shape_of_torus(std::move(torus));
    return true;
  }

  bool parse_assignment() {
    const size_t start = position_;
    const absl::string_view name = take_until("=,");
    const bool torus = preset_->node_fabric == NodeFabric::kTorus;
    const auto* key = std::ranges::find(kKeys, name, &Key::name);
    if (key == std::end(kKeys)) {
      return fail(start, absl::StrCat("a key (", suggestion(name, key_names(torus)), ")"));
    }
    if (torus && !key->for_torus) {
      return fail(start, absl::StrCat("one of ", absl::StrJoin(key_names(torus), ", "),
                                      " (a torus has one device a rank, and neither switches nor "
                                      "NICs)"));
    }
    if (given_.contains(name)) {
      return fail(start, absl::StrCat("each key once, but \"", name, "\" occurs twice"));
    }
    if (!at('=')) return fail(position_, absl::StrCat("'=' after \"", name, "\""));
    const size_t value_at = ++position_;
    given_[name] = {value_at, take_until(",")};
    return true;
  }

  template <typename Fabric>
  bool parse_fabric(absl::string_view key, std::optional<Fabric>& fabric) {
    const auto given = given_.find(key);
    if (given == given_.end()) return true;
    const auto& [value_at, value] = given->second;
    fabric = accelerate::value_of<Fabric>({value.data(), value.size()});
    return (fabric.has_value() && value != accelerate::to_string(NodeFabric::kTorus)) ||
           fail(value_at, suggestion(value, internal::fabric_names<Fabric>()));
  }

  // Leaves `count` as it is without the key.
  bool apply_count(absl::string_view key, absl::string_view what, int& count) {
    const auto given = given_.find(key);
    if (given == given_.end()) return true;
    const auto& [value_at, value] = given->second;
    if (absl::c_all_of(value, absl::ascii_isdigit) && absl::SimpleAtoi(value, &count) &&
        count >= 1 && count <= kMaxWorldSize) {
      return true;
    }
    return fail(value_at, absl::StrCat("a number of ", what, " from 1 to ", kMaxWorldSize));
  }

  bool apply_counts(ClusterSpec& spec) {
    if (!apply_count("devices", "devices per rank", spec.devices_per_rank) ||
        !apply_count("nics", "NICs", spec.nics_per_node)) {
      return false;
    }
    if (spec.network_fabric == NetworkFabric::kEthernet && spec.nics_per_node != 1) {
      return fail(given_.at("nics").value_at, "1: ethernet has one NIC a node");
    }
    return true;
  }

  bool apply_quantity(const Key& key, const Assignment& assignment, ClusterSpec& spec) {
    const auto& [value_at, value] = assignment;
    if (key.name == "disk" && value == kOff) {
      spec.disk = {};
      return true;
    }
    if (key.name == "disk_latency" && !spec.disk.takes_time()) {
      return fail(value_at, "no \"disk_latency\" beside \"disk=off\"");
    }
    Quantity quantity = parse_quantity(value, key.dimension);
    if (!quantity.ok()) {
      if (key.name == "disk" && quantity.position == 0) quantity.expected += ", or \"off\"";
      return fail(value_at + quantity.position, quantity.expected);
    }
    set_quantity(spec, key, quantity.value);
    return true;
  }

  // Fabrics are read first, whatever the order of the keys, because other defaults follow from
  // them.
  bool build(ClusterSpec& spec) {
    if (preset_ == nullptr) {
      spec = {.num_nodes = shape_.num_nodes, .ranks_per_node = shape_.ranks_per_node};
      return true;
    }
    while (!at_end()) {
      ++position_;  // The comma.
      if (!parse_assignment()) return false;
    }
    std::optional<NodeFabric> node;
    std::optional<NetworkFabric> network;
    if (!parse_fabric("node", node) || !parse_fabric("fabric", network)) return false;
    spec = internal::usual_cluster(*preset_, shape_, node, network);
    for (const Key& key : kKeys) {
      const auto given = given_.find(key.name);
      if (given == given_.end() || key.field == nullptr) continue;
      if (!apply_quantity(key, given->second, spec)) return false;
    }
    return apply_name("efficiency", spec) && apply_name("kernels", spec) &&
           apply_name("graphs", spec) && apply_name("nccl", spec) && check_memory(spec) &&
           apply_allocator(spec) && apply_counts(spec);
  }

  // Memory that the text does not name is enough.
  bool check_memory(const ClusterSpec& spec) {
    const std::string expected = internal::memory_problem(*spec.device);
    return expected.empty() || fail(given_.at("mem").value_at, expected);
  }

  bool apply_name(absl::string_view key, ClusterSpec& spec) {
    const auto given = given_.find(key);
    if (given == given_.end()) return true;
    const auto& [value_at, value] = given->second;
    const std::string expected = key == "nccl"      ? internal::set_nccl_version(value, spec)
                                 : key == "kernels" ? internal::set_kernels(value, *spec.device)
                                 : key == "graphs"  ? internal::set_graphs(value, *spec.device)
                                                    : internal::set_efficiency(value, *spec.device);
    return expected.empty() || fail(value_at, expected);
  }

  bool apply_allocator(ClusterSpec& spec) {
    DeviceModel& device = *spec.device;
    if (const auto given = given_.find("expandable_segments"); given != given_.end()) {
      const auto& [value_at, value] = given->second;
      if (value != "true" && value != "false") return fail(value_at, "true or false");
      device.expandable_segments = value == "true";
    }
    if (const auto given = given_.find("max_split_size"); given != given_.end()) {
      const auto& [value_at, value] = given->second;
      const Quantity quantity = parse_quantity(value, Dimension::kBytes);
      if (!quantity.ok()) return fail(value_at + quantity.position, quantity.expected);
      device.max_split_bytes = static_cast<int64_t>(quantity.value);
    }
    for (const char* key : {"expandable_segments", "max_split_size"}) {
      const std::string expected = internal::allocator_problem(key, device);
      const auto given = given_.find(key);
      if (given == given_.end() || expected.empty()) continue;
      return fail(given->second.value_at, expected);
    }
    return true;
  }

  const absl::string_view text_;
  size_t position_ = 0;
  absl::Status status_;
  Shape shape_;
  const Preset* preset_ = nullptr;
  std::map<absl::string_view, Assignment> given_;  // by key
};

// The short form, with every key whose value differs from the usual one. It may be incomplete, so
// the caller parses it again and compares.
std::string short_form(ClusterSpec spec, const Preset& preset, std::string text,
                       const Shape& shape) {
  ClusterSpec usual = internal::usual_cluster(preset, shape);
  if (spec.node_fabric != NodeFabric::kTorus && preset.node_fabric != NodeFabric::kTorus) {
    if (spec.node_fabric != usual.node_fabric) {
      absl::StrAppend(&text, ",node=", accelerate::to_string(spec.node_fabric));
    }
    if (spec.network_fabric != usual.network_fabric) {
      absl::StrAppend(&text, ",fabric=", accelerate::to_string(spec.network_fabric));
    }
    usual = internal::usual_cluster(preset, shape, spec.node_fabric, spec.network_fabric);
  }
  if (!spec.disk.takes_time()) {
    absl::StrAppend(&text, ",disk=", kOff);
    spec.disk = usual.disk;
  }
  const std::string efficiency = internal::efficiency_text(*spec.device);
  if (efficiency != internal::efficiency_text(*usual.device)) {
    absl::StrAppend(&text, ",efficiency=", efficiency);
  }
  if (spec.device->kernels != usual.device->kernels) {
    absl::StrAppend(&text, ",kernels=", accelerate::to_string(spec.device->kernels));
  }
  if (spec.device->graphs) absl::StrAppend(&text, ",graphs=on");
  if (const std::optional<bool> expandable = spec.device->expandable_segments) {
    absl::StrAppend(&text, ",expandable_segments=", *expandable ? "true" : "false");
  }
  if (const std::optional<int64_t> bytes = spec.device->max_split_bytes) {
    absl::StrAppend(
        &text, ",max_split_size=", format_quantity(static_cast<double>(*bytes), Dimension::kBytes));
  }
  if (spec.nccl_version != kDefaultNcclVersion) {
    absl::StrAppend(&text, ",nccl=", internal::nccl_version_text(spec.nccl_version));
  }
  if (spec.devices_per_rank != 1) absl::StrAppend(&text, ",devices=", spec.devices_per_rank);
  for (const Key& key : kKeys) {
    if (key.field == nullptr) continue;
    const double value = get_quantity(spec, key);
    if (value == get_quantity(usual, key)) continue;
    absl::StrAppend(&text, ",", key.name, "=", format_quantity(value, key.dimension));
  }
  if (spec.nics_per_node != usual.nics_per_node) {
    absl::StrAppend(&text, ",nics=", spec.nics_per_node);
  }
  return text;
}

absl::StatusOr<ClusterSpec> parse_file(absl::string_view path) {
  std::ifstream file{std::string(path)};
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("bad topology \"", path, "\": expected a file that can be read"));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return internal::parse_cluster_json(text, path);
}

// ---- The usual cluster of a preset.

// The number of links that a device has in the fabric of its node.
double links_per_device(NodeFabric fabric, int devices_per_node) {
  return fabric == NodeFabric::kMesh ? std::max(1, devices_per_node - 1) : 1;
}

LinkModel node_link_of(const Preset& preset, NodeFabric fabric) {
  LinkModel link = preset.node_link;
  if (fabric == preset.node_fabric) return link;
  if (fabric == NodeFabric::kPcie) {
    link.bytes_per_second = preset.device.host_bytes_per_second;
    return link;
  }
  // The total bandwidth of a device stays the same, over one link or over one link to each other
  // device.
  link.bytes_per_second = link.bytes_per_second *
                          links_per_device(preset.node_fabric, preset.devices_per_node) /
                          links_per_device(fabric, preset.devices_per_node);
  return link;
}

int nics_per_node_of(const Preset& preset, NetworkFabric fabric, int ranks_per_node) {
  switch (fabric) {
    case NetworkFabric::kRails: return ranks_per_node;
    case NetworkFabric::kFatTree: return preset.nics_per_node;
    case NetworkFabric::kEthernet: return 1;
  }
  return 1;
}

// A data-centre SSD on four lanes of PCIe 4.0. Samsung's announcement of the PM9A3 (U.2): 6.5 GB/s
// of sequential reads, 3.5 GB/s of writes; a disk has one rate here, the lower. Vendors' data
// sheets give a random read of 4 KiB, alone in the queue, about 80 us.
constexpr DiskModel kNodeDisk = {.bytes_per_second = 3.5e9, .latency_ns = 80000};

}  // namespace

namespace internal {

Shape shape_of_torus(std::vector<int> torus) {
  const int chips = std::accumulate(torus.begin(), torus.end(), 1, std::multiplies<>());
  int per_host = kChipsPerHost;
  while (chips % per_host != 0) --per_host;
  return {.num_nodes = chips / per_host, .ranks_per_node = per_host, .torus = std::move(torus)};
}

ClusterSpec usual_cluster(const Preset& preset, const Shape& shape,
                          std::optional<NodeFabric> node_fabric,
                          std::optional<NetworkFabric> network_fabric) {
  ClusterSpec spec{.num_nodes = shape.num_nodes,
                   .ranks_per_node = shape.ranks_per_node,
                   .device = preset.device,
                   .disk = kNodeDisk};
  spec.node_fabric = node_fabric.value_or(preset.node_fabric);
  spec.node_link = node_link_of(preset, spec.node_fabric);
  if (spec.node_fabric == NodeFabric::kTorus) {
    spec.torus = shape.torus;
    // Hosts along the first axis, their chips along the second.
    if (spec.torus.empty()) spec.torus = {shape.num_nodes, shape.ranks_per_node};
    return spec;
  }
  spec.network_fabric = network_fabric.value_or(preset.network_fabric);
  spec.nic = preset.nic;
  spec.nics_per_node = nics_per_node_of(preset, spec.network_fabric, spec.ranks_per_node);
  return spec;
}

absl::Status check_devices(const ClusterSpec& spec, absl::string_view text) {
  if (!spec.device || spec.devices_per_node() <= kMaxDevicesPerNode) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bad topology \"", text, "\": a node has ", spec.devices_per_node(),
                   " devices, and LibTorch counts ", kMaxDevicesPerNode,
                   " at most: divide the ranks among more nodes"));
}

std::string set_nccl_version(absl::string_view text, ClusterSpec& spec) {
  // The versions whose models are built in; Blackwell is known from 2.25 on.
  constexpr int kNewest = 23007;
  const Preset* preset = find_preset(spec.device->name);
  const int capability = preset != nullptr ? preset->compute_capability : 0;
  if (capability == 0) {
    return absl::StrCat("no version of NCCL, because \"", spec.device->name, "\" is not NVIDIA's,");
  }
  const int oldest = capability >= 100 ? 22501 : 21903;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  int version = 0;
  for (const absl::string_view part : parts) {
    int number = 0;
    const bool is_number =
        !part.empty() && absl::c_all_of(part, absl::ascii_isdigit) && part.size() <= 2;
    if (!is_number || !absl::SimpleAtoi(part, &number)) version = -1;
    if (version >= 0) version = 100 * version + number;
  }
  if (parts.size() != 3 || version < oldest || version > kNewest) {
    return absl::StrCat("a version of NCCL from ", nccl_version_text(oldest), " to ",
                        nccl_version_text(kNewest), ", as in ",
                        nccl_version_text(kDefaultNcclVersion));
  }
  spec.nccl_version = version;
  return "";
}

std::string nccl_version_text(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace internal

std::string ClusterSpec::to_string() const {
  const std::string nodes_by_ranks = absl::StrCat(num_nodes, "x", ranks_per_node);
  if (!device.has_value()) return nodes_by_ranks;
  if (const Preset* preset = find_preset(device->name)) {
    std::vector<std::string> candidates;
    if (!torus.empty()) {
      candidates.push_back(short_form(*this, *preset,
                                      absl::StrCat(device->name, ":", absl::StrJoin(torus, "x")),
                                      internal::shape_of_torus(torus)));
    }
    candidates.push_back(short_form(*this, *preset, absl::StrCat(nodes_by_ranks, ":", device->name),
                                    {.num_nodes = num_nodes, .ranks_per_node = ranks_per_node}));
    for (std::string& candidate : candidates) {
      const absl::StatusOr<ClusterSpec> again = parse(candidate);
      if (again.ok() && *again == *this) return std::move(candidate);
    }
  }
  return internal::cluster_to_json(*this);
}

absl::StatusOr<ClusterSpec> ClusterSpec::parse(absl::string_view text) {
  // The last key may name a file, too.
  const bool is_file = absl::EndsWith(text, ".json") && !absl::StrContains(text, ",efficiency=");
  if (is_file) return parse_file(text);
  if (absl::StartsWith(text, "{")) return internal::parse_cluster_json(text, "");
  return Parser(text).parse();
}

}  // namespace accelerate::simulator
