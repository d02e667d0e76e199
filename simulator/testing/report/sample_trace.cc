#include "simulator/testing/report/sample_trace.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "simulator/core/random.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kCommunicationStream = 1;
constexpr int kCopyStream = 2;
constexpr int kLayersPerBucket = 3;
constexpr int64_t kBucketBytes = 324 * kMiB;

struct Operator {
  const char* name;
  int64_t ns;
  double flops;
  double bytes;
  int64_t saved_bytes;  // held for the backward pass
};

// A layer's forward pass; the backward pass has the same operators in the opposite order and takes
// twice the time.
constexpr Operator kLayer[] = {
    {"aten::native_layer_norm", 21'000, 2.1e7, 5.0e7, 168 * kMiB},
    {"aten::linear", 96'000, 5.2e10, 9.4e7, 504 * kMiB},
    {"aten::scaled_dot_product_attention", 148'000, 6.9e10, 1.0e8, 336 * kMiB},
    {"aten::linear", 41'000, 1.7e10, 5.9e7, 168 * kMiB},
    {"aten::add", 13'000, 8.4e6, 5.0e7, 0},
    {"aten::native_layer_norm", 21'000, 2.1e7, 5.0e7, 168 * kMiB},
    {"aten::linear", 121'000, 6.9e10, 1.1e8, 672 * kMiB},
    {"aten::gelu", 26'000, 3.4e7, 2.0e8, 672 * kMiB},
    {"aten::linear", 124'000, 6.9e10, 1.1e8, 168 * kMiB},
    {"aten::add", 13'000, 8.4e6, 5.0e7, 0},
};

class Sample {
 public:
  explicit Sample(const SampleOptions& options)
      : options_(options),
        recorder_({.world_size = options.ranks, .ranks_per_node = options.ranks_per_node}),
        compute_(options.ranks),
        communication_(options.ranks) {
    for (int rank = 0; rank < options.ranks; ++rank) {
      random_.push_back(DeterministicRandom::stream(options.seed, rank));
    }
    if (options.ranks < 4 || options.ranks % 2 != 0) return;
    // A mesh of pairs, of which all-reduces go through the first and through the second ranks.
    dp_ = recorder_.axis("dp_replicate");
    const int tp = recorder_.axis("tp");
    for (int rank = 0; rank < options.ranks; rank += 2) recorder_.place_along(tp, {rank, rank + 1});
    for (int first : {0, 1}) {
      std::vector<int> column;
      for (int rank = first; rank < options.ranks; rank += 2) column.push_back(rank);
      recorder_.place_along(dp_, column);
    }
  }

  Trace run() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      memory(rank, MemoryCategory::kParameters, 2600 * kMiB);
      memory(rank, MemoryCategory::kBuckets, 4 * kBucketBytes);
    }
    for (int step = 0; step < options_.steps; ++step) run_step(step);
    for (int rank = 0; rank < options_.ranks; ++rank) recorder_.modules(rank, 0, modules());
    const int nodes = (options_.ranks + options_.ranks_per_node - 1) / options_.ranks_per_node;
    const std::string topology = absl::StrCat(nodes, "x", options_.ranks_per_node, ":h100");
    return recorder_.finish(
        {.topology = topology,
         .seed = options_.seed,
         .program = "./train",
         .repeat_command =
             absl::StrCat("accelerate launch --simulate ", topology, " --simulate_seed ",
                          options_.seed, " ./train --layers ", options_.layers, " --batch_size 16"),
         .versions = {{"accelerate", "0.1.0"}, {"libtorch", "2.6.0"}},
         .arithmetic = {{"instruction_set", "AVX2"}, {"threads", "1"}},
         .device = "h100",
         .memory_capacity = int64_t{80} << 30,
         .peak_flops = 989.5e12},
        {{LinkKind::kNodeOut, 450e9, options_.ranks_per_node},
         {LinkKind::kNodeIn, 450e9, options_.ranks_per_node}});
  }

 private:
  void run_step(int step) {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      load(rank);
      for (int layer = 0; layer < options_.layers; ++layer) forward(rank, layer);
      kernel(rank, {"aten::cross_entropy_loss", 64'000, 4.0e8, 4.2e8, 0}, 1);
    }
    recorder_.phase(StepPhase::kBackward, compute_[0]);
    for (int layer = options_.layers - 1; layer >= 0; --layer) {
      for (int rank = 0; rank < options_.ranks; ++rank) backward(rank, layer);
      if (layer % kLayersPerBucket == 0) all_reduce();
    }
    recorder_.phase(StepPhase::kUpdate, compute_[0]);
    for (int rank = 0; rank < options_.ranks; ++rank) optimize(rank, step);
    pass_on();
    recorder_.step(compute_[0]);
    for (int rank = 1; rank < options_.ranks; ++rank) recorder_.end_step_of(rank);
  }

  // Around 1; the slow rank takes longer for everything.
  double jitter(int rank) {
    const double noise = 0.97 + static_cast<double>(random_[rank].below(60'000)) / 1e6;
    return rank == options_.ranks - 2 ? noise * 1.12 : noise;
  }

  // A layer is a module, the first with the number 1; 0 is none.
  void memory(int rank, MemoryCategory category, int64_t delta, uint32_t module = 0) {
    recorder_.memory(rank, /*device=*/0, compute_[rank], category, delta, module);
  }

  std::vector<std::string> modules() const {
    std::vector<std::string> names = {""};
    for (int layer = 0; layer < options_.layers; ++layer) {
      names.push_back(absl::StrCat("layers.", layer));
    }
    return names;
  }

  void kernel(int rank, const Operator& op, double factor) {
    const int64_t ns = static_cast<int64_t>(op.ns * factor * jitter(rank));
    const int64_t start = compute_[rank];
    const uint32_t name = recorder_.intern(op.name);
    memory(rank, MemoryCategory::kTemporaries, 16 * kMiB);
    recorder_.slice({.start_ns = start, .end_ns = start + ns, .rank = rank, .name = name});
    recorder_.op_cost(rank, name, ns, op.flops * factor, op.bytes * factor);
    compute_[rank] = start + ns;
    memory(rank, MemoryCategory::kTemporaries, -16 * kMiB);
  }

  void load(int rank) {
    const int64_t start = compute_[rank];
    const int64_t ready = start + static_cast<int64_t>(180'000 * jitter(rank));
    recorder_.slice({.start_ns = start,
                     .end_ns = ready,
                     .rank = rank,
                     .stream = kHostStream,
                     .name = recorder_.intern("DataLoader next"),
                     .kind = SliceKind::kHost});
    recorder_.slice({.start_ns = ready,
                     .end_ns = ready + 70'000,
                     .rank = rank,
                     .stream = kCopyStream,
                     .name = recorder_.intern("copy host to device"),
                     .kind = SliceKind::kCopy});
    compute_[rank] = ready + 70'000;
  }

  void forward(int rank, int layer) {
    for (const Operator& op : kLayer) {
      kernel(rank, op, 1);
      memory(rank, MemoryCategory::kActivations, op.saved_bytes, layer + 1);
    }
  }

  void backward(int rank, int layer) {
    for (int i = static_cast<int>(std::size(kLayer)) - 1; i >= 0; --i) {
      kernel(rank, kLayer[i], 2);
      memory(rank, MemoryCategory::kActivations, -kLayer[i].saved_bytes, layer + 1);
    }
    memory(rank, MemoryCategory::kGradients, 216 * kMiB, layer + 1);
  }

  // Over all ranks; starts when the last one comes, and the others wait until then.
  void all_reduce() {
    std::vector<int> members(options_.ranks);
    std::iota(members.begin(), members.end(), 0);
    std::vector<int64_t> arrivals;
    for (int rank : members) arrivals.push_back(std::max(compute_[rank], communication_[rank]));
    const auto [first, last] = std::minmax_element(arrivals.begin(), arrivals.end());
    const int64_t start = *last;
    const int64_t end = start + 1'450'000 + 2'000 * options_.ranks;
    const int64_t operation =
        recorder_.operation({.name = recorder_.intern("ALLREDUCE"),
                             .group = recorder_.intern("default_pg"),
                             .algorithm = recorder_.intern(options_.ranks > 64 ? "tree" : "ring"),
                             .bytes = kBucketBytes,
                             .ranks = members,
                             .first_rank = static_cast<int32_t>(first - arrivals.begin()),
                             .last_rank = static_cast<int32_t>(last - arrivals.begin()),
                             .spread_ns = *last - *first});
    const double bus_factor = 2 - 2.0 / options_.ranks;
    recorder_.collective({.name = recorder_.intern("ALLREDUCE"),
                          .algorithm = recorder_.intern(options_.ranks > 64 ? "tree" : "ring"),
                          .ranks = options_.ranks,
                          .calls = 1,
                          .total_ns = end - start,
                          .shared_ns = (end - start) / 4,
                          .bytes = static_cast<double>(kBucketBytes),
                          .bus_bytes = bus_factor * static_cast<double>(kBucketBytes)});
    for (int rank : members) {
      if (arrivals[rank] < start) {
        recorder_.slice({.start_ns = arrivals[rank],
                         .end_ns = start,
                         .rank = rank,
                         .stream = kCommunicationStream,
                         .name = recorder_.intern("wait"),
                         .kind = SliceKind::kWait,
                         .operation = operation});
      }
      recorder_.slice({.start_ns = start,
                       .end_ns = end,
                       .rank = rank,
                       .stream = kCommunicationStream,
                       .name = recorder_.intern("ALLREDUCE"),
                       .kind = SliceKind::kCollective,
                       .operation = operation});
      recorder_.link(rank, LinkKind::kNodeOut, bus_factor * kBucketBytes, start, end);
      recorder_.link(rank, LinkKind::kNodeIn, bus_factor * kBucketBytes, start, end);
      const int next = (rank + (dp_ < 0 ? 1 : 2)) % options_.ranks;
      recorder_.traffic(rank, next, 2.0 * kBucketBytes, dp_);
      communication_[rank] = end;
    }
  }

  void optimize(int rank, int step) {
    if (communication_[rank] > compute_[rank]) {
      recorder_.slice({.start_ns = compute_[rank],
                       .end_ns = communication_[rank],
                       .rank = rank,
                       .stream = kHostStream,
                       .name = recorder_.intern("wait for all-reduce"),
                       .kind = SliceKind::kHost});
    }
    compute_[rank] = std::max(compute_[rank], communication_[rank]);
    if (step == 0) memory(rank, MemoryCategory::kOptimizerState, 5200 * kMiB);
    kernel(rank, {"aten::_fused_adamw_", 410'000, 2.0e9, 1.2e9, 0}, 1);
    for (int layer = 0; layer < options_.layers; ++layer) {
      memory(rank, MemoryCategory::kGradients, -216 * kMiB, layer + 1);
    }
  }

  // A value goes from each rank of a node to the next one.
  void pass_on() {
    for (int rank = 0; rank + 1 < options_.ranks; ++rank) {
      if ((rank + 1) % options_.ranks_per_node == 0) continue;
      const int64_t operation = recorder_.operation({.name = recorder_.intern("SEND"),
                                                     .group = recorder_.intern("default_pg"),
                                                     .bytes = kMiB / 4,
                                                     .ranks = {rank, rank + 1}});
      const int64_t sent = std::max(compute_[rank], communication_[rank]);
      const int64_t received = std::max(sent + 30'000, communication_[rank + 1] + 1'000);
      const auto part = [&](int member, int64_t start, int64_t end, const char* name) {
        recorder_.slice({.start_ns = start,
                         .end_ns = end,
                         .rank = member,
                         .stream = kCommunicationStream,
                         .name = recorder_.intern(name),
                         .kind = SliceKind::kMessage,
                         .operation = operation});
        communication_[member] = end;
      };
      part(rank, sent, sent + 25'000, "SEND");
      part(rank + 1, std::max(communication_[rank + 1], sent), received, "RECV");
      recorder_.traffic(rank, rank + 1, kMiB / 4);
    }
  }

  const SampleOptions options_;
  Recorder recorder_;
  int dp_ = -1;  // the axis of all-reduces
  std::vector<DeterministicRandom> random_;
  std::vector<int64_t> compute_;        // until when each rank's stream is busy
  std::vector<int64_t> communication_;  // likewise
};

}  // namespace

Trace make_sample_trace(const SampleOptions& options) { return Sample(options).run(); }

}  // namespace accelerate::simulator
