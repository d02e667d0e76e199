#include "simulator/network/flows.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/log/absl_check.h"

namespace accelerate::simulator {
namespace {

// Times this close count as equal, because doubles are rounded.
constexpr double kToleranceNs = 1e-3;

// A time with a fraction; it is as exact late in a run as at the start.
struct Instant {
  int64_t ns = 0;
  double fraction = 0;  // In [0, 1).

  Instant plus(double duration_ns) const {
    const double whole = std::floor(fraction + duration_ns);
    return {ns + static_cast<int64_t>(whole), fraction + duration_ns - whole};
  }
  static Instant of(double ns) {
    const double whole = std::floor(ns);
    return {static_cast<int64_t>(whole), ns - whole};
  }
  double as_double() const { return static_cast<double>(ns) + fraction; }
  double since(const Instant& earlier) const {
    return static_cast<double>(ns - earlier.ns) + (fraction - earlier.fraction);
  }
  int64_t rounded_up() const { return fraction > kToleranceNs ? ns + 1 : ns; }
  auto operator<=>(const Instant&) const = default;
};

// Longer than any run.
constexpr double kLongestNs = 0x1p60;
// Who has not ended after so many changes of the links does not end any more.
constexpr int kMostChanges = 100'000;

struct Flow {
  Flows::Id id = 0;
  // Empty for a flow without bytes to transfer: it ends when it begins.
  std::vector<int> links;
  double bytes = 0;
  int source_node = 0;
  int target_node = 0;
  // While it flows: the bytes left at `since`, and the bytes per nanosecond from then on.
  Instant since;
  double remaining = 0;
  double rate = 0;
  Instant end;

  Instant end_at_this_rate() const {
    if (links.empty() || remaining <= 0) return since;
    return since.plus(std::min(remaining / rate, kLongestNs));
  }
};

// The state of a flow before a step changed it.
struct Change {
  int slot;
  bool began;
  Instant since;
  double remaining;
  double rate;
  Instant end;
};
using Changes = std::vector<Change>;

// A set of small numbers that is cleared in constant time.
class Marks {
 public:
  void clear(size_t size) {
    if (marks_.size() < size) marks_.resize(size);
    ++current_;
  }
  bool insert(int index) { return std::exchange(marks_[index], current_) != current_; }

 private:
  std::vector<int64_t> marks_;
  int64_t current_ = 0;
};

}  // namespace

// The flows and their rates. The time of this class is the latest instant at which a rate changed;
// it is never ahead of the owner's clock, which is rounded up.
class Flows::Shares {
 public:
  Shares(const Network& network, const SharedLinks* shared) : network_(network), shared_(shared) {}

  void add(Flow flow, int64_t begins_ns) {
    const Id id = flow.id;
    waiting_.emplace(begins_ns, id, take_slot(std::move(flow)));
  }

  bool empty() const { return waiting_.empty() && ends_.empty() && ended_.empty(); }

  // Returns the flow that ends next, if one does. The flows that begin until then are undone
  // afterwards.
  std::optional<Completion> find_next() {
    if (!ended_.empty()) {
      return Completion{std::get<1>(*ended_.begin()), std::get<0>(*ended_.begin())};
    }
    Changes changes;
    go_on(&changes);
    const Instant end = earliest_end();
    if (end.since(changed_) >= kLongestNs / 2) {
      undo(changes);
      return std::nullopt;
    }
    Id first = std::numeric_limits<Id>::max();
    for (const auto& [ends, slot] : ends_) {
      if (ends.since(end) > kToleranceNs) break;
      first = std::min(first, slots_[slot].id);
    }
    undo(changes);
    return Completion{first, end.rounded_up()};
  }

  void finish_next() {
    if (ended_.empty()) {
      waiting_.erase(waiting_.begin(), go_on(nullptr));
      end_all_at(Instant(earliest_end()));
    }
    free_slots_.push_back(std::get<2>(*ended_.begin()));
    ended_.erase(ended_.begin());
  }

 private:
  using Queue = std::set<std::tuple<int64_t, Id, int>>;  // Time, id, slot.

  int take_slot(Flow flow) {
    if (free_slots_.empty()) {
      slots_.push_back(std::move(flow));
      return static_cast<int>(slots_.size()) - 1;
    }
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = std::move(flow);
    return slot;
  }

  // A flow must be in flight.
  const Instant& earliest_end() const { return ends_.begin()->first; }

  // Also true if no flow is in flight: then this flow must begin before any can end.
  bool begins_before_an_end(int64_t begins_ns) const {
    return ends_.empty() || earliest_end().since({begins_ns, 0}) >= -kToleranceNs;
  }

