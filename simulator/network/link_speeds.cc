#include "simulator/network/link_speeds.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace accelerate::simulator {
namespace {

constexpr double kSteps = 64;
// Times this close count as equal, because doubles are rounded.
constexpr double kToleranceNs = 1e-3;

bool has(absl::Span<const int> numbers, int number) {
  return std::ranges::binary_search(numbers, number);
}

// Whether the change is of a group on these nodes; all are but those between two nodes.
bool is_of(const LinkSpeeds::Change& change, absl::Span<const int> nodes) {
  return !change.between ||
         (has(nodes, change.between->first) && has(nodes, change.between->second));
}

bool is_of_nics(size_t link) { return link == kNicOut || link == kNicIn; }

}  // namespace

double LinkSpeeds::Change::left(double now_ns) const {
  const double since_ns = now_ns - from_ns + kToleranceNs;
  if (since_ns < 0 || now_ns + kToleranceNs >= until_ns) return 1;
  if (period_ns > 0) return std::fmod(since_ns, period_ns) < period_ns / 2 ? 0 : 1;
  if (since_ns >= falls_ns) return part;
  return 1 - std::floor(since_ns / falls_ns * kSteps) / kSteps * (1 - part);
}

double LinkSpeeds::Change::changes_ns(double now_ns) const {
  const double since_ns = now_ns - from_ns + kToleranceNs;
  if (since_ns < 0) return from_ns;
  if (now_ns + kToleranceNs >= until_ns) return kNever;
  double next_ns = kNever;
  const double step_ns = period_ns > 0 ? period_ns / 2 : falls_ns / kSteps;
  if (step_ns > 0 && (period_ns > 0 || since_ns < falls_ns)) {
    next_ns = from_ns + (std::floor(since_ns / step_ns) + 1) * step_ns;
  }
  return std::min(next_ns, until_ns);
}

size_t LinkSpeeds::add(Change change) {
  changes_.push_back(std::move(change));
  ++version_;
  return changes_.size() - 1;
}

void LinkSpeeds::end(size_t number, double now_ns) {
  Change& change = changes_[number];
  if (change.until_ns <= now_ns) return;
  change.until_ns = now_ns;
  ++version_;
}

double LinkSpeeds::left_of_nic(int rank, int nic, size_t link, absl::Span<const int> nodes,
                               double now_ns) const {
  double left = 1;
  for (const Change& change : changes_) {
    const bool is_its = change.links[link] && has(change.ranks, rank) && has(change.nics, nic);
    if (is_its && is_of(change, nodes)) left *= change.left(now_ns);
  }
  return left;
}

double LinkSpeeds::left_at_rank(int rank, size_t link, absl::Span<const int> nodes,
                                double now_ns) const {
  double left = 1;
  if (is_of_nics(link)) {
    const int first_of_node = rank / spec_.ranks_per_node * spec_.nics_per_node;
    const auto [first, last] = internal::nics_of_local_rank(spec_, rank % spec_.ranks_per_node);
    for (int nic = first; nic < last; ++nic) {
      left = std::min(left, left_of_nic(rank, first_of_node + nic, link, nodes, now_ns));
    }
    return left;
  }
  for (const Change& change : changes_) {
    if (change.links[link] && has(change.ranks, rank)) left *= change.left(now_ns);
  }
  return left;
}

double LinkSpeeds::left_of(const Network::LinkOwners& owners, double now_ns) const {
  if (owners.nic >= 0) {
    // Without nodes: what is between two nodes is in left_between().
    return left_of_nic(owners.ranks.front(), owners.nic, owners.link, {}, now_ns);
  }
  double left = 1;
  for (const int rank : owners.ranks) {
    left = std::min(left, left_at_rank(rank, owners.link, {}, now_ns));
  }
  return left;
}

double LinkSpeeds::left_between(int source_node, int target_node, double now_ns) const {
  double left = 1;
  for (const Change& change : changes_) {
    if (!change.between) continue;
    const auto [from, to] = *change.between;
    const bool ahead = from == source_node && to == target_node;
    const bool back = from == target_node && to == source_node && !change.one_way;
    if (ahead || back) left *= change.left(now_ns);
  }
  return left;
}

double LinkSpeeds::next_change_ns(double now_ns) const {
  double next_ns = kNever;
  for (const Change& change : changes_) next_ns = std::min(next_ns, change.changes_ns(now_ns));
  return next_ns;
}

std::vector<const LinkSpeeds::Change*> LinkSpeeds::touching(int rank, const LinkBytes& bytes,
                                                            absl::Span<const int> nodes,
                                                            double from_ns, double to_ns) const {
  std::vector<const Change*> found;
  for (const Change& change : changes_) {
    if (to_ns <= change.from_ns || from_ns >= change.until_ns) continue;
    if (!has(change.ranks, rank) || !is_of(change, nodes)) continue;
    for (size_t link = 0; link < kNumLinksAtRank; ++link) {
      if (!change.links[link] || bytes.*kLinksAtRank[link] <= 0) continue;
      found.push_back(&change);
      break;
    }
  }
  return found;
}

std::vector<std::string> LinkSpeeds::down(double now_ns) const {
  std::vector<std::string> texts;
  for (const Change& change : changes_) {
    if (change.left(now_ns) <= 0 && change.changes_ns(now_ns) == kNever) {
      texts.push_back(change.text);
    }
  }
  return texts;
}

}  // namespace accelerate::simulator
