#include "simulator/hardware/cluster_spec.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "simulator/hardware/cluster_builder.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"
#include "simulator/hardware/spelling.h"

namespace accelerate::simulator {
namespace {

using internal::kMaxWorldSize;
using internal::Shape;

absl::Status error_at(absl::string_view text, size_t position, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("bad topology \"", text, "\": expected ", expected,
                                                 " at character ", position + 1, "\n  ", text,
                                                 "\n  ", std::string(position, ' '), "^"));
}

enum class Key {
  kMemory,
  kMemoryBandwidth,
  kFlops,
  kLaunch,
  kHost,
  kNodeFabric,
  kLink,
  kLinkLatency,
  kNetworkFabric,
  kNics,
  kNic,
  kNicLatency,
};

struct KeyInfo {
  const char* name;
  /// The unit of the value, if it has one.
  Dimension dimension = Dimension::kBytes;
  /// Whether the key applies to a torus.
  bool for_torus = true;
};

// By Key.
constexpr KeyInfo kKeys[] = {
    {"mem", Dimension::kBytes},
    {"hbm", Dimension::kBytesPerSecond},
    {"flops", Dimension::kFlopsPerSecond},
    {"launch", Dimension::kNanoseconds},
    {"host", Dimension::kBytesPerSecond},
    {"node", Dimension::kBytes, false},
    {"link", Dimension::kBytesPerSecond},
    {"link_latency", Dimension::kNanoseconds},
    {"fabric", Dimension::kBytes, false},
    {"nics", Dimension::kBytes, false},
    {"nic", Dimension::kBytesPerSecond, false},
    {"nic_latency", Dimension::kNanoseconds, false},
};
constexpr size_t kNumKeys = std::size(kKeys);

const KeyInfo& info_of(Key key) { return kKeys[static_cast<size_t>(key)]; }

std::vector<std::string> key_names(bool torus) {
  std::vector<std::string> names;
  for (const KeyInfo& info : kKeys) {
    if (info.for_torus || !torus) names.push_back(info.name);
  }
  return names;
}

// The field that a key sets; null if the field has another type.
double* real_field(ClusterSpec& spec, Key key) {
  switch (key) {
    case Key::kMemoryBandwidth: return &spec.device->memory_bytes_per_second;
    case Key::kHost: return &spec.device->host_bytes_per_second;
    case Key::kLink: return &spec.node_link.bytes_per_second;
    case Key::kNic: return &spec.nic.bytes_per_second;
    default: return nullptr;
  }
}

int64_t* whole_field(ClusterSpec& spec, Key key) {
  switch (key) {
    case Key::kMemory: return &spec.device->memory_bytes;
    case Key::kLaunch: return &spec.device->launch_ns;
    case Key::kLinkLatency: return &spec.node_link.latency_ns;
    case Key::kNicLatency: return &spec.nic.latency_ns;
    default: return nullptr;
  }
}

void set_quantity(ClusterSpec& spec, Key key, double value) {
  if (key == Key::kFlops) return internal::scale_flops(*spec.device, value);
  if (double* field = real_field(spec, key)) *field = value;
  if (int64_t* field = whole_field(spec, key)) *field = static_cast<int64_t>(value);
}

double get_quantity(ClusterSpec& spec, Key key) {
  if (key == Key::kFlops) return spec.device->flops(MathType::kBf16);
  if (const double* field = real_field(spec, key)) return *field;
  if (const int64_t* field = whole_field(spec, key)) return static_cast<double>(*field);
  return 0;
}

bool is_quantity(Key key) {
  return key != Key::kNodeFabric && key != Key::kNetworkFabric && key != Key::kNics;
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
    absl::Status status = names_device_first() ? parse_torus() : parse_shape();
    if (!status.ok()) return status;
    if (preset_ == nullptr) {
      return ClusterSpec{.num_nodes = shape_.num_nodes, .ranks_per_node = shape_.ranks_per_node};
    }
    status = parse_keys();
    if (!status.ok()) return status;
    return build();
  }

 private:
  struct Assignment {
    size_t key_at = 0;
    size_t value_at = 0;
    absl::string_view value;
    bool given = false;
  };

  absl::Status error(size_t position, absl::string_view expected) const {
    return error_at(text_, position, expected);
  }

  bool at_end() const { return position_ == text_.size(); }
  bool at(char c) const { return !at_end() && text_[position_] == c; }

