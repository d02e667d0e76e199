#include "simulator/c10d/fabric.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/network/link_use.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// The messages of SharedLinks have negative numbers as groups.
int group_of(Flows::Id message) { return static_cast<int>(-1 - message); }

}  // namespace

Fabric::Fabric(const ClusterSpec& spec, FoldPlan folds, Options options)
    : options_(std::move(options)),
      folds_(std::move(folds)),
      network_(spec),
      link_speeds_(network_.spec()),
      shared_links_(models_time()
                        ? std::optional<SharedLinks>(std::in_place, network_.links(), &link_speeds_,
                                                     executed().counts_as())
                        : std::nullopt),
      flows_(network_, shared_links_ ? &*shared_links_ : nullptr),
      call_order_(executed().num_tasks()),
      outcomes_(executed().num_tasks()),
      spot_check_(executed()) {
  for (int rank : executed().ranks()) logs_.emplace_back(rank);
}

int64_t Fabric::communicator_bytes(const std::vector<int>& ranks) const {
  const ClusterSpec& spec = network_.spec();
  const bool is_modelled = spec.device && spec.device->efficiency == Efficiency::kMeasured;
  if (!is_modelled || ranks.size() < 2) return 0;
  std::set<int> nodes;
  for (int rank : ranks) nodes.insert(rank / spec.ranks_per_node);
  CommunicatorShape shape{.ranks_per_node = static_cast<int>(ranks.size() / nodes.size()),
                          .spans_nodes = nodes.size() > 1};
  if (const std::optional<nccl::Tuning>& model = network_.costs_of(ranks).nccl) {
    // A large sum, for which NCCL prefers NVLS the most.
    constexpr int64_t kLarge = int64_t{1} << 30;
    const nccl::Algorithm best = model->choose(nccl::Collective::kAllReduce, kLarge).algorithm;
    shape.channels = model->graphs().channels;
    if (best == nccl::Algorithm::kNvls || best == nccl::Algorithm::kNvlsTree) {
      shape.nvls_channels = model->graphs().nvls_channels;
      shape.nvls_heads = model->graphs().nvls.channels;
    }
  }
  return simulator::communicator_bytes(*spec.device, shape);
}

Scheduler& Fabric::scheduler() {
  TORCH_CHECK(hooks_.scheduler != nullptr, options_.headline, ": the run is over");
  return *hooks_.scheduler;
}

void Fabric::host_waits(int64_t until_ns) {
  const int64_t from_ns = scheduler().now_ns();
  scheduler().advance_to(until_ns);
  record_wait(from_ns, SliceKind::kHost);
}

void Fabric::sleep_for(absl::Duration duration, SliceKind kind) {
  const int64_t from_ns = scheduler().now_ns();
  scheduler().sleep_for(duration);
  record_wait(from_ns, kind);
}

void Fabric::record_wait(int64_t from_ns, SliceKind kind) {
  const int64_t now_ns = scheduler().now_ns();
  if (recorder() == nullptr || now_ns == from_ns) return;
  recorder()->host_wait(running_rank(), from_ns, now_ns, kind);
}

void Fabric::start_flow(int source, int target, int64_t bytes, int64_t at_ns,
                        std::function<std::vector<int>(int64_t end_ns)> arrived) {
  const Flows::Id id = flows_.start(source, target, bytes, at_ns);
  new_messages_.push_back(id);
  under_way_.emplace(id, Message{.source = source,
                                 .target = target,
                                 .bytes = bytes,
                                 .at_ns = std::max(at_ns, flows_.now_ns()),
                                 .arrived = std::move(arrived)});
}

// What crosses the links of the executed ranks, each once.
std::vector<SharedLinks::Member> Fabric::members_of(int source, int target, int64_t bytes) const {
  std::vector<SharedLinks::Member> members;
  for (const auto& [rank, use] : message_link_use(network_.spec(), source, target)) {
    if (!executed().is_executed(rank)) continue;
    const LinkBytes crossing = use * static_cast<double>(bytes);
    const auto found = std::ranges::find(members, rank, &SharedLinks::Member::rank);
    if (found != members.end()) {
      found->bytes += crossing;
    } else {
      members.push_back({.rank = rank, .bytes = crossing, .not_before_ns = flows_.now_ns()});
    }
  }
  return members;
}

// Called where no rank can go on, so that the order in which ranks ran makes no difference.
void Fabric::share_with_new_messages() {
  if (new_messages_.empty()) return;
  const auto order = [this](Flows::Id id) {
    const Message& message = under_way_.at(id);
    return std::tuple(message.at_ns, message.source, message.target, message.bytes, id);
  };
  std::ranges::sort(new_messages_, {}, order);
  for (const Flows::Id id : std::exchange(new_messages_, {})) {
    const Message& message = under_way_.at(id);
    const Network::Route route = network_.route(message.source, message.target);
    if (!shared_links_ || route.links.empty() || message.bytes == 0) continue;
    double rate = network_.link_bytes_per_second()[route.links[0]];
    for (const int link : route.links) {
      rate = std::min(rate, network_.link_bytes_per_second()[link]);
    }
    shared_links_->add(group_of(id), message.at_ns + route.latency_ns,
                       std::llround(static_cast<double>(message.bytes) / rate * 1e9),
                       members_of(message.source, message.target, message.bytes));
  }
}

