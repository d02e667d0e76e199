#include "simulator/c10d/fold_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/algorithm/container.h"
#include "accelerate/mesh/axis_set.h"
#include "simulator/core/random.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {
namespace {

// Distinct from the random streams of ranks, of background tasks and of faults.
constexpr uint64_t kSpotChecks = uint64_t{1} << 42;

// Equal keys have equal numbers, which count from 0 in the order of the first use.
template <typename Key>
class Numbers {
 public:
  int of(Key key) {
    const auto next = static_cast<int>(numbers_.size());
    return numbers_.emplace(std::move(key), next).first->second;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::map<Key, int> numbers_;
};

// A group of the mesh; `kind` stands for its axis and for the times of its collectives.
struct Group {
  int kind = 0;
  std::vector<int> ranks;
};

// A message that may be sent; `kind` stands for its latency.
struct Message {
  int kind = 0;
  int source = 0;
  int target = 0;
  std::vector<int> links;
};

// The axes along which some of the ranks differ from the first.
AxisSet axes_between(const Mesh& mesh, const std::vector<int>& ranks) {
  AxisSet axes;
  for (const MeshAxis axis : mesh.axes()) {
    const auto differs = [&](int rank) {
      return mesh.coordinate(rank, axis) != mesh.coordinate(ranks[0], axis);
    };
    if (std::ranges::any_of(ranks, differs)) axes |= AxisSet{axis};
  }
  return axes;
}

// The ranks of a mesh with their groups, and with the messages that they may send.
class Relations {
 public:
  Relations(const ClusterSpec& spec, const Mesh& mesh, const std::vector<MeshAxis>& apart)
      : spec_(spec), network_(spec), groups_of_(mesh.num_ranks()), messages_of_(mesh.num_ranks()) {
    std::set<std::vector<int>> of_rank_0;
    for (const MeshAxis axis : values<MeshAxis>()) {
      if (!mesh.has_groups_along(axis)) continue;
      // Axes along which ranks have the same neighbours share their groups.
      if (!of_rank_0.insert(mesh.group(0, axis)).second) continue;
      for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
        if (mesh.coordinate(rank, axis) == 0) add_group(axis, mesh.group(rank, axis));
      }
    }
    if (!spec.device) return;
    for (const MeshAxis axis : apart) {
      for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
        for (const int other : mesh.group(rank, axis)) {
          if (other != rank) add_message(rank, other);
        }
      }
    }
  }

  // Splits classes until ranks of one class cannot be told apart by their groups and messages.
  std::vector<int> refined(std::vector<int> classes) const {
    std::vector<int> messages(messages_.size());
    Numbers<double> bandwidths;
    std::vector<int> links;
    for (const double bandwidth : network_.link_bytes_per_second()) {
      links.push_back(bandwidths.of(bandwidth));
    }
    for (size_t before = 0;;) {
      Numbers<std::vector<int>> of_messages;
      for (size_t i = 0; i < messages_.size(); ++i) {
        const Message& each = messages_[i];
        std::vector<int> key = {messages[i], each.kind, classes[each.source], classes[each.target]};
        for (const int link : each.links) key.push_back(links[link]);
        messages[i] = of_messages.of(std::move(key));
      }
      const size_t num_links = split_links(messages, links);
      Numbers<std::vector<int>> of_groups;
      std::vector<int> groups;
      for (const Group& group : groups_) {
        std::vector<int> key;
        for (const int rank : group.ranks) key.push_back(classes[rank]);
        std::sort(key.begin(), key.end());
        key.push_back(group.kind);
        groups.push_back(of_groups.of(std::move(key)));
      }
      Numbers<std::vector<int>> of_ranks;
      for (size_t rank = 0; rank < classes.size(); ++rank) {
        std::vector<int> key = {classes[rank]};
        for (const int group : groups_of_[rank]) key.push_back(groups[group]);
        for (const int message : messages_of_[rank]) key.push_back(messages[message]);
        classes[rank] = of_ranks.of(std::move(key));
      }
      const size_t now = of_ranks.size() + of_messages.size() + num_links;
      if (std::exchange(before, now) == now) return classes;
    }
  }

  // Marks a rank as executed, and what the groups of executed ranks need besides.
  void execute(int rank, const std::vector<int>& classes, std::vector<bool>& executed) const {
    std::vector<int> added = {rank};
    executed[rank] = true;
    while (!added.empty()) {
      const int next = added.back();
      added.pop_back();
      for (const int number : groups_of_[next]) {
        std::set<int> present;
        for (const int member : groups_[number].ranks) {
          if (!present.insert(classes[member]).second || executed[member]) continue;
          executed[member] = true;
          added.push_back(member);
        }
      }
    }
  }

 private:
  void add_group(MeshAxis axis, std::vector<int> ranks) {
    const CollectiveCosts costs =
        spec_.device ? network_.costs_of(ranks, Beside::kItsAxis) : CollectiveCosts();
    for (const int rank : ranks) groups_of_[rank].push_back(static_cast<int>(groups_.size()));
    groups_.push_back({group_kinds_.of({static_cast<int>(axis), costs}), std::move(ranks)});
  }

  void add_message(int source, int target) {
    Network::Route route = network_.route(source, target);
    for (const int rank : {source, target}) {
      messages_of_[rank].push_back(static_cast<int>(messages_.size()));
    }
    messages_.push_back({latencies_.of(route.latency_ns), source, target, std::move(route.links)});
  }

