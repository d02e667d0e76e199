#include "simulator/trace/critical_path.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "simulator/trace/step_shares.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kNone = -1;

bool is_communication(SliceKind kind) {
  return kind == SliceKind::kCollective || kind == SliceKind::kMessage;
}

// Time in which the host does nothing but wait.
bool is_host_wait(const Slice& slice) {
  return slice.stream == kHostWaitStream ||
         (slice.stream == kHostStream && !is_communication(slice.kind));
}

// The slices of a step, by how they end.
class Slices {
 public:
  // Those that end behind `start_ns`.
  Slices(const Trace& trace, int64_t start_ns) : trace_(trace) {
    for (size_t i = 0; i < trace.slices.size(); ++i) {
      const Slice& slice = trace.slices[i];
      if (slice.end_ns <= start_ns) continue;
      const Key key{slice.rank, slice.end_ns, static_cast<int64_t>(i)};
      (is_host_wait(slice) ? host_waits_ : work_).push_back(key);
    }
    std::ranges::sort(work_);
    std::ranges::sort(host_waits_);
  }

  const Slice& operator[](int64_t index) const { return trace_.slices[index]; }

  // A rank's work that ends at that time, fits, and was recorded before `before`, as all is that a
  // slice waited for: of several, the last one of the first stream. kNone: none does.
  template <typename Fits>
  int64_t work_ending_at(int rank, int64_t end_ns, int64_t before, const Fits& fits) const {
    int64_t found = kNone;
    const auto track = [this](int64_t index) {
      const Slice& slice = trace_.slices[index];
      return std::tuple(slice.device, slice.stream, -index);
    };
    for (auto each = std::ranges::lower_bound(work_, Key{rank, end_ns, 0}); each != work_.end();
         ++each) {
      const auto& [of_rank, at_ns, index] = *each;
      if (of_rank != rank || at_ns != end_ns || index >= before) break;
      if (!fits(trace_.slices[index])) continue;
      if (found == kNone || track(index) < track(found)) found = index;
    }
    return found;
  }

  // The last wait of a rank's host that ends then or earlier.
  int64_t host_wait_before(int rank, int64_t at_ns, int64_t before) const {
    auto last = std::ranges::upper_bound(host_waits_,
                                         Key{rank, at_ns, std::numeric_limits<int64_t>::max()});
    while (last != host_waits_.begin()) {
      --last;
      if (std::get<0>(*last) != rank) break;
      if (std::get<2>(*last) < before) return std::get<2>(*last);
    }
    return kNone;
  }

 private:
  using Key = std::tuple<int32_t, int64_t, int64_t>;  // rank, end, index

  const Trace& trace_;
  std::vector<Key> work_;
  std::vector<Key> host_waits_;
};

class Walk {
 public:
  Walk(const Trace& trace, int64_t start_ns, int64_t end_ns)
      : trace_(trace),
        slices_(trace, start_ns),
        kernels_(kernel_activities(trace)),
        start_ns_(start_ns),
        now_ns_(end_ns) {}

  // Backwards.
  std::vector<PathSegment> run() {
    int64_t slice = slices_.work_ending_at(rank_, now_ns_, before_, is_work);
    while (now_ns_ > start_ns_) slice = slice == kNone ? pass_host() : pass_slice(slice);
    return std::move(path_);
  }

 private:
  static bool is_work(const Slice& slice) { return slice.kind != SliceKind::kWait; }

  // Adds what the rank did from `from_ns` to now, and goes there.
  void add(int64_t from_ns, PathPart part, uint32_t name, uint32_t group = 0) {
    from_ns = std::max(from_ns, start_ns_);
    if (from_ns >= now_ns_) return;
    // What lies behind the moment at which another rank began to wait is the straggler's.
    if (now_ns_ > awaited_from_ns_) {
      const int64_t split_ns = std::max(from_ns, awaited_from_ns_);
      append({split_ns, now_ns_, rank_, PathPart::kStraggler, name, 0});
      now_ns_ = split_ns;
    }
    if (from_ns < now_ns_) append({from_ns, now_ns_, rank_, part, name, group});
    now_ns_ = from_ns;
  }

  void append(const PathSegment& segment) {
    if (!path_.empty()) {
      PathSegment& last = path_.back();
      const auto what = [](const PathSegment& each) {
        return std::tie(each.rank, each.part, each.name, each.group);
      };
      if (last.start_ns == segment.end_ns && what(last) == what(segment)) {
        last.start_ns = segment.start_ns;
        return;
      }
    }
    path_.push_back(segment);
  }

  // The host's work down to its last wait. Returns the slice that the path goes on with, kNone
  // where that is the host.
  int64_t pass_host() {
    const int64_t wait = slices_.host_wait_before(rank_, now_ns_, before_);
    if (wait == kNone) {
      add(start_ns_, PathPart::kHost, 0);
      return kNone;
    }
    add(slices_[wait].end_ns, PathPart::kHost, 0);
    before_ = wait;
    const Slice& slice = slices_[wait];
    const int64_t cause = slice.kind == SliceKind::kDisk
                              ? kNone
                              : slices_.work_ending_at(rank_, slice.end_ns, wait, is_work);
    if (cause == kNone) {
      const bool is_disk = slice.kind == SliceKind::kDisk;
      add(slice.start_ns, is_disk ? PathPart::kDisk : PathPart::kHost, slice.name);
    }
    return cause;
  }