int64_t Fabric::oldest_use_ns(int64_t called_ns) const {
  const bool has_messages = !under_way_.empty() || waiting_messages_ > 0;
  return has_messages ? std::min(called_ns, flows_.now_ns()) : called_ns;
}

void Fabric::record_slow_links(absl::Span<const SharedLinks::Member> members, int64_t from_ns,
                               int64_t to_ns) {
  if (link_speeds_.empty() || faults() == nullptr) return;
  const std::vector<int> nodes = shared_links_->nodes_of(members);
  std::set<size_t> rules;
  for (const SharedLinks::Member& member : members) {
    for (const LinkSpeeds::Change* change :
         link_speeds_.touching(member.rank, member.bytes, nodes, static_cast<double>(from_ns),
                               static_cast<double>(to_ns))) {
      rules.insert(change->rule);
    }
  }
  for (const size_t rule : rules) faults()->touched({.rule = rule}, 1);
}

int64_t Fabric::next_event_ns() {
  share_with_new_messages();
  if (message_is_next()) return flows_.next()->at_ns;
  return call_order_.next_ns();
}

bool Fabric::message_is_next() const {
  if (under_way_.empty()) return false;
  const std::optional<Flows::Completion> next = flows_.next();
  return next && next->at_ns <= call_order_.next_ready_ns();
}

std::vector<int> Fabric::receive_next_message() {
  const Flows::Completion completion = flows_.finish_next();
  const Message message = std::move(under_way_.extract(completion.id).mapped());
  if (shared_links_) {
    std::vector<int> ranks;
    const auto members = members_of(message.source, message.target, message.bytes);
    for (const SharedLinks::Member& member : members) ranks.push_back(member.rank);
    shared_links_->end_message(group_of(completion.id), ranks, completion.at_ns);
    record_slow_links(members, message.at_ns, completion.at_ns);
  }
  return message.arrived(completion.at_ns);
}

void Fabric::end_rank(int rank, std::string failure) {
  log(rank).end(failure.empty() ? "ended normally" : "failed");
  failure.resize(std::min(failure.size(), failure.find('\n')));
  outcomes_[executed().task_of(rank)] = {
      .ended = true, .failure = std::move(failure), .ended_ns = scheduler().now_ns()};
  if (!waits_for_time_outs() || !has_groups_of(Semantics::kGloo)) return;
  for (int task = 0; task < executed().num_tasks(); ++task) scheduler().wake(task);
}

int Fabric::first_ended(const std::vector<int>& ranks) const {
  const auto found = std::ranges::find_if(ranks, [this](int rank) {
    return executed().is_executed(rank) && outcomes_[executed().task_of(rank)].ended;
  });
  return found == ranks.end() ? -1 : *found;
}

std::string Fabric::see_closed_connection(int rank) {
  const int64_t latency_ns =
      models_time() ? network_.route(rank, running_rank()).latency_ns : int64_t{0};
  scheduler().advance_to(outcomes_[executed().task_of(rank)].ended_ns + latency_ns);
  return absl::StrCat("the connection to rank ", rank, " was closed: rank ", rank, " ",
                      state_of(rank));
}

// What the rank waits for, or how it ended; empty if it does neither.
std::string Fabric::state_of(int rank) const {
  if (!executed().is_executed(rank)) {
    return absl::StrCat("folded, counts as rank ", executed().representative_of(rank));
  }
  const int task = executed().task_of(rank);
  const Outcome& outcome = outcomes_[task];
  if (!outcome.ended) return hooks_.scheduler->describe(task);
  if (outcome.failure.empty()) return "ended normally";
  return absl::StrCat("failed: ", outcome.failure);
}

void Fabric::save_states(const std::string& running) {
  if (recorder() == nullptr || !kept_states_.empty()) return;
  kept_states_ = ranks_at_failure();
  for (int rank = 0; rank < world_size(); ++rank) {
    std::string& state = kept_states_[rank].state;
    if (!state.empty()) continue;
    state = executed().task_of(rank) == scheduler().running() ? running : "running";
  }
}

std::vector<RankAtFailure> Fabric::ranks_at_failure() const {
  if (!kept_states_.empty()) return kept_states_;
  std::vector<RankAtFailure> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    ranks.push_back({.state = state_of(rank)});
    if (!executed().is_executed(rank)) continue;
    ranks.back().last_call = last_call(log(rank).snapshot(/*most=*/1));
  }
  return ranks;
}

std::string Fabric::stall_report() const {
  std::vector<std::pair<int, std::string>> texts;
  for (int rank = 0; rank < world_size(); ++rank) texts.emplace_back(rank, state_of(rank));
  // Hosts may be ahead of the scheduler.
  int64_t latest_ns = hooks_.scheduler->now_ns();
  for (int task = 0; task < executed().num_tasks(); ++task) {
    latest_ns = std::max(latest_ns, *hooks_.scheduler->clock_ns(task));
  }
  std::string down;
  const std::vector<std::string> links = link_speeds_.down(static_cast<double>(latest_ns));
  for (const std::string& link : links) absl::StrAppend(&down, "\nlinks are down: ", link);
  return absl::StrCat(options_.headline, ": no rank can make progress at virtual time ",
                      absl::FormatDuration(hooks_.scheduler->now()), "\n", lines_by_rank(texts),
                      down);
}

}  // namespace accelerate::simulator
