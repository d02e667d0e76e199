#include "simulator/trace/link_sums.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// A link's sums over the ranks that share it.
struct Use {
  double bytes = 0;
  double bytes_of_steps = 0;
  int64_t busy_ns = 0;
};

double share(double bytes, double bytes_per_second, double ns) {
  return bytes_per_second > 0 && ns > 0 ? bytes / (bytes_per_second * ns * 1e-9) : 0;
}

bool is_disk(LinkKind kind) { return kind == LinkKind::kDiskRead || kind == LinkKind::kDiskWrite; }

// The links of a class, each with the sums of its ranks.
std::vector<Use> uses_of(const LinkClass& links, const std::vector<const RankLinks*>& by_rank,
                         const Trace& trace) {
  const int per_node = trace.ranks_per_node;
  const int nodes = (trace.world_size + per_node - 1) / per_node;
  const int count = links.links_per_node;
  std::vector<Use> uses(count == 0 ? 1 : static_cast<size_t>(nodes) * count);
  for (int rank = 0; rank < trace.world_size; ++rank) {
    const RankLinks* own = by_rank[rank];
    if (own == nullptr) continue;
    // Node's local rank l of R uses link floor(l * count / R), or links from there on.
    const int64_t local = rank % per_node;
    const int64_t first = local * count / per_node;
    const int64_t last = std::max(first + 1, (local + 1) * count / per_node);
    const double part = 1.0 / static_cast<double>(last - first);
    for (int64_t link = first; link < last; ++link) {
      Use& use = uses[static_cast<size_t>(rank / per_node) * count + link];
      use.bytes += part * own->bytes(links.kind);
      use.bytes_of_steps += part * own->bytes_of_steps(links.kind);
      const int64_t busy_ns = own->busy_ns(links.kind);
      // A disk works for one rank at a time; elsewhere ranks that share a link may use it at once.
      use.busy_ns = is_disk(links.kind) ? use.busy_ns + busy_ns : std::max(use.busy_ns, busy_ns);
    }
  }
  return uses;
}

std::string name_of(const LinkClass& links, int64_t number, const Trace& trace) {
  const int count = links.links_per_node;
  if (count == 0) return "all nodes";
  const int64_t node = number / count;
  const int64_t own = number % count;
  switch (links.kind) {
    case LinkKind::kNicOut:
    case LinkKind::kNicIn: return absl::StrCat("NIC ", own, " of node ", node);
    case LinkKind::kBridge:
    case LinkKind::kDiskRead:
    case LinkKind::kDiskWrite: return absl::StrCat("node ", node);
    default: break;
  }
  return absl::StrCat("rank ", node * trace.ranks_per_node + own / trace.devices_per_rank);
}

}  // namespace

void RankLinks::add(LinkKind kind, double bytes, int64_t start_ns, int64_t end_ns) {
  Link& link = links_[index(kind)];
  link.bytes += bytes;
  link.busy.add_communication({start_ns, end_ns});
}

void RankLinks::end_step() {
  for (Link& link : links_) {
    link.until_last_step = link.bytes;
    if (steps_ == 0) link.until_first_step = link.bytes;
  }
  ++steps_;
}

double RankLinks::bytes_of_steps(LinkKind kind) const {
  const Link& link = links_[index(kind)];
  return steps_ > 1 ? link.until_last_step - link.until_first_step : link.until_last_step;
}

LinkSummary summarise_links(const LinkClass& links, const std::vector<const RankLinks*>& by_rank,
                            const Trace& trace, int64_t elapsed_ns) {
  const std::vector<Use> uses = uses_of(links, by_rank, trace);
  const auto more = [](const Use& a, const Use& b) {
    return std::pair(a.bytes_of_steps, a.bytes) < std::pair(b.bytes_of_steps, b.bytes);
  };
  const auto worst = std::ranges::max_element(uses, more);
  LinkSummary summary{.kind = links.kind,
                      .links = static_cast<int64_t>(uses.size()),
                      .bytes_per_second = links.bytes_per_second,
                      .least_bytes = uses[0].bytes,
                      .most_bytes = worst->bytes,
                      .worst = name_of(links, worst - uses.begin(), trace),
                      .worst_busy_ns = worst->busy_ns};
  double of_steps = 0;
  for (const Use& use : uses) {
    summary.bytes += use.bytes;
    summary.least_bytes = std::min(summary.least_bytes, use.bytes);
    summary.mean_busy_ns += static_cast<double>(use.busy_ns) / static_cast<double>(uses.size());
    of_steps += use.bytes_of_steps;
  }
  const double count = static_cast<double>(uses.size());
  const double rate = links.bytes_per_second;
  summary.use = share(summary.bytes / count, rate, static_cast<double>(elapsed_ns));
  summary.worst_use = share(worst->bytes, rate, static_cast<double>(elapsed_ns));
  if (const std::optional<StepTimes> times = step_times(trace)) {
    // As step_times(): without the first step if there are others.
    const auto steps = static_cast<double>(std::max<int64_t>(1, times->steps - 1));
    summary.step_bytes = of_steps / count / steps;
    summary.step_use = share(summary.step_bytes, rate, times->mean_ns);
    summary.worst_step_use = share(worst->bytes_of_steps / steps, rate, times->mean_ns);
  }
  return summary;
}

}  // namespace accelerate::simulator
