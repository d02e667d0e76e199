#include "simulator/c10d/fabric.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <ATen/core/Formatting.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "simulator/device/host_call.h"
#include "simulator/device/shapes.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// Nothing for a tensor whose values are not computed.
std::optional<uint32_t> checksum(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return 0;
  if (!has_values(tensor)) return std::nullopt;
  // The program's profiler is not told of what the program does not call.
  const at::DisableRecordFunctionGuard unobserved;
  const at::Tensor host = host_alias(tensor.detach()).contiguous();
  return static_cast<uint32_t>(absl::ComputeCrc32c(
      absl::string_view(static_cast<const char*>(host.const_data_ptr()), host.nbytes())));
}

// Tensors of more elements are told apart by their checksums alone.
constexpr int64_t kMostKept = 4096;

// The bytes of a tensor of few elements; empty for others.
std::string kept_bytes(const at::Tensor& tensor) {
  const bool is_kept = tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
                       tensor.numel() <= kMostKept && has_values(tensor);
  if (!is_kept) return "";
  const at::DisableRecordFunctionGuard unobserved;
  const at::Tensor host = host_alias(tensor.detach()).contiguous();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

// ", first in element 3: 0.5 and 0.25"; empty where that is not known.
std::string first_difference(const at::Tensor& tensor, std::string other) {
  std::string own = kept_bytes(tensor);
  if (own.empty() || own.size() != other.size()) return "";
  const auto offset = std::mismatch(own.begin(), own.end(), other.begin()).first - own.begin();
  if (offset == std::ssize(own)) return "";  // only the names differ
  const auto size = static_cast<int64_t>(tensor.element_size());
  const int64_t element = static_cast<int64_t>(offset) / size;
  const auto value = [&](std::string& bytes) {
    const at::TensorOptions options(tensor.scalar_type());
    return c10::str(at::from_blob(bytes.data() + element * size, {}, options).item());
  };
  return absl::StrCat(", first in element ", element, ": ", value(own), " and ", value(other));
}

}  // namespace

void Replicas::check(int rank, int weight, const std::string& what, int num_replicas,
                     const NamedTensors& tensors) {
  Replica& replica = replicas_[what];
  const int64_t number = replica.count_by_rank[rank]++;
  auto [found, first] = replica.versions.try_emplace(number);
  Version& version = found->second;
  if (first) {
    version.rank = rank;
    for (const auto& [name, tensor] : tensors) {
      version.names.push_back(name);
      version.checksums.push_back(checksum(tensor));
      version.values.push_back(kept_bytes(tensor));
    }
  } else {
    TORCH_CHECK(tensors.size() == version.names.size(), what, ": rank ", rank, " has ",
                tensors.size(), " tensors, rank ", version.rank, " has ", version.names.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      const std::optional<uint32_t> sum = checksum(tensor);
      const bool differs = sum && version.checksums[i] && *sum != *version.checksums[i];
      TORCH_CHECK(name == version.names[i] && !differs, what, " diverged: \"", name, "\" of rank ",
                  rank, " differs from that of rank ", version.rank, " at the ", number + 1,
                  ". synchronisation", first_difference(tensor, version.values[i]));
    }
  }
  version.seen += weight;
  if (version.seen >= num_replicas) replica.versions.erase(found);
}

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
