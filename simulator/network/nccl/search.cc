#include "simulator/network/nccl/search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "simulator/hardware/presets.h"

namespace accelerate::simulator::nccl {
namespace {

constexpr double kGiga = 1e9;
// Sums of speeds such as 17.5 and 0.12 are compared with the speed of a link.
constexpr double kRounding = 1e-9;

// NCCL counts 12 GB/s for sixteen lanes of PCIe 3.0, for which data sheets say 16 (topo.h: PCI_BW).
constexpr double kShareOfSlot = 12.0 / 16;
// Two NICs of 1 us and three switches of 300 ns: a network at which NCCL's table of latencies is
// aimed. An estimate; the vendor states no latency of its own.
constexpr double kUsualNetworkUs = 2.9;

std::optional<Generation> generation_of(const DeviceModel& device) {
  const Preset* preset = find_preset(device.name);
  if (preset == nullptr || preset->compute_capability < 80) return std::nullopt;
  if (preset->compute_capability < 90) return Generation::kAmpere;
  return preset->compute_capability < 100 ? Generation::kHopper : Generation::kBlackwell;
}

int times_in(double speed, double link) {
  // More channels than any version has need not be counted.
  constexpr double kMany = 1024;
  return static_cast<int>(std::min(kMany, link / speed * (1 + kRounding)));
}

// Counts channels in one kind of node.
class Counter {
 public:
  Counter(const Machine& machine, const Node& node, bool one_node)
      : machine_(machine), node_(node), one_node_(one_node) {}

  const Node& node() const { return node_; }
  bool one_node() const { return one_node_; }

  // The most rings at one speed. A ring inside one node leaves every GPU. Between nodes, and in a
  // tree, its last GPU sends nothing over NVLink; which GPU is last differs from channel to channel
  // where each has a NIC.
  int rings(double speed, int most) const {
    if (one_node_) return std::min(most, times_in(speed, machine_.nvlink));
    int channels = std::min(most, over_network(speed));
    while (channels > 0 && !fit_in_node(channels, speed)) --channels;
    return channels;
  }

  bool fit_trees(int channels, double in_node, double between_nodes) const {
    return fit_in_node(channels, in_node) && (one_node_ || over_network(between_nodes) >= channels);
  }

  // The most heads: every GPU sends what each head collects, and a head once more.
  int heads(double speed) const {
    const int in_node = std::min(node_.gpus, times_in(speed, machine_.nvlink) - 1);
    return one_node_ ? in_node : std::min(in_node, over_network(speed));
  }
  bool fit_heads(int channels, double between_nodes) const {
    return one_node_ || over_network(between_nodes) >= channels;
  }

 private:
  int over_network(double speed) const { return node_.nics * times_in(speed, machine_.nic); }

  bool fit_in_node(int channels, double speed) const {
    if (node_.gpus < 2) return true;
    const bool takes_turns = one_node_ || node_.nics >= node_.gpus;
    const int busiest = takes_turns ? channels - channels / node_.gpus : channels;
    return busiest * speed <= machine_.nvlink * (1 + kRounding);
  }

