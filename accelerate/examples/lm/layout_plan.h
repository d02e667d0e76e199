/// How long a training step of a language model takes in each layout of a cluster's ranks, and
/// whether the layout fits into the devices' memory: what `accelerate plan` prints.
///
/// A layout is trained for three steps with shapes alone on the folded cluster. A model of many
/// blocks is trained with few, twice, and a step of many micro-steps with two and with three: time
/// and memory grow evenly with each further block, and time with each further micro-step, so that
/// those of the whole follow. Where ranks have stages, each of these has the few blocks, and
/// windows have two and three times as many micro-batches as there are stages.
/// PlanRequest::is_exact takes the whole model instead, and so does a layout that needs more than
/// four fifths of the memory: an allocator's memory is in pieces, so that it may not fit.
///
/// Units:   seconds, bytes.
/// Errors:  std::invalid_argument for a request that no layout can meet.
/// Threads: one thread; a cluster runs in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/rank_layout.h"
#include "accelerate/examples/lm/config.h"

namespace lm {

struct PlanRequest {
  Config config;
  std::string cluster;           ///< with devices, as in "16x8:h100"
  int64_t batch_size = 0;        ///< sequences of a step, over all ranks; 0: one for each rank
  int64_t micro_batch_size = 1;  ///< sequences of a rank in one forward pass
  std::string mixed_precision = "bf16";
  bool is_exact = false;
  /// The most stages, and parts of sequences along cp and along sp, of a layout. There are many
  /// such layouts, so that they are asked for.
  int64_t most_pp = 1, most_cp = 1, most_sp = 1;
  /// How many times the mean the first of a layer's experts has of tokens; absent: all have as
  /// many.
  std::optional<double> skew = std::nullopt;
};

/// The request in {"model": "llama-70b", "cluster": "16x8:h100"} and, where they are not the usual,
/// "batch_size", "micro_batch_size", "sequence_length", "layers", "experts", "mixed_precision",
/// "exact", "most_pp", "most_cp", "most_sp" and "skew". Errors: also for a model that there is not,
/// naming those that there are, and for a skew without experts.
PlanRequest request_of(const nlohmann::json& request);

/// A layout, and what a program chooses besides.
struct LayoutChoice {
  accelerate::RankLayout ranks;
  bool recomputes = false;  ///< blocks, in the backward pass

  std::string text() const;
};

struct PlannedLayout {
  LayoutChoice choice;
  bool fits = false;
  double step_seconds = 0;
  double tokens_per_second = 0;  ///< of all ranks
  double mfu = 0;
  /// What tensors, the context, communicators and workspaces need at most on one device. The driver
  /// shows more where the allocator keeps blocks, which it gives back when room is short. Pieces
  /// between blocks (fragmentation) do not count, but what they leave no room for does not fit.
  /// 0: unknown.
  int64_t peak_memory = 0;
  /// The part of a device's tensors that forward passes make: the most of it in one pass.
  int64_t activations = 0;
  int64_t memory = 0;    ///< that a program has of a device; 0: unknown
  std::string why = {};  ///< it does not fit
};

/// All that the table of layouts allows with at most so many ranks along pp, cp and sp as the
/// request says, with and without recomputation, and with sequence shards where layers are divided.
std::vector<LayoutChoice> layout_choices(const PlanRequest& request);

/// One of them. What cannot be, for want of memory or because the model does not allow it, has a
/// sentence in `why`.
PlannedLayout planned(const PlanRequest& request, const LayoutChoice& choice);

/// All of them: those that fit by the time of a step, then the others in the order of the choices.
std::vector<PlannedLayout> plan(const PlanRequest& request);

/// A line for each layout; those that do not fit with the reason, and behind the others.
std::string plan_text(const std::vector<PlannedLayout>& layouts);

/// The same for programs, in the same order: a list of objects with "layout" and "fits", and with
/// "step_seconds", "tokens_per_second", "mfu", "peak_memory", "activations" and "memory" where the
/// layout fits, else with "why".
nlohmann::ordered_json plan_json(const std::vector<PlannedLayout>& layouts);

}  // namespace lm
