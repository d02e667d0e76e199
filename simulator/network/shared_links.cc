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

constexpr std::array kLinks = {&LinkBytes::node_out, &LinkBytes::node_in, &LinkBytes::bridge,
                               &LinkBytes::nic_out, &LinkBytes::nic_in};

// The most that anyone gets of a link that is divided by max-min fairness; infinite where the
// demands do not exceed it. Reorders `demands`.
double fair_level(std::vector<double>& demands) {
  std::ranges::sort(demands);
  double left = 1;
  for (size_t i = 0; i < demands.size(); ++i) {
    const double equal = left / static_cast<double>(demands.size() - i);
    if (demands[i] > equal + kTolerance) return equal;
    left -= demands[i];
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

SharedLinks::SharedLinks(const ClusterSpec& links)
    : bytes_per_ns_([&links] {
        const LinkBytes rates = link_rates(links);
        Shares bytes_per_ns = {};
        for (size_t i = 0; i < kNumLinks; ++i) bytes_per_ns[i] = rates.*kLinks[i] / 1e9;
        return bytes_per_ns;
      }()),
      timelines_(links.world_size()) {}

SharedLinks::Shares SharedLinks::demand_of(const LinkBytes& bytes, double duration_ns) const {
  Shares demand = {};
  for (size_t i = 0; i < kNumLinks; ++i) {
    const double crossed = bytes.*kLinks[i];
    if (crossed <= 0) continue;
    // Who has another rank's part of the NICs as well moves more than the own part can.
    demand[i] = std::min(1.0, crossed / (bytes_per_ns_[i] * duration_ns));
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
  std::vector<Meeting> met = meetings(group, start_ns, alone_ns, members);
  const double end_ns = end_beside(met, start_ns, static_cast<double>(alone_ns));
  if (end_ns > start_ns) {
    for (const Member& member : members) {
      const Shares demand = demand_of(member.bytes, end_ns - start_ns);
      timeline(member.rank, group).uses.push_back({start_ns, end_ns, demand});
    }
  }
  return {.start_ns = std::llround(start_ns), .end_ns = std::llround(end_ns)};
}

std::vector<SharedLinks::Meeting> SharedLinks::meetings(int group, double start_ns,
                                                        int64_t alone_ns,
                                                        absl::Span<const Member> members) {
  std::vector<Meeting> met;
  for (const Member& member : members) {
    std::vector<Other> others;
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
    if (others.empty()) continue;
    met.push_back({.demand = demand_of(member.bytes, static_cast<double>(alone_ns)),
                   .others = std::move(others)});
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

void SharedLinks::Other::advance(double from_ns, double to_ns) {
  if (on_links(from_ns) == nullptr) return;
  std::deque<Use>& uses = timeline->uses;
  uses[next].end_ns += (1 - pace) * (to_ns - from_ns);
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
void SharedLinks::Meeting::demands_of_others(size_t link, double now_ns,
                                             std::vector<double>& demands) const {
  demands.clear();
  for (const Other& other : others) {
    if (const Use* use = other.on_links(now_ns)) demands.push_back(use->demand[link]);
  }
}

double SharedLinks::Meeting::pace(double now_ns) const {
  double pace = 1;
  std::vector<double> demands;
  for (size_t link = 0; link < kNumLinks; ++link) {
    if (demand[link] <= 0) continue;
    demands_of_others(link, now_ns, demands);
    demands.push_back(demand[link]);
    pace = std::min(pace, fair_level(demands) / demand[link]);
  }
  return pace;
}

// Those on the links get less than before where the new collective, at that pace, takes from them.
void SharedLinks::Meeting::slow_others(double pace, double now_ns) {
  for (Other& other : others) other.pace = 1;
  std::vector<double> demands;
  for (size_t link = 0; link < kNumLinks; ++link) {
    if (demand[link] <= 0) continue;
    demands_of_others(link, now_ns, demands);
    const double before = fair_level(demands);
    demands.push_back(pace * demand[link]);
    const double beside = fair_level(demands);
    for (Other& other : others) {
      const Use* use = other.on_links(now_ns);
      if (use == nullptr || use->demand[link] <= 0) continue;
      const double had = std::min(use->demand[link], before);
      other.pace = std::min(other.pace, std::min(had, beside) / had);
    }
  }
}

// Goes from one change of the demands to the next.
double SharedLinks::end_beside(std::vector<Meeting>& meetings, double start_ns, double alone_ns) {
  if (meetings.empty() || start_ns + alone_ns > kLongestNs) return start_ns + alone_ns;
  double now_ns = start_ns;
  double left_ns = alone_ns;
  bool is_over = false;
  while (!is_over) {
    double pace = 1;
    for (const Meeting& meeting : meetings) pace = std::min(pace, meeting.pace(now_ns));
    const double end_ns = now_ns + left_ns / pace;
    double until_ns = end_ns;
    for (Meeting& meeting : meetings) {
      meeting.slow_others(pace, now_ns);
      for (const Other& other : meeting.others) {
        until_ns = std::min(until_ns, other.changes_ns(now_ns));
      }
    }
    for (Meeting& meeting : meetings) {
      for (Other& other : meeting.others) other.advance(now_ns, until_ns);
    }
    is_over = until_ns >= end_ns;
    left_ns -= pace * (until_ns - now_ns);
    now_ns = until_ns;
  }
  for (Meeting& meeting : meetings) {
    for (Other& other : meeting.others) other.delay_later_ones();
  }
  return now_ns;
}

}  // namespace accelerate::simulator
