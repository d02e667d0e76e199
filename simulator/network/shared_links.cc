#include "simulator/network/shared_links.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace accelerate::simulator {
namespace {

// Smaller differences are rounding errors.
constexpr double kTolerance = 1e-9;
constexpr double kToleranceNs = 1e-3;
// Above it doubles do not count nanoseconds any more. No run takes as long.
constexpr double kLongestNs = 0x1p52;
// A program whose host never waits for its devices has the oldest uses forgotten.
constexpr size_t kMostUses = 4096;
// Who has not moved after so many changes of the links does not move any more.
constexpr int64_t kMostChanges = 100'000;

// The most that anyone gets of what there is of a link, divided by max-min fairness; infinite where
// the demands do not exceed it. Reorders `demands`.
double fair_level(std::vector<double>& demands, double left) {
  std::ranges::sort(demands);
  for (size_t i = 0; i < demands.size(); ++i) {
    const double equal = left / static_cast<double>(demands.size() - i);
    if (demands[i] > equal + kTolerance) return std::max(0.0, equal);
    left -= demands[i];
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

SharedLinks::SharedLinks(const ClusterSpec& links, const LinkSpeeds* speeds,
                         std::vector<int> counts_as)
    : bytes_per_ns_([&links] {
        const LinkBytes rates = link_rates(links);
        Shares bytes_per_ns = {};
        for (size_t i = 0; i < kNumLinksAtRank; ++i) {
          bytes_per_ns[i] = rates.*kLinksAtRank[i] / 1e9;
        }
        return bytes_per_ns;
      }()),
      ranks_per_node_(links.ranks_per_node),
      speeds_(speeds),
      counts_as_(std::move(counts_as)),
      timelines_(links.world_size()) {}

SharedLinks::Shares SharedLinks::demand_of(const LinkBytes& bytes, double duration_ns) const {
  Shares demand = {};
  for (size_t i = 0; i < kNumLinksAtRank; ++i) {
    const double crossed = bytes.*kLinksAtRank[i];
    if (crossed <= 0) continue;
    // Who has another rank's part of the NICs as well moves more than the own part can.
    demand[i] = std::min(1.0, crossed / (bytes_per_ns_[i] * duration_ns));
  }
  return demand;
}

// What a member demands of what there is of each link between the two times.
SharedLinks::Shares SharedLinks::mean_demand_of(const Member& member, const std::vector<int>& nodes,
                                                double start_ns, double end_ns) const {
  Shares demand = {};
  if (!(end_ns < kLongestNs)) return demand;
  for (size_t link = 0; link < kNumLinksAtRank; ++link) {
    const double crossed = member.bytes.*kLinksAtRank[link];
    if (crossed <= 0) continue;
    double whole_ns = 0;
    double now_ns = start_ns;
    for (int64_t changes = 0; now_ns < end_ns && changes < kMostChanges; ++changes) {
      const double until_ns = std::min(end_ns, speeds_->next_change_ns(now_ns));
      whole_ns += speeds_->left_at_rank(member.rank, link, nodes, now_ns) * (until_ns - now_ns);
      now_ns = until_ns;
    }
    if (whole_ns > 0) demand[link] = std::min(1.0, crossed / (bytes_per_ns_[link] * whole_ns));
  }
  return demand;
}

SharedLinks::Timeline& SharedLinks::timeline(int rank, int group) {
  std::vector<Timeline>& all = timelines_[rank];
  const auto found = std::ranges::find(all, group, &Timeline::group);
  return found != all.end() ? *found : all.emplace_back(Timeline{.group = group, .uses = {}});
}

SharedLinks::Interval SharedLinks::add(int group, int64_t ready_ns, int64_t alone_ns,
                                       absl::Span<const Member> members) {
  auto start_ns = static_cast<double>(ready_ns);
  for (const Member& member : members) {
    const std::deque<Use>& own = timeline(member.rank, group).uses;
    if (!own.empty()) start_ns = std::max(start_ns, own.back().end_ns);
  }
  if (start_ns >= kLongestNs) return {.start_ns = kNever, .end_ns = kNever};
  const bool may_be_slow = speeds_ != nullptr && !speeds_->empty();
  const std::vector<int> nodes = may_be_slow ? nodes_of(members) : std::vector<int>();
  std::vector<SharedMember> met = meetings(group, start_ns, alone_ns, members, nodes);
  const double end_ns = end_beside(met, start_ns, static_cast<double>(alone_ns));
  if (end_ns > start_ns) {
    ++version_;
    for (const Member& member : members) {
      const Shares demand = may_be_slow ? mean_demand_of(member, nodes, start_ns, end_ns)
                                        : demand_of(member.bytes, end_ns - start_ns);
      timeline(member.rank, group).uses.push_back({start_ns, end_ns, demand});
    }
  }
  const bool ends = end_ns < std::numeric_limits<double>::infinity();
  return {.start_ns = std::llround(start_ns), .end_ns = ends ? std::llround(end_ns) : kNever};
}

void SharedLinks::end_message(int group, absl::Span<const int> ranks, int64_t at_ns) {
  for (const int rank : ranks) {
    std::vector<Timeline>& all = timelines_[rank];
    const auto found = std::ranges::find(all, group, &Timeline::group);
    if (found == all.end()) continue;
    for (Use& use : found->uses) {
      use.end_ns = std::min(use.end_ns, static_cast<double>(at_ns));
    }
  }
}

std::vector<int> SharedLinks::nodes_of(absl::Span<const Member> members) const {
  std::vector<int> nodes;
  for (const Member& member : members) nodes.push_back(member.rank / ranks_per_node_);
  std::ranges::sort(nodes);
  nodes.erase(std::ranges::unique(nodes).begin(), nodes.end());
  return nodes;
}

const SharedLinks::Use* SharedLinks::Timeline::from(double now_ns) const {
  const auto next = std::ranges::upper_bound(uses, now_ns + kToleranceNs, {}, &Use::end_ns);
  return next != uses.end() ? &*next : nullptr;
}

// A rank's collectives demand of its part of the link; messages want all that they get.
double SharedLinks::left_for_messages(const Network::LinkOwners& link, int num_messages,
                                      double now_ns) const {
  const bool may_be_slow = speeds_ != nullptr && !speeds_->empty();
  const double whole = may_be_slow ? speeds_->left_of(link, now_ns) : 1;
  const double part = 1 / static_cast<double>(link.ranks.size());
  demands_.clear();
  for (const int rank : link.ranks) {
    for (const Timeline& each : timelines_[counts_as_.empty() ? rank : counts_as_[rank]]) {
      if (each.group < 0) continue;
      const Use* use = each.from(now_ns);
      if (use == nullptr || use->start_ns > now_ns + kToleranceNs) continue;
      if (use->demand[link.link] > 0) demands_.push_back(part * use->demand[link.link] * whole);
    }
  }
  if (demands_.empty()) return whole;
  demands_.insert(demands_.end(), num_messages, 1.0);
  return std::min(whole, num_messages * fair_level(demands_, whole));
}

double SharedLinks::next_change_ns(const Network::LinkOwners& link, double now_ns) const {
  double next_ns = std::numeric_limits<double>::infinity();
  if (speeds_ != nullptr) next_ns = speeds_->next_change_ns(now_ns);
  for (const int rank : link.ranks) {
    for (const Timeline& each : timelines_[counts_as_.empty() ? rank : counts_as_[rank]]) {
      const Use* use = each.group >= 0 ? each.from(now_ns) : nullptr;
      if (use == nullptr) continue;
      const bool begins = use->start_ns > now_ns + kToleranceNs;
      next_ns = std::min(next_ns, begins ? use->start_ns : use->end_ns);
    }
  }
  return next_ns;
}

double SharedLinks::left_between(int source_node, int target_node, double now_ns) const {
  const bool may_be_slow = speeds_ != nullptr && !speeds_->empty();
  return may_be_slow ? speeds_->left_between(source_node, target_node, now_ns) : 1;
}

std::vector<SharedLinks::SharedMember> SharedLinks::meetings(int group, double start_ns,
                                                             int64_t alone_ns,
                                                             absl::Span<const Member> members,
                                                             const std::vector<int>& nodes) {
  std::vector<SharedMember> met;
  const LinkSpeeds* const speeds = nodes.empty() ? nullptr : speeds_;
  for (const Member& member : members) {
    std::vector<Other> others;
    // Nothing is left of messages that are over.
    std::erase_if(timelines_[member.rank], [&](const Timeline& each) {
      return each.group < 0 && each.group != group &&
             (each.uses.empty() ||
              each.uses.back().end_ns <= static_cast<double>(member.not_before_ns));
    });
    for (Timeline& each : timelines_[member.rank]) {
      std::deque<Use>& uses = each.uses;
      const auto is_over = [&](const Use& use) {
        return use.end_ns <= static_cast<double>(member.not_before_ns);
      };
      while (!uses.empty() && (is_over(uses.front()) || uses.size() > kMostUses)) uses.pop_front();
      if (each.group == group || uses.empty() || uses.back().end_ns <= start_ns) continue;
      const auto next = std::ranges::upper_bound(uses, start_ns, {}, &Use::end_ns);
      others.push_back({.timeline = &each, .next = static_cast<size_t>(next - uses.begin())});
    }
    if (others.empty() && speeds == nullptr) continue;
    met.push_back({.demand = demand_of(member.bytes, static_cast<double>(alone_ns)),
                   .others = std::move(others),
                   .rank = member.rank,
                   .speeds = speeds,
                   .nodes = &nodes});
  }
  return met;
}

void SharedLinks::Use::begin_after(const Use& earlier) {
  const double delay_ns = std::max(0.0, earlier.end_ns - start_ns);
  start_ns += delay_ns;
  end_ns += delay_ns;
}

const SharedLinks::Use* SharedLinks::Other::on_links(double now_ns) const {
  if (next == timeline->uses.size()) return nullptr;
  const Use& use = timeline->uses[next];
  return use.start_ns <= now_ns ? &use : nullptr;
}

double SharedLinks::Other::changes_ns(double now_ns) const {
  if (next == timeline->uses.size()) return std::numeric_limits<double>::infinity();
  const Use& use = timeline->uses[next];
  return use.start_ns <= now_ns ? now_ns + (use.end_ns - now_ns) / pace : use.start_ns;
}

void SharedLinks::Other::advance(double from_ns, double to_ns, double delay_ns) {
  if (on_links(from_ns) == nullptr) return;
  std::deque<Use>& uses = timeline->uses;
  uses[next].end_ns += delay_ns;
  if (uses[next].end_ns > to_ns + kToleranceNs) return;
  ++next;
  if (next < uses.size()) uses[next].begin_after(uses[next - 1]);
}

void SharedLinks::Other::delay_later_ones() {
  std::deque<Use>& uses = timeline->uses;
  for (size_t i = next + 1; i < uses.size() && uses[i].start_ns < uses[i - 1].end_ns; ++i) {
    uses[i].begin_after(uses[i - 1]);
  }
}

// What those demand that are on the links then.
void SharedLinks::SharedMember::demands_of_others(size_t link, double now_ns, double whole,
                                                  std::vector<double>& demands) const {
  demands.clear();
  for (const Other& other : others) {
    if (const Use* use = other.on_links(now_ns)) demands.push_back(whole * use->demand[link]);
  }
}

double SharedLinks::SharedMember::left(size_t link, double now_ns) const {
  return speeds == nullptr ? 1 : speeds->left_at_rank(rank, link, *nodes, now_ns);
}

double SharedLinks::SharedMember::pace(double now_ns) const {
  double pace = 1;
  std::vector<double> demands;
  for (size_t link = 0; link < kNumLinksAtRank; ++link) {
    if (demand[link] <= 0) continue;
    const double whole = left(link, now_ns);
    demands_of_others(link, now_ns, whole, demands);
    demands.push_back(demand[link]);
    pace = std::min(pace, fair_level(demands, whole) / demand[link]);
  }
  return pace;
}

// Those on the links get less than before where the new collective, at that pace, takes from them.
void SharedLinks::SharedMember::slow_others(double pace, double now_ns) {
  for (Other& other : others) other.pace = 1;
  std::vector<double> demands;
  for (size_t link = 0; link < kNumLinksAtRank; ++link) {
    if (demand[link] <= 0) continue;
    const double whole = left(link, now_ns);
    demands_of_others(link, now_ns, whole, demands);
    const double before = fair_level(demands, whole);
    demands.push_back(pace * demand[link]);
    const double beside = fair_level(demands, whole);
    for (Other& other : others) {
      const Use* use = other.on_links(now_ns);
      if (use == nullptr || use->demand[link] <= 0) continue;
      const double had = std::min(whole * use->demand[link], before);
      if (had <= 0) continue;  // the link is down: what was told before stays
      const double paced = std::min(had, beside) / had;
      if (paced < other.pace) other.slowest = link;
      other.pace = std::min(other.pace, paced);
    }
  }
}

void SharedLinks::SharedMember::advance(double from_ns, double to_ns) {
  for (Other& other : others) other.advance(from_ns, to_ns, delay_ns(other, from_ns, to_ns));
}

// How much later the other one ends, after it has had its pace from the one time to the other.
double SharedLinks::SharedMember::delay_ns(const Other& other, double from_ns, double to_ns) const {
  double lost_ns = (1 - other.pace) * (to_ns - from_ns);
  const Use* const use = other.on_links(from_ns);
  if (speeds == nullptr || use == nullptr || lost_ns <= 0) return lost_ns;
  lost_ns *= left(other.slowest, from_ns);  // of the whole link
  double now_ns = use->end_ns;
  for (int64_t changes = 0; changes < kMostChanges && now_ns < kLongestNs; ++changes) {
    const double whole = left(other.slowest, now_ns);
    const double until_ns = speeds->next_change_ns(now_ns);
    if (whole > 0 && lost_ns <= whole * (until_ns - now_ns)) {
      return now_ns + lost_ns / whole - use->end_ns;
    }
    lost_ns -= whole > 0 ? whole * (until_ns - now_ns) : 0;
    now_ns = until_ns;
  }
  return std::numeric_limits<double>::infinity();
}

// Goes from one change of the demands to the next.
double SharedLinks::end_beside(std::vector<SharedMember>& meetings, double start_ns,
                               double alone_ns) {
  const bool is_alone = meetings.empty() || alone_ns <= 0;
  if (is_alone || start_ns + alone_ns > kLongestNs) return start_ns + alone_ns;
  double now_ns = start_ns;
  double left_ns = alone_ns;
  bool is_over = false;
  for (int64_t changes = 0; !is_over; ++changes) {
    double pace = 1;
    for (const SharedMember& meeting : meetings) pace = std::min(pace, meeting.pace(now_ns));
    const double end_ns = now_ns + left_ns / pace;
    double until_ns = end_ns;
    for (SharedMember& meeting : meetings) {
      meeting.slow_others(pace, now_ns);
      for (const Other& other : meeting.others) {
        until_ns = std::min(until_ns, other.changes_ns(now_ns));
      }
      if (meeting.speeds != nullptr) {
        until_ns = std::min(until_ns, meeting.speeds->next_change_ns(now_ns));
      }
    }
    if (!(until_ns < kLongestNs) || (pace <= 0 && changes > kMostChanges)) {
      return std::numeric_limits<double>::infinity();
    }
    for (SharedMember& meeting : meetings) meeting.advance(now_ns, until_ns);
    is_over = until_ns >= end_ns;
    left_ns -= pace * (until_ns - now_ns);
    now_ns = until_ns;
  }
  for (SharedMember& meeting : meetings) {
    for (Other& other : meeting.others) other.delay_later_ones();
  }
  return now_ns;
}

}  // namespace accelerate::simulator