  const Machine& machine_;
  const Node& node_;
  const bool one_node_;
};

// Channels are used twice at half the speed, unless a few of them keep the links busy.
void duplicate(Generation generation, int most, Graph& graph) {
  constexpr double kSlow = 25;
  constexpr double kFast = 50;
  constexpr int kFew = 4;
  if (graph.in_node < kSlow) return;
  if (generation != Generation::kAmpere && graph.in_node < kFast && graph.channels > kFew) return;
  const int channels = std::min(2 * graph.channels, most);
  const int parts = (channels + graph.channels - 1) / graph.channels;
  graph = {channels, graph.in_node / parts, graph.between_nodes / parts};
}

// The search goes from the fastest speed down to about half of the best one.
constexpr double kWorthTrying = 0.49;

Graph search_rings(const Machine& machine, const Counter& counter,
                   const std::vector<double>& speeds, int most) {
  Graph best;
  for (const double speed : speeds) {
    if (best.channels > 0 && speed / best.in_node <= kWorthTrying) break;
    const int channels = counter.rings(speed, most);
    if (channels * speed > best.channels * best.in_node) best = {channels, speed, speed};
    if (best.channels * best.in_node >= machine.nvlink) break;
  }
  // No speed of the table is as slow as the link; NCCL would assume 0.1 GB/s.
  if (best.channels == 0) {
    const double speed =
        counter.one_node() ? machine.nvlink : std::min(machine.nvlink, machine.nic);
    best = {1, speed, speed};
  }
  duplicate(machine.generation, most, best);
  return best;
}

// As many trees as rings. Then more speed in the node, up to twice that between nodes.
Graph search_trees(const Counter& counter, const std::vector<double>& speeds, const Graph& ring) {
  for (size_t i = 0; i < speeds.size(); ++i) {
    if (!counter.fit_trees(ring.channels, speeds[i], speeds[i])) continue;
    Graph tree = {ring.channels, speeds[i], speeds[i]};
    // A node of one GPU has no traffic inside.
    if (counter.one_node() || counter.node().gpus < 2) return tree;
    while (i-- > 0 && tree.in_node < 2 * tree.between_nodes &&
           counter.fit_trees(tree.channels, speeds[i], tree.between_nodes)) {
      tree.in_node = speeds[i];
    }
    return tree;
  }
  return ring;
}

// A head for each GPU, if the links allow it: more heads win, and then more speed. Then more speed
// between nodes, up to twice that in the node.
Graph search_nvls(const Counter& counter, const std::vector<double>& speeds) {
  Graph best;
  size_t at = 0;
  for (size_t i = 0; i < speeds.size(); ++i) {
    if (best.channels > 0 && speeds[i] / best.in_node <= kWorthTrying) break;
    const int channels = counter.heads(speeds[i]);
    if (channels < (counter.one_node() ? counter.node().gpus : 1)) continue;
    if (channels <= best.channels && channels * speeds[i] <= best.channels * best.in_node) continue;
    best = {channels, speeds[i], speeds[i]};
    at = i;
  }
  while (best.channels > 0 && at-- > 0 && best.between_nodes < 2 * best.in_node &&
         counter.fit_heads(best.channels, speeds[at])) {
    best.between_nodes = speeds[at];
  }
  return best;
}

// Nodes agree on what the poorest one can do.
void agree(const Graph& other, Graph& graph) {
  graph.channels = std::min(graph.channels, other.channels);
  graph.in_node = std::min(graph.in_node, other.in_node);
  graph.between_nodes = std::min(graph.between_nodes, other.between_nodes);
}

// The channels that run, by connect.cc.
int running_channels(const Machine& machine, const Constants& constants, bool one_node,
                     const Graph& ring) {
  constexpr double kFast = 45;
  constexpr int kFew = 16;
  int channels = std::min(constants.max_channels, 2 * ring.channels);
  const bool has_few =
      machine.version < 22000 ? 2 * channels <= constants.max_channels : channels < kFew;
  if (machine.generation != Generation::kAmpere && !one_node && ring.in_node > kFast && has_few) {
    channels *= 2;
  }
  return channels;
}

int running_nvls_channels(const Machine& machine, const Constants& constants, bool one_node) {
  constexpr int kOfHopper = 16;
  constexpr int kOfBlackwell = 32;
  if (machine.generation == Generation::kHopper) return kOfHopper;
  return one_node ? constants.nvls_channels_on_one_node : kOfBlackwell;
}

}  // namespace

bool applies_to(const ClusterSpec& spec) {
  return spec.device.has_value() && spec.node_fabric == NodeFabric::kSwitch &&
         generation_of(*spec.device).has_value();
}

Machine machine_of(const ClusterSpec& spec, int64_t network_ns) {
  const Constants& constants = constants_of(spec.nccl_version);
  const Generation generation = *generation_of(*spec.device);
  const auto i = static_cast<size_t>(generation);
  return {
      .version = spec.nccl_version,
      .generation = generation,
      .nvlink = spec.node_link.bytes_per_second / kGiga * constants.nvlink[i] /
                constants.nvlink_of_data_sheet[i],
      .nic =
          std::min(spec.nic.bytes_per_second, kShareOfSlot * spec.device->host_bytes_per_second) /
          kGiga,
      // NVIDIA's own servers: DGX A100 has CPUs by AMD, DGX H100, H200 and B200 by Intel (data
      // sheets).
      .has_amd_cpus = generation == Generation::kAmpere,
      .extra_network_us = std::max(0.0, static_cast<double>(network_ns) / 1000 - kUsualNetworkUs)};
}

Graphs search(const Machine& machine, const Shape& shape) {
  const Constants& constants = constants_of(machine.version);
  const auto i = static_cast<size_t>(machine.generation);
  const bool one_node = shape.nodes == 1;
  const std::vector<double>& speeds =
      one_node ? constants.node_speeds[i] : constants.network_speeds[i];
  constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  constexpr Graph kAny = {std::numeric_limits<int>::max(), kUnlimited, kUnlimited};
  Graphs graphs = {.ring = kAny, .tree = kAny, .nvls = kAny, .rings_are_alike = true};
  for (const Node& node : shape.kinds) {
    const Counter counter(machine, node, one_node);
    const Graph ring = search_rings(machine, counter, speeds, constants.max_channels / 2);
    const Graph tree = search_trees(counter, speeds, ring);
    Graph nvls;
    if (machine.generation != Generation::kAmpere && node.gpus >= 2) {
      nvls = search_nvls(counter, speeds);
    }
    agree(ring, graphs.ring);
    agree(tree, graphs.tree);
    agree(nvls, graphs.nvls);
    if (!one_node && std::min(node.gpus, node.nics) > 1) graphs.rings_are_alike = false;
    if (node.gpus == 1) graphs.trees_are_chains = true;
  }
  graphs.tree.channels = graphs.ring.channels =
      std::min(graphs.ring.channels, graphs.tree.channels);
  graphs.channels = running_channels(machine, constants, one_node, graphs.ring);
  if (graphs.nvls.channels > 0) {
    graphs.nvls_channels = running_nvls_channels(machine, constants, one_node);
  }
  return graphs;
}

}  // namespace accelerate::simulator::nccl
