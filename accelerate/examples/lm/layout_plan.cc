#include "accelerate/examples/lm/layout_plan.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/base/number_text.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/values/texts.h"
#include "simulator/cluster/cluster.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/trace/rank_sums.h"
#include "simulator/trace/trace.h"

namespace lm {
namespace {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::MeshAxis;
using accelerate::RankLayout;
using accelerate::simulator::Cluster;
using accelerate::simulator::ClusterOptions;
using accelerate::simulator::ClusterSpec;
using nlohmann::json;

constexpr int kSteps = 3;
// From the second block on, each adds as much; a few more, because a group of parameters is fetched
// while the one before computes.
constexpr int64_t kFewBlocks = 3, kMoreBlocks = 5;
// A layout that needs more than this share of the memory is simulated whole: an allocator's memory
// is in pieces, each of one stream, and those of few blocks are others. Recomputing 80 blocks of
// Llama 70b in shards ran out of memory with 88 % of it in tensors.
constexpr double kNarrow = 0.8;
// Parameters, gradients and two moments in float32.
constexpr double kStateBytes = 16;

ClusterSpec spec_of(const PlanRequest& request) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(request.cluster);
  if (!spec.ok()) throw std::invalid_argument(std::string(spec.status().message()));
  if (!spec->device) {
    throw std::invalid_argument(
        absl::StrCat("the cluster ", request.cluster, " names no device, as 16x8:h100 does"));
  }
  return *std::move(spec);
}

int64_t batch_of(const PlanRequest& request, const ClusterSpec& spec) {
  return request.batch_size > 0 ? request.batch_size : spec.world_size();
}

// A rank's forward passes in a step. \pre The batch divides evenly.
int64_t micro_steps_of(const PlanRequest& request, const RankLayout& ranks, int64_t batch) {
  return batch / (ranks.dp_replicate * ranks.dp_shard * request.micro_batch_size);
}

// ---- One training.

struct Measured {
  double seconds = 0;
  double useful_seconds = 0;  // of the step, that the devices would need at their peak
  // The most that a device needs until the model is prepared, with whole tensors of its
  // construction, and afterwards.
  double prepare_memory = 0;
  double training_memory = 0;
  double activations = 0;  // the most of these in a pass
  int64_t memory = 0;      // of a device
};

AcceleratorOptions options_of(const PlanRequest& request, const RankLayout& ranks,
                              const Config& config, int64_t micro_steps) {
  AcceleratorOptions options{
      .mixed_precision =
          accelerate::from_string<accelerate::PrecisionType>(request.mixed_precision),
      // Gradients take as much memory as parameters; one copy of them is enough.
      .kwargs_handlers = {
          accelerate::DistributedDataParallelKwargs{.gradient_as_bucket_view = true}}};
  // Stages have one window in a step.
  if (micro_steps > 1 && ranks.pp == 1) options.gradient_accumulation_steps = micro_steps;
  if (ranks.num_ranks() > 1) {
    options.parallelism_config =
        accelerate::ParallelismConfig({.dp_replicate_size = ranks.dp_replicate,
                                       .dp_shard_size = ranks.dp_shard,
                                       .tp_size = ranks.tp,
                                       .cp_size = ranks.cp,
                                       .sp_size = ranks.sp,
                                       .pp_size = ranks.pp,
                                       .ep_size = ranks.ep});
  }
  if (ranks.tp > 1) {
    // A model without values has the plan.
    const accelerate::EmptyInit empty = accelerate::init_empty_weights();
    accelerate::TensorParallelPlan plan = *Lm(config)->tensor_parallel_plan();
    plan.sequence_parallel = ranks.sequence_shards;
    plan.parallel_loss = true;
    options.kwargs_handlers.emplace_back(std::move(plan));
  }
  return options;
}

// On the device from the beginning; without values where ranks divide the model, so that no device
// has all of it.
Lm built_model(const PlanRequest& request, const LayoutChoice& choice, const Config& config,
               c10::Device device) {
  const accelerate::DefaultDeviceScope scope(device);
  const RankLayout& ranks = choice.ranks;
  const LmOptions rules{.activation_checkpointing = choice.recomputes,
                        .shares_key_heads = ranks.cp * ranks.sp > 1,
                        .router = {.routing = request.skew ? accelerate::Routing::kSkewed
                                                           : accelerate::Routing::kBalanced,
                                   .skew = request.skew.value_or(1)}};
  if (ranks.pp == 1 && ranks.tp == 1 && ranks.dp_shard == 1 && ranks.ep == 1) {
    return Lm(config, rules);
  }
  const accelerate::EmptyInit empty = accelerate::init_empty_weights();
  return Lm(config, rules);
}

// What is known of an executed rank besides its trace.
struct RankFacts {
  int64_t prepared_ns = 0;
  int64_t last_pass_ns = 0;  // when that begins
  int64_t other_bytes = 0;   // of its device, that are not tensors'
};

// Fills in the times, of which `now` tells.
void train(const PlanRequest& request, const LayoutChoice& choice, const Config& config,
           int64_t micro_steps, const std::function<int64_t()>& now, RankFacts& facts) {
  const RankLayout& ranks = choice.ranks;
  Accelerator accelerator(options_of(request, ranks, config, micro_steps));
  Lm net = built_model(request, choice, config, accelerator.device());
  const std::shared_ptr<torch::optim::Optimizer> adamw = std::make_shared<accelerate::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [prepared, optimizer] = accelerator.prepare(net.ptr(), adamw);
  facts.prepared_ns = now();
  auto& model = prepared;
  // Along sp a rank is given its tokens of each sequence; along cp a scope leaves it them.
  const int64_t passes = ranks.pp > 1 ? 1 : micro_steps, length = config.sequence_length / ranks.sp;
  const at::Tensor tokens =
      at::zeros({request.micro_batch_size * (micro_steps / passes), length}, at::kLong)
          .to(accelerator.device());
  const bool has_parts = ranks.cp * ranks.sp > 1;
  at::Tensor labels = tokens, positions;
  if (has_parts) {
    const int64_t first = length * accelerator.torch_device_mesh()->coordinate(MeshAxis::kSp);
    labels = tokens.clone();
    positions = at::arange(first, first + length, tokens.options());
  }
  const auto loss_of = [&](const at::Tensor& output, const at::Tensor& of_rows) {
    const at::Tensor logits = output.flatten(0, 1), targets = of_rows.flatten();
    return ranks.tp > 1 ? accelerate::parallel_cross_entropy(model, logits, targets)
                        : at::cross_entropy_loss(logits, targets);
  };
  const auto compute = [&] {
    if (ranks.pp > 1) {
      accelerator.train_batch(
          model, std::pair(tokens, labels), loss_of,
          {.micro_batches = static_cast<int>(micro_steps), .positions = positions});
    } else {
      accelerator.backward(loss_of(has_parts ? model(tokens, positions) : model(tokens), labels));
    }
  };
  for (int64_t pass = 0; pass < kSteps * passes; ++pass) {
    facts.last_pass_ns = now();
    const auto scope = accelerator.accumulate(model);
    if (ranks.cp > 1) {
      const auto parts = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 0});
      compute();
    } else {
      compute();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
}

// What tensors, the context, communicators and workspaces need. The allocator reserves more where
// room is left, above all for blocks that collectives on other streams still read: the further the
// host is ahead of its device, the more. An allocation that finds no room waits for those streams
// and gets that memory.
void add_memory(const accelerate::simulator::Trace& trace, const std::vector<RankFacts>& ranks,
                Measured& measured) {
  for (const accelerate::simulator::MemorySample& sample : trace.memory) {
    const RankFacts& rank = ranks[sample.rank];
    double& most =
        sample.at_ns <= rank.prepared_ns ? measured.prepare_memory : measured.training_memory;
    most = std::max(most, static_cast<double>(rank.other_bytes + total_bytes(sample)));
    // Until a backward pass has ended, parameters may count as activations.
    if (sample.at_ns < rank.last_pass_ns) continue;
    const auto kept = static_cast<double>(
        sample.bytes[static_cast<size_t>(accelerate::simulator::MemoryCategory::kActivations)]);
    measured.activations = std::max(measured.activations, kept);
  }
}

Measured measure(const PlanRequest& request, const LayoutChoice& choice, int64_t layers,
                 int64_t micro_steps) {
  Config config = request.config;
  config.layers = layers;
  ClusterOptions options;
  options.numerics = accelerate::simulator::Numerics::kShapes;
  options.record = true;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  if (const RankLayout& ranks = choice.ranks; ranks.num_ranks() > 1) {
    // Stages differ, and so do ranks along ep of which some have more tokens. Ranks along cp
    // compute with the keys of the others in another order each.
    std::vector<MeshAxis> along = {MeshAxis::kDpReplicate, MeshAxis::kTp};
    if (!request.skew || ranks.ep == 1) {
      along.insert(along.end(), {MeshAxis::kDpShard, MeshAxis::kSp});
    }
    options.fold = accelerate::simulator::Folding{
        .spot_checks = 0,
        .mesh = accelerate::Mesh({.pp = static_cast<int>(ranks.pp),
                                  .dp_replicate = static_cast<int>(ranks.dp_replicate),
                                  .dp_shard = static_cast<int>(ranks.dp_shard),
                                  .cp = static_cast<int>(ranks.cp),
                                  .sp = static_cast<int>(ranks.sp),
                                  .tp = static_cast<int>(ranks.tp),
                                  .ep = static_cast<int>(ranks.ep)}),
        .along = std::move(along)};
  }
  Cluster cluster(request.cluster, options);
  std::vector<RankFacts> ranks(cluster.world_size());
  cluster.run_on_every_rank([&](accelerate::simulator::Rank& rank) {
    RankFacts& facts = ranks[rank.index()];
    train(request, choice, config, micro_steps, [&] { return rank.device()->host_ns(); }, facts);
    if (const auto driver = rank.device()->memory().driver_figures()) {
      facts.other_bytes = driver->context + driver->libraries + driver->workspaces;
    }
  });
  const accelerate::simulator::Trace& trace = cluster.trace();
  const auto times = step_times(trace);
  if (!times) throw std::runtime_error("no step ended");
  Measured measured{.seconds = times->mean_ns * 1e-9};
  measured.useful_seconds = measured.seconds * times->mfu;
  measured.memory = trace.memory_capacity;
  add_memory(trace, ranks, measured);
  return measured;
}

// ---- The whole, of parts.

// What is measured for a size, and how much of the whole each counts for.
struct Sample {
  int64_t size = 0;
  double weight = 1;
};

// On the line through two sizes.
std::vector<Sample> samples_of(int64_t whole, int64_t few, int64_t more, bool is_exact) {
  if (is_exact || whole <= more) return {{whole}};
  const auto span = static_cast<double>(more - few);
  return {{few, static_cast<double>(more - whole) / span},
          {more, static_cast<double>(whole - few) / span}};
}

Measured measure_whole(const PlanRequest& request, const LayoutChoice& choice,
                       int64_t micro_steps) {
  // The blocks that are left where stages do not have as many each are the same in all samples.
  const int64_t stages = choice.ranks.pp, left = request.config.layers % stages;
  const std::vector<Sample> passes =
      samples_of(micro_steps, 2 * stages, 3 * stages, request.is_exact);
  Measured whole;
  for (const Sample& layers : samples_of(request.config.layers, kFewBlocks * stages + left,
                                         kMoreBlocks * stages + left, request.is_exact)) {
    for (const Sample& pass : passes) {
      const Measured part = measure(request, choice, layers.size, pass.size);
      whole.memory = part.memory;
      whole.seconds += layers.weight * pass.weight * part.seconds;
      whole.useful_seconds += layers.weight * pass.weight * part.useful_seconds;
      // A further micro-step needs no more memory than the second one, and a further micro-batch
      // no more than as many as there are stages.
      if (&pass != &passes.back()) continue;
      whole.prepare_memory += layers.weight * part.prepare_memory;
      whole.training_memory += layers.weight * part.training_memory;
      whole.activations += layers.weight * part.activations;
    }
  }
  return whole;
}

// The least that a rank keeps from step to step.
double state_bytes(const Config& config, const RankLayout& ranks) {
  const auto all = static_cast<double>(parameter_count(config));
  const double experts = 3.0 * static_cast<double>(config.layers * config.hidden) *
                         static_cast<double>(config.experts * config.expert_intermediate);
  // Ranks with parts of sequences divide the rows of shards, too.
  const int64_t sequence_parts = ranks.dp_shard > 1 || ranks.ep > 1 ? ranks.cp * ranks.sp : 1;
  const auto rows = static_cast<double>(ranks.dp_shard * sequence_parts * ranks.tp * ranks.pp);
  // Ranks along ep have whole experts.
  const double expert_parts =
      ranks.ep > 1 ? static_cast<double>(ranks.ep * ranks.tp * ranks.pp) : rows;
  return kStateBytes * ((all - experts) / rows + experts / expert_parts);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Why the layout cannot be, as far as arithmetic tells; empty: it may.
std::string why_not(const PlanRequest& request, const ClusterSpec& spec, const RankLayout& ranks) {
  const int64_t batch = batch_of(request, spec);
  const int64_t shares = ranks.dp_replicate * ranks.dp_shard;
  if (batch % (shares * request.micro_batch_size) != 0) {
    return absl::StrCat(batch, " sequences are not a number of micro-batches of ",
                        request.micro_batch_size, " for each of ", shares, " shares");
  }
  if (ranks.tp > spec.ranks_per_node) {
    return absl::StrCat("tp crosses nodes of ", spec.ranks_per_node, " ranks");
  }
  const double states = state_bytes(request.config, ranks);
  const auto memory = static_cast<double>(spec.device->memory_bytes);
  if (states > memory) {
    return absl::StrCat("parameters, gradients and moments are ",
                        accelerate::binary_byte_text(static_cast<int64_t>(states)), " of ",
                        accelerate::binary_byte_text(spec.device->memory_bytes));
  }
  return "";
}

std::string duration_text(double seconds) {
  return seconds >= 1 ? absl::StrFormat("%.3f s", seconds)
                      : absl::StrFormat("%.1f ms", seconds * 1e3);
}

// As the request has it: of few blocks, or exact.
PlannedLayout told_of(const PlanRequest& request, const LayoutChoice& choice) {
  const ClusterSpec spec = spec_of(request);
  PlannedLayout layout{.choice = choice};
  layout.why = why_not(request, spec, choice.ranks);
  if (!layout.why.empty()) return layout;
  const int64_t batch = batch_of(request, spec);
  Measured whole;
  try {
    whole = measure_whole(request, choice, micro_steps_of(request, choice.ranks, batch));
  } catch (const std::exception& error) {
    layout.why = first_line(error.what());
    return layout;
  }
  layout.peak_memory = static_cast<int64_t>(std::max(whole.prepare_memory, whole.training_memory));
  layout.activations = static_cast<int64_t>(whole.activations);
  layout.memory = whole.memory;
  if (layout.peak_memory > layout.memory) {
    layout.why = absl::StrCat("needs ", accelerate::binary_byte_text(layout.peak_memory), " of ",
                              accelerate::binary_byte_text(layout.memory));
    return layout;
  }
  layout.fits = true;
  layout.step_seconds = whole.seconds;
  layout.tokens_per_second =
      static_cast<double>(batch * request.config.sequence_length) / whole.seconds;
  layout.mfu = whole.useful_seconds / whole.seconds;
  return layout;
}

}  // namespace

PlanRequest request_of(const json& request) {
  const std::string name = request.at("model");
  absl::string_view size = name;
  Config sizes;
  if (absl::ConsumePrefix(&size, "llama-")) {
    sizes.blocks = Blocks::kLlama;
  } else if (!absl::ConsumePrefix(&size, "gpt-")) {
    size = "";
  }
  const auto& names = model_names();
  if (std::ranges::count(names, size) == 0) {
    std::vector<std::string> known;
    for (const char* kind : {"gpt-", "llama-"}) {
      for (const std::string& each : names) known.push_back(kind + each);
    }
    throw std::invalid_argument(absl::StrCat("there is no model \"", name,
                                             "\"; known models: ", absl::StrJoin(known, ", ")));
  }
  sizes.layers = request.value("layers", int64_t{-1});
  sizes.sequence_length = request.value("sequence_length", int64_t{-1});
  sizes.experts = request.value("experts", int64_t{0});
  PlanRequest parsed{.config = model_config(std::string(size), sizes),
                     .cluster = request.at("cluster"),
                     .batch_size = request.value("batch_size", int64_t{0}),
                     .micro_batch_size = request.value("micro_batch_size", int64_t{1}),
                     .mixed_precision = request.value("mixed_precision", "bf16"),
                     .is_exact = request.value("exact", false),
                     .most_pp = request.value("most_pp", int64_t{1}),
                     .most_cp = request.value("most_cp", int64_t{1}),
                     .most_sp = request.value("most_sp", int64_t{1})};
  if (request.contains("skew")) parsed.skew = request.at("skew").get<double>();
  if (parsed.skew && parsed.config.experts == 0) {
    throw std::invalid_argument(
        "a skew is of the tokens that a layer's experts have; give a number of experts as well");
  }
  spec_of(parsed);
  return parsed;
}

std::string LayoutChoice::text() const {
  return absl::StrCat(ranks.text(), recomputes ? ", computed again" : "");
}

std::vector<LayoutChoice> layout_choices(const PlanRequest& request) {
  const ClusterSpec spec = spec_of(request);
  std::vector<LayoutChoice> choices;
  for (const bool sequence_shards : {false, true}) {
    const RankLayout like{.experts = request.config.experts > 0,
                          .sequence_shards = sequence_shards};
    for (const RankLayout& ranks : accelerate::legal_layouts(spec.world_size(), like)) {
      if (sequence_shards && ranks.tp == 1) continue;
      const bool is_asked_for =
          ranks.pp <= request.most_pp && ranks.cp <= request.most_cp && ranks.sp <= request.most_sp;
      if (!is_asked_for) continue;
      for (const bool recomputes : {false, true}) choices.push_back({ranks, recomputes});
    }
  }
  return choices;
}

PlannedLayout planned(const PlanRequest& request, const LayoutChoice& choice) {
  const PlannedLayout told = told_of(request, choice);
  const double most = kNarrow * static_cast<double>(told.memory);
  if (request.is_exact || !told.fits || static_cast<double>(told.peak_memory) <= most) return told;
  PlanRequest all = request;
  all.is_exact = true;
  PlannedLayout exact = told_of(all, choice);
  if (!exact.fits) {
    exact.why = absl::StrCat("needs ", accelerate::binary_byte_text(told.peak_memory), " of ",
                             accelerate::binary_byte_text(told.memory), ", in pieces: ", exact.why);
  }
  return exact;
}

std::vector<PlannedLayout> plan(const PlanRequest& request) {
  std::vector<PlannedLayout> layouts;
  for (const LayoutChoice& choice : layout_choices(request)) {
    layouts.push_back(planned(request, choice));
  }
  std::ranges::stable_sort(layouts, [](const PlannedLayout& a, const PlannedLayout& b) {
    if (a.fits != b.fits) return a.fits;
    return a.fits && a.step_seconds < b.step_seconds;
  });
  return layouts;
}

std::string plan_text(const std::vector<PlannedLayout>& layouts) {
  int width = 0;
  for (const PlannedLayout& each : layouts) {
    width = std::max(width, static_cast<int>(each.choice.text().size()));
  }
  std::string text = absl::StrFormat("%-*s  %9s  %9s  %6s  %s\n", width, "layout", "step",
                                     "tokens/s", "MFU", "peak memory");
  for (const PlannedLayout& each : layouts) {
    if (!each.fits) continue;
    absl::StrAppend(
        &text, absl::StrFormat("%-*s  %9s  %9.0f  %4.1f %%  %s of %s\n", width, each.choice.text(),
                               duration_text(each.step_seconds), each.tokens_per_second,
                               100 * each.mfu, accelerate::binary_byte_text(each.peak_memory),
                               accelerate::binary_byte_text(each.memory)));
  }
  bool is_first = true;
  for (const PlannedLayout& each : layouts) {
    if (each.fits) continue;
    if (std::exchange(is_first, false)) absl::StrAppend(&text, "do not fit:\n");
    absl::StrAppend(&text, absl::StrFormat("%-*s  %s\n", width, each.choice.text(), each.why));
  }
  return text;
}

nlohmann::ordered_json plan_json(const std::vector<PlannedLayout>& layouts) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PlannedLayout& each : layouts) {
    nlohmann::ordered_json row = {{"layout", each.choice.text()}, {"fits", each.fits}};
    if (each.fits) {
      row["step_seconds"] = each.step_seconds;
      row["tokens_per_second"] = each.tokens_per_second;
      row["mfu"] = each.mfu;
      row["peak_memory"] = each.peak_memory;
      row["activations"] = each.activations;
      row["memory"] = each.memory;
    } else {
      row["why"] = each.why;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace lm