  // The name of a device contains a letter other than the "x" of a shape.
  bool names_device_first() const {
    const absl::string_view head = text_.substr(0, text_.find(':'));
    return head.size() < text_.size() && !head.empty() && absl::ascii_isalpha(head[0]) &&
           head.find_first_not_of("0123456789x") != absl::string_view::npos;
  }

  absl::Status parse_count(absl::string_view what, int& count) {
    const size_t start = position_;
    while (!at_end() && absl::ascii_isdigit(text_[position_])) ++position_;
    if (!absl::SimpleAtoi(text_.substr(start, position_ - start), &count) || count < 1 ||
        count > kMaxWorldSize) {
      return error(start, absl::StrCat("a number of ", what, " from 1 to ", kMaxWorldSize));
    }
    return absl::OkStatus();
  }

  absl::Status parse_shape() {
    absl::Status status = parse_count("nodes", shape_.num_nodes);
    if (!status.ok()) return status;
    if (!at('x')) return error(position_, "'x'");
    const size_t ranks_at = ++position_;
    status = parse_count("ranks per node", shape_.ranks_per_node);
    if (!status.ok()) return status;
    if (!at_end() && !at(':')) return error(position_, "':' or the end");
    if (shape_.num_nodes * shape_.ranks_per_node > kMaxWorldSize) {
      return error(ranks_at, absl::StrCat("at most ", kMaxWorldSize, " ranks in all"));
    }
    if (at_end()) return absl::OkStatus();
    ++position_;
    return parse_device(',');
  }

  absl::Status parse_device(char end) {
    const size_t start = position_;
    position_ = std::min(text_.find(end, start), text_.size());
    const absl::string_view name = text_.substr(start, position_ - start);
    preset_ = find_preset(name);
    if (preset_ != nullptr) return absl::OkStatus();
    return error(start, absl::StrCat("a device (", suggestion(name, device_names()), ")"));
  }

  absl::Status parse_torus() {
    absl::Status status = parse_device(':');
    if (!status.ok()) return status;
    if (preset_->node_fabric != NodeFabric::kTorus) {
      return error(0, absl::StrCat("NODESxRANKS:", preset_->device.name, ", as in \"2x4:",
                                   preset_->device.name, "\" (only a torus is given by its axes)"));
    }
    ++position_;
    std::vector<int> torus;
    for (int chips = 1;; ++position_) {
      const size_t start = position_;
      status = parse_count("chips along an axis", torus.emplace_back());
      if (!status.ok()) return status;
      chips *= torus.back();
      if (chips > kMaxWorldSize) {
        return error(start, absl::StrCat("at most ", kMaxWorldSize, " chips in all"));
      }
      if (!at('x')) break;
      if (static_cast<int>(torus.size()) == preset_->torus_axes) {
        return error(position_, absl::StrCat("',' or the end, after ", preset_->torus_axes,
                                             " axes of a ", preset_->device.name));
      }
    }
    if (!at_end() && !at(',')) return error(position_, "'x', ',' or the end");
    shape_ = internal::shape_of_torus(std::move(torus));
    return absl::OkStatus();
  }