  // A slice that ends now. Returns as pass_host().
  int64_t pass_slice(int64_t index) {
    const Slice& slice = slices_[index];
    const bool communicates = is_communication(slice.kind) && slice.operation >= 0;
    add(slice.start_ns, part_of(slice), slice.name,
        communicates ? trace_.operations[slice.operation].group : 0);
    before_ = index;
    if (slice.started_by == StartedBy::kHost) return kNone;
    if (slice.started_by == StartedBy::kMembers && communicates) return pass_members(slice);
    if (slice.started_by != StartedBy::kEvent) {
      const int64_t earlier = ending_now([&slice](const Slice& other) {
        return is_work(other) && other.device == slice.device && other.stream == slice.stream;
      });
      if (earlier != kNone) return earlier;
    }
    const bool is_unknown = slice.started_by == StartedBy::kUnknown;
    if (is_unknown && communicates && wait_for(slice) != kNone) return pass_members(slice);
    return ending_now(is_work);
  }

  template <typename Fits>
  int64_t ending_now(const Fits& fits) const {
    return slices_.work_ending_at(rank_, now_ns_, before_, fits);
  }

  // The wait for the operation of a slice that starts now.
  int64_t wait_for(const Slice& slice) const {
    return ending_now([&slice](const Slice& other) {
      return other.kind == SliceKind::kWait && other.operation == slice.operation;
    });
  }

  // At the start of an operation that waited for its last member: goes on there.
  int64_t pass_members(const Slice& slice) {
    const TraceOperation& operation = trace_.operations[slice.operation];
    const int64_t wait = wait_for(slice);
    if (operation.last_rank < 0 || operation.last_rank == rank_) return ending_now(is_work);
    if (wait != kNone) awaited_from_ns_ = std::min(awaited_from_ns_, slices_[wait].start_ns);
    rank_ = operation.last_rank;
    const int64_t own = part_in(slice.operation);
    if (own == kNone) return kNone;
    before_ = own;
    return slices_[own].started_by == StartedBy::kHost ? kNone : ending_now(is_work);
  }

  // The present rank's slice of an operation, another part of which the path has just passed; kNone
  // if it has none. The slices of its members stand together, two for each at most.
  int64_t part_in(int64_t operation) const {
    const auto reach = 2 * static_cast<int64_t>(trace_.operations[operation].ranks.size());
    const auto size = static_cast<int64_t>(trace_.slices.size());
    const int64_t behind = std::min(size, before_ + reach);
    for (int64_t i = std::max<int64_t>(0, before_ - reach); i < behind; ++i) {
      const Slice& slice = trace_.slices[i];
      if (slice.operation == operation && slice.rank == rank_ && is_communication(slice.kind)) {
        return i;
      }
    }
    return kNone;
  }

  PathPart part_of(const Slice& slice) const {
    const std::optional<StepActivity> activity = activity_of(slice, kernels_);
    if (!activity) return slice.kind == SliceKind::kDisk ? PathPart::kDisk : PathPart::kHost;
    switch (*activity) {
      case StepActivity::kAttention: return PathPart::kAttention;
      case StepActivity::kProducts: return PathPart::kProducts;
      case StepActivity::kCopies: return PathPart::kCopies;
      case StepActivity::kCommunication: return PathPart::kCommunication;
      default: return PathPart::kOtherKernels;
    }
  }

  const Trace& trace_;
  const Slices slices_;
  const std::vector<StepActivity> kernels_;
  const int64_t start_ns_;
  // Where the path is.
  int64_t now_ns_;
  int rank_ = 0;
  int64_t before_ = std::numeric_limits<int64_t>::max();  // what comes next was recorded before
  // From then on a rank waited for the one that the path is at.
  int64_t awaited_from_ns_ = std::numeric_limits<int64_t>::max();
  std::vector<PathSegment> path_;
};

std::vector<PathShare> shares_of(const std::vector<PathSegment>& path) {
  std::vector<PathShare> shares;
  for (const PathSegment& segment : path) {
    const bool communicates = segment.part == PathPart::kCommunication;
    const PathShare of{.part = segment.part,
                       .name = communicates ? segment.name : 0,
                       .group = communicates ? segment.group : 0,
                       .rank = segment.part == PathPart::kStraggler ? segment.rank : -1};
    const auto same = [&of](const PathShare& each) {
      return std::tie(each.part, each.name, each.group, each.rank) ==
             std::tie(of.part, of.name, of.group, of.rank);
    };
    auto found = std::ranges::find_if(shares, same);
    if (found == shares.end()) found = shares.insert(shares.end(), of);
    ++found->segments;
    found->total_ns += segment.end_ns - segment.start_ns;
  }
  return shares;
}

}  // namespace

std::optional<CriticalPath> critical_path(const Trace& trace) {
  const std::optional<Interval> step = median_step(trace);
  if (!step) return std::nullopt;
  CriticalPath path{
      .step = step_times(trace)->median_step, .start_ns = step->start_ns, .end_ns = step->end_ns};
  std::vector<PathSegment> segments = Walk(trace, path.start_ns, path.end_ns).run();
  path.shares = shares_of(segments);
  // Ties by name and rank: the order of recording would depend on the interleaving of ranks.
  std::ranges::sort(path.shares, [&trace](const PathShare& a, const PathShare& b) {
    return std::tie(b.total_ns, a.part, trace.names[a.name], trace.names[a.group], a.rank) <
           std::tie(a.total_ns, b.part, trace.names[b.name], trace.names[b.group], b.rank);
  });
  std::set<int> ranks;
  for (const PathSegment& segment : segments) ranks.insert(segment.rank);
  path.ranks.assign(ranks.begin(), ranks.end());
  std::ranges::stable_sort(segments, [](const PathSegment& a, const PathSegment& b) {
    return a.end_ns - a.start_ns > b.end_ns - b.start_ns;
  });
  if (segments.size() > kLongestSegments) segments.resize(kLongestSegments);
  path.longest = std::move(segments);
  return path;
}

}  // namespace accelerate::simulator