  // Links are alike if messages of the same classes cross them. Returns the number of classes.
  size_t split_links(const std::vector<int>& messages, std::vector<int>& links) const {
    std::vector<std::vector<int>> crossing(links.size());
    for (size_t i = 0; i < messages_.size(); ++i) {
      for (const int link : messages_[i].links) crossing[link].push_back(messages[i]);
    }
    Numbers<std::vector<int>> numbers;
    for (size_t link = 0; link < links.size(); ++link) {
      std::sort(crossing[link].begin(), crossing[link].end());
      crossing[link].push_back(links[link]);
      links[link] = numbers.of(std::move(crossing[link]));
    }
    return numbers.size();
  }

  const ClusterSpec& spec_;
  const Network network_;
  Numbers<std::pair<int, CollectiveCosts>> group_kinds_;
  Numbers<int64_t> latencies_;
  std::vector<Group> groups_;
  std::vector<Message> messages_;
  // By rank, in the same order for all: along each axis, then by coordinate.
  std::vector<std::vector<int>> groups_of_;
  std::vector<std::vector<int>> messages_of_;
};

}  // namespace

FoldPlan::FoldPlan(const ClusterSpec& spec, const Folding& folding, const std::vector<int>& touched,
                   uint64_t seed)
    : executed_(spec.world_size()), mesh_(folding.mesh), counts_for_(spec.world_size()) {
  const int world_size = spec.world_size();
  TORCH_CHECK_VALUE(folding.spot_checks >= 0, "ClusterOptions::fold: ", folding.spot_checks,
                    " spot checks");
  TORCH_CHECK_VALUE(mesh_ || folding.along.empty(),
                    "ClusterOptions::fold names axes without a mesh");
  TORCH_CHECK_VALUE(!mesh_ || mesh_->num_ranks() == world_size, "ClusterOptions::fold: a mesh of ",
                    mesh_ ? mesh_->num_ranks() : 0, " ranks (", mesh_ ? mesh_->to_string() : "",
                    ") does not fit a cluster of ", world_size, " ranks");
  // Without a mesh it is one of replicas, which have no groups but the world.
  const Mesh mesh = mesh_ ? *mesh_ : Mesh({.dp_replicate = world_size});
  std::vector<MeshAxis> folded;
  for (const MeshAxis axis : folding.along) {
    const auto parts = parts_of(axis);
    folded.insert(folded.end(), parts.begin(), parts.end());
  }
  for (const MeshAxis axis : mesh.axes()) {
    if (folding.along.empty() ? axis == MeshAxis::kPp : !absl::c_linear_search(folded, axis)) {
      apart_.push_back(axis);
    }
  }
  std::vector<int> classes;
  Numbers<std::vector<int>> roles;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int> role;
    for (const MeshAxis axis : apart_) role.push_back(mesh.coordinate(rank, axis));
    role.push_back(absl::c_linear_search(touched, rank) ? rank : -1);
    classes.push_back(roles.of(std::move(role)));
  }
  const Relations relations(spec, mesh, apart_);
  classes = relations.refined(std::move(classes));

  std::vector<bool> executed(world_size);
  std::set<int> present;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!executed[rank] && !present.contains(classes[rank])) {
      relations.execute(rank, classes, executed);
    }
    if (executed[rank]) present.insert(classes[rank]);
  }
  DeterministicRandom random = DeterministicRandom::stream(seed, kSpotChecks);
  for (int left = folding.spot_checks; left > 0; --left) {
    std::vector<int> others;
    for (int rank = 0; rank < world_size; ++rank) {
      if (!executed[rank]) others.push_back(rank);
    }
    if (others.empty()) break;
    relations.execute(others[random.below(others.size())], classes, executed);
  }
  executed_ = ExecutedRanks(std::move(classes), executed);
  for (int rank = 0; rank < world_size; ++rank) {
    if (!executed[rank]) counts_for_[executed_.representative_of(rank)].push_back(rank);
  }
}

bool FoldPlan::allows_message(int source, int target) const {
  if (!executed_.folds()) return true;
  if (!mesh_ || !executed_.is_executed(source) || !executed_.is_executed(target)) return false;
  return std::ranges::any_of(apart_, [&](MeshAxis axis) {
    return absl::c_linear_search(mesh_->group(source, axis), target);
  });
}

// Ranks of one class differ along folded axes only, and so do those that they send to: the numbers
// of sender and receiver are as far apart.
std::vector<std::pair<int, int>> FoldPlan::copies_of_message(int source, int target) const {
  std::vector<std::pair<int, int>> copies;
  if (!executed_.folds()) return copies;
  for (const int rank : counts_for_[source]) copies.emplace_back(rank, rank + target - source);
  return copies;
}

std::vector<std::vector<int>> FoldPlan::copies_of_group(const std::vector<int>& ranks) const {
  std::vector<std::vector<int>> copies;
  if (!executed_.folds() || !mesh_) return copies;
  const AxisSet axes = axes_between(*mesh_, ranks);
  if (mesh_->group(ranks[0], axes) != ranks) return copies;
  for (const int member : ranks) {
    for (const int rank : counts_for_[member]) {
      if (mesh_->coordinate(rank, axes) != 0) continue;
      std::vector<int> copy = mesh_->group(rank, axes);
      const bool runs =
          std::ranges::any_of(copy, [this](int other) { return executed_.is_executed(other); });
      if (!runs) copies.push_back(std::move(copy));
    }
  }
  return copies;
}

}  // namespace accelerate::simulator