  absl::Status parse_keys() {
    while (!at_end()) {
      ++position_;  // The comma.
      absl::Status status = parse_assignment();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status parse_assignment() {
    const size_t start = position_;
    position_ = std::min(text_.find_first_of("=,", start), text_.size());
    const absl::string_view name = text_.substr(start, position_ - start);
    const bool torus = preset_->node_fabric == NodeFabric::kTorus;
    const auto* info = std::find_if(std::begin(kKeys), std::end(kKeys),
                                    [name](const KeyInfo& each) { return each.name == name; });
    if (info == std::end(kKeys)) {
      return error(start, absl::StrCat("a key (", suggestion(name, key_names(torus)), ")"));
    }
    if (torus && !info->for_torus) {
      return error(start, absl::StrCat("one of ", absl::StrJoin(key_names(torus), ", "),
                                       " (a torus has neither switches nor NICs)"));
    }
    Assignment& assignment = assignments_[info - kKeys];
    if (assignment.given) {
      return error(start, absl::StrCat("each key once, but \"", name, "\" occurs twice"));
    }
    if (!at('=')) return error(position_, absl::StrCat("'=' after \"", name, "\""));
    const size_t value_at = ++position_;
    position_ = std::min(text_.find(',', value_at), text_.size());
    assignment = {start, value_at, text_.substr(value_at, position_ - value_at), true};
    return absl::OkStatus();
  }

  const Assignment& given(Key key) const { return assignments_[static_cast<size_t>(key)]; }

  template <typename Fabric>
  absl::Status parse_fabric(Key key, const std::vector<std::string>& names,
                            std::optional<Fabric> (*find)(absl::string_view),
                            std::optional<Fabric>& fabric) const {
    const Assignment& assignment = given(key);
    if (!assignment.given) return absl::OkStatus();
    fabric = find(assignment.value);
    if (fabric.has_value()) return absl::OkStatus();
    return error(assignment.value_at, suggestion(assignment.value, names));
  }

  absl::Status apply_nics(ClusterSpec& spec) const {
    const Assignment& assignment = given(Key::kNics);
    if (!assignment.given) return absl::OkStatus();
    int nics = 0;
    const bool digits = std::all_of(assignment.value.begin(), assignment.value.end(),
                                    [](char c) { return absl::ascii_isdigit(c); });
    if (!digits || !absl::SimpleAtoi(assignment.value, &nics) || nics < 1 || nics > kMaxWorldSize) {
      return error(assignment.value_at, absl::StrCat("a number of NICs from 1 to ", kMaxWorldSize));
    }
    if (spec.network_fabric == NetworkFabric::kEthernet && nics != 1) {
      return error(assignment.value_at, "1: ethernet has one NIC a node");
    }
    spec.nics_per_node = nics;
    return absl::OkStatus();
  }

  // Fabrics are read first, whatever the order of the keys, because other defaults follow from
  // them.
  absl::StatusOr<ClusterSpec> build() const {
    std::optional<NodeFabric> node;
    std::optional<NetworkFabric> network;
    absl::Status status = parse_fabric(Key::kNodeFabric, internal::node_fabric_names(),
                                       &internal::node_fabric_of, node);
    if (!status.ok()) return status;
    status = parse_fabric(Key::kNetworkFabric, internal::network_fabric_names(),
                          &internal::network_fabric_of, network);
    if (!status.ok()) return status;
    ClusterSpec spec = internal::usual_cluster(*preset_, shape_, node, network);
    for (size_t i = 0; i < kNumKeys; ++i) {
      const Key key = static_cast<Key>(i);
      if (!given(key).given || !is_quantity(key)) continue;
      const Quantity quantity = parse_quantity(given(key).value, info_of(key).dimension);
      if (!quantity.ok()) return error(given(key).value_at + quantity.position, quantity.expected);
      set_quantity(spec, key, quantity.value);
    }
    status = apply_nics(spec);
    if (!status.ok()) return status;
    return spec;
  }

  const absl::string_view text_;
  size_t position_ = 0;
  Shape shape_;
  const Preset* preset_ = nullptr;
  Assignment assignments_[kNumKeys];
};

// The short form, with every key whose value differs from the usual one. It may be incomplete, so
// the caller parses it again and compares.
std::string short_form(ClusterSpec spec, const Preset& preset, std::string text,
                       const Shape& shape) {
  const auto append = [&text](Key key, absl::string_view value) {
    absl::StrAppend(&text, ",", info_of(key).name, "=", value);
  };
  ClusterSpec usual = internal::usual_cluster(preset, shape);
  if (spec.node_fabric != NodeFabric::kTorus && preset.node_fabric != NodeFabric::kTorus) {
    if (spec.node_fabric != usual.node_fabric)
      append(Key::kNodeFabric, internal::name_of(spec.node_fabric));
    if (spec.network_fabric != usual.network_fabric) {
      append(Key::kNetworkFabric, internal::name_of(spec.network_fabric));
    }
    usual = internal::usual_cluster(preset, shape, spec.node_fabric, spec.network_fabric);
  }
  for (size_t i = 0; i < kNumKeys; ++i) {
    const Key key = static_cast<Key>(i);
    if (!is_quantity(key)) continue;
    const double value = get_quantity(spec, key);
    if (value != get_quantity(usual, key)) {
      append(key, format_quantity(value, info_of(key).dimension));
    }
  }
  if (spec.nics_per_node != usual.nics_per_node)
    append(Key::kNics, absl::StrCat(spec.nics_per_node));
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

}  // namespace

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
  if (absl::EndsWith(text, ".json")) return parse_file(text);
  if (absl::StartsWith(text, "{")) return internal::parse_cluster_json(text, "");
  return Parser(text).parse();
}

}  // namespace accelerate::simulator
