#include "simulator/c10d/fabric.h"

#include <algorithm>
#include <set>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {

Fabric::Fabric(const ClusterSpec& spec, FoldPlan folds, Options options)
    : options_(std::move(options)),
      folds_(std::move(folds)),
      network_(spec),
      flows_(network_),
      call_order_(executed().num_tasks()),
      outcomes_(executed().num_tasks()),
      spot_check_(executed()) {
  if (models_time()) shared_links_.emplace(network_.links());
  for (int rank : executed().ranks()) logs_.emplace_back(rank);
}

Fabric::~Fabric() = default;

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
  TORCH_CHECK(scheduler_ != nullptr, options_.headline, ": the run is over");
  return *scheduler_;
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
  under_way_.emplace(flows_.start(source, target, bytes, at_ns), std::move(arrived));
}

int64_t Fabric::next_event_ns() const {
  if (message_is_next()) return flows_.next()->at_ns;
  return call_order_.next_ns();
}

bool Fabric::message_is_next() const {
  return !under_way_.empty() && flows_.next()->at_ns <= call_order_.next_ready_ns();
}

std::vector<int> Fabric::receive_next_message() {
  const Flows::Completion completion = flows_.finish_next();
  auto arrived = under_way_.extract(completion.id);
  return arrived.mapped()(completion.at_ns);
}

void Fabric::end_rank(int rank, std::string failure) {
  log(rank).end(failure.empty() ? "ended normally" : "failed");
  failure.resize(std::min(failure.size(), failure.find('\n')));
  outcomes_[executed().task_of(rank)] = {.ended = true, .failure = std::move(failure)};
}

// What the rank waits for, or how it ended; empty if it does neither.
std::string Fabric::state_of(int rank) const {
  if (!executed().is_executed(rank)) {
    return absl::StrCat("folded, counts as rank ", executed().representative_of(rank));
  }
  const int task = executed().task_of(rank);
  const Outcome& outcome = outcomes_[task];
  if (!outcome.ended) return scheduler_->describe(task);
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
    if (executed().is_executed(rank)) ranks.back().last_call = last_call(log(rank).snapshot());
  }
  return ranks;
}

std::string Fabric::stall_report() const {
  std::vector<std::pair<int, std::string>> texts;
  for (int rank = 0; rank < world_size(); ++rank) texts.emplace_back(rank, state_of(rank));
  return absl::StrCat(options_.headline, ": no rank can make progress at virtual time ",
                      absl::FormatDuration(scheduler_->now()), "\n", lines_by_rank(texts));
}

std::vector<OperationHistory> Fabric::histories(const std::vector<int>& ranks) const {
  std::vector<OperationHistory> histories;
  for (int rank : ranks) histories.push_back(log(rank).snapshot());
  return histories;
}

}  // namespace accelerate::simulator