  // Begins flows, and shares links out again where they change, in the order of time, until a flow
  // ends before anything else happens. Returns the first flow that has not begun.
  Queue::iterator go_on(Changes* changes) {
    auto waiting = waiting_.begin();
    Instant now = changed_;
    if (shared_ != nullptr && shared_->version() != version_) {
      share_out(links_in_use(), now, changes);
      if (changes == nullptr) version_ = shared_->version();
    }
    for (int num_changes = 0;;) {
      const std::optional<Instant> change = next_change(now);
      const bool begins = waiting != waiting_.end() && begins_before_an_end(std::get<0>(*waiting));
      if (begins && !(change && *change < Instant{std::get<0>(*waiting), 0})) {
        now = std::max(now, Instant{std::get<0>(*waiting), 0});
        waiting = begin_all_at(std::get<0>(*waiting), waiting, changes);
        continue;
      }
      if (!change || earliest_end().since(*change) <= kToleranceNs) break;
      if (++num_changes > kMostChanges) break;
      now = *change;
      share_out(links_in_use(), now, changes);
    }
    if (changes == nullptr) changed_ = now;
    return waiting;
  }

  // When the links of the flows in flight change, if they do.
  std::optional<Instant> next_change(const Instant& now) {
    if (shared_ == nullptr) return std::nullopt;
    double next_ns = kLongestNs;
    for (const int link : links_in_use()) {
      next_ns = std::min(next_ns, shared_->next_change_ns(owners_of(link), now.as_double()));
    }
    return next_ns < kLongestNs ? std::optional(Instant::of(next_ns)) : std::nullopt;
  }

  // Those that flows in flight cross, each once.
  const std::vector<int>& links_in_use() {
    in_use_.clear();
    marked_links_.clear(slots_of_link_.size());
    for (const auto& [end, slot] : ends_) {
      for (const int link : slots_[slot].links) {
        if (marked_links_.insert(link)) in_use_.push_back(link);
      }
    }
    return in_use_;
  }

  const Network::LinkOwners& owners_of(int link) {
    if (owners_.size() <= static_cast<size_t>(link)) owners_.resize(link + 1);
    if (!owners_[link]) owners_[link] = network_.owners_of(link);
    return *owners_[link];
  }

  // The part of what the specification says, for the flows in flight on that link.
  double left_of(int link, const Instant& now) {
    if (shared_ == nullptr || slots_of_link_[link].empty()) return 1;
    return shared_->left_for_messages(
        owners_of(link), static_cast<int>(slots_of_link_[link].size()), now.as_double());
  }

  void set_end(int slot, const Instant& end) {
    Flow& flow = slots_[slot];
    auto node = ends_.extract({flow.end, slot});
    flow.end = end;
    node.value() = {end, slot};
    ends_.insert(std::move(node));
  }

  // Begins the flows from `waiting` on that begin at that time. Returns the first later flow.
  Queue::iterator begin_all_at(int64_t begins_ns, Queue::iterator waiting, Changes* changes) {
    const Instant now{begins_ns, 0};
    std::vector<int> links;
    for (; waiting != waiting_.end() && std::get<0>(*waiting) == begins_ns; ++waiting) {
      const int slot = std::get<2>(*waiting);
      Flow& flow = slots_[slot];
      remember(slot, true, changes);
      flow.since = now;
      flow.remaining = flow.bytes;
      flow.rate = 0;
      flow.end = flow.end_at_this_rate();
      ends_.emplace(flow.end, slot);
      for (int link : flow.links) {
        if (slots_of_link_.size() <= static_cast<size_t>(link)) slots_of_link_.resize(link + 1);
        slots_of_link_[link].push_back(slot);
      }
      links.insert(links.end(), flow.links.begin(), flow.links.end());
    }
    share_out(links, now, changes);
    return waiting;
  }

  void end_all_at(const Instant& now) {
    std::vector<int> links;
    while (!ends_.empty() && ends_.begin()->first.since(now) <= kToleranceNs) {
      const int slot = ends_.begin()->second;
      const Flow& flow = slots_[slot];
      ends_.erase(ends_.begin());
      for (int link : flow.links) std::erase(slots_of_link_[link], slot);
      links.insert(links.end(), flow.links.begin(), flow.links.end());
      ended_.emplace(now.rounded_up(), flow.id, slot);
    }
    changed_ = now;
    share_out(links, now, nullptr);
  }

  void remember(int slot, bool began, Changes* changes) const {
    if (changes == nullptr) return;
    const Flow& flow = slots_[slot];
    changes->push_back({slot, began, flow.since, flow.remaining, flow.rate, flow.end});
  }

  void undo(const Changes& changes) {
    for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
      Flow& flow = slots_[change->slot];
      if (change->began) {
        ends_.erase({flow.end, change->slot});
        for (auto link = flow.links.rbegin(); link != flow.links.rend(); ++link) {
          slots_of_link_[*link].pop_back();
        }
      } else {
        set_end(change->slot, change->end);
      }
      flow.since = change->since;
      flow.remaining = change->remaining;
      flow.rate = change->rate;
    }
  }

  void set_rate(int slot, double rate, const Instant& now, Changes* changes) {
    Flow& flow = slots_[slot];
    if (shared_ != nullptr) {
      rate *= shared_->left_between(flow.source_node, flow.target_node, now.as_double());
    }
    if (rate == flow.rate) return;
    remember(slot, false, changes);
    const double passed = std::max(0.0, now.since(flow.since));
    flow.remaining = std::max(0.0, flow.remaining - flow.rate * passed);
    flow.since = now;
    flow.rate = rate;
    set_end(slot, flow.end_at_this_rate());
  }

  // Finds the links that share flows with `seeds`, directly or through other links, each once.
  void find_component(const std::vector<int>& seeds) {
    marked_links_.clear(slots_of_link_.size());
    marked_slots_.clear(slots_.size());
    component_.clear();
    for (int link : seeds) {
      if (marked_links_.insert(link)) component_.push_back(link);
    }
    for (size_t i = 0; i < component_.size(); ++i) {
      for (int slot : slots_of_link_[component_[i]]) {
        if (!marked_slots_.insert(slot)) continue;
        for (int link : slots_[slot].links) {
          if (marked_links_.insert(link)) component_.push_back(link);
        }
      }
    }
  }

  // Progressive filling: all rates rise together, and when a link is full, its flows stop rising.
  // The link with the smallest share per rising flow is full first.
  void share_out(const std::vector<int>& seeds, const Instant& now, Changes* changes) {
    find_component(seeds);
    if (left_.size() < slots_of_link_.size()) {
      left_.resize(slots_of_link_.size());
      rising_.resize(slots_of_link_.size());
    }
    using Candidate = std::pair<double, int>;  // Share, link.
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> fullest;
    for (int link : component_) {
      left_[link] = network_.link_bytes_per_second()[link] / 1e9 * left_of(link, now);
      rising_[link] = static_cast<int>(slots_of_link_[link].size());
      if (rising_[link] > 0) fullest.emplace(left_[link] / rising_[link], link);
    }
    marked_slots_.clear(slots_.size());  // From here on: the flows whose rate is final.
    while (!fullest.empty()) {
      const auto [share, link] = fullest.top();
      fullest.pop();
      if (rising_[link] == 0) continue;
      // Shares only grow while other rates become final, so an outdated share is too small and
      // comes too early.
      const double current = left_[link] / rising_[link];
      if (current > share) {
        fullest.emplace(current, link);
        continue;
      }
      for (int slot : slots_of_link_[link]) {
        if (!marked_slots_.insert(slot)) continue;
        set_rate(slot, share, now, changes);
        for (int other : slots_[slot].links) {
          left_[other] = std::max(0.0, left_[other] - share);
          --rising_[other];
        }
      }
    }
  }

  const Network& network_;
  const SharedLinks* const shared_;
  int64_t version_ = 0;                                     // of shared_, which the rates follow
  Instant changed_;                                         // since when rates are what they are
  std::vector<std::optional<Network::LinkOwners>> owners_;  // by link, once asked for
  std::vector<Flow> slots_;
  std::vector<int> free_slots_;
  Queue waiting_;                           // Flows whose latency has not passed.
  Queue ended_;                             // Flows not yet returned to the owner.
  std::set<std::pair<Instant, int>> ends_;  // Flows in flight: the end at their present rate, slot.
  std::vector<std::vector<int>> slots_of_link_;
  // Scratch memory.
  Marks marked_links_;
  Marks marked_slots_;
  std::vector<int> in_use_;
  std::vector<int> component_;
  std::vector<double> left_;
  std::vector<int> rising_;
};

Flows::Flows(const Network& network, const SharedLinks* shared)
    : network_(network), shared_(shared), shares_(std::make_unique<Shares>(network, shared)) {}

Flows::~Flows() = default;

Flows::Id Flows::start(int source, int target, int64_t bytes, int64_t at_ns) {
  ABSL_CHECK_GE(bytes, 0);
  Network::Route route = network_.route(source, target);
  const int64_t begins_ns = std::max(at_ns, now_ns_) + route.latency_ns;
  if (bytes == 0) route.links.clear();
  // A flow that begins after the predicted end does not change the prediction.
  if (!next_.has_value() || begins_ns <= next_->at_ns) is_known_ = false;
  const Id id = next_id_++;
  const int ranks_per_node = network_.spec().ranks_per_node;
  shares_->add({.id = id,
                .links = std::move(route.links),
                .bytes = static_cast<double>(bytes),
                .source_node = source / ranks_per_node,
                .target_node = target / ranks_per_node},
               begins_ns);
  return id;
}

std::optional<Flows::Completion> Flows::next() const {
  const int64_t version = shared_ != nullptr ? shared_->version() : 0;
  if (!is_known_ || version != version_) {
    next_.reset();
    if (!shares_->empty()) next_ = shares_->find_next();
    if (next_) next_->at_ns = std::max(next_->at_ns, now_ns_);
    is_known_ = true;
    version_ = version;
  }
  return next_;
}

Flows::Completion Flows::finish_next() {
  const std::optional<Completion> completion = next();
  ABSL_CHECK(completion.has_value()) << "no flow is in flight";
  is_known_ = false;
  shares_->finish_next();
  now_ns_ = completion->at_ns;
  return *completion;
}

}  // namespace accelerate::simulator
