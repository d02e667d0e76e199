#include "integration_tests/composition/drawn_layout.h"

#include <random>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "integration_tests/tensor/formula_model.h"

namespace accelerate {
namespace {

constexpr int64_t kHeads = 8, kExperts = 8, kLayers = 2, kLength = 16;

// What the table does not know: the model's sizes.
bool fits_model(const RankLayout& layout) {
  return kHeads % layout.tp == 0 && kExperts % layout.ep == 0 && kLayers % layout.pp == 0 &&
         kLength % (2 * layout.cp) == 0 && kHeads / layout.tp % layout.sp == 0;
}

}  // namespace

std::string DrawnLayout::cluster() const {
  return absl::StrCat(nodes, "x", ranks.num_ranks() / nodes, ":h100");
}

std::string DrawnLayout::text() const {
  return absl::StrCat(cluster(), ": ", blocks == lm::Blocks::kGpt ? "GPT, " : "Llama, ",
                      ranks.text(), ranks.zero ? absl::StrCat(" stage ", zero_stage) : "",
                      micro_steps > 1 ? absl::StrCat(", micro-steps ", micro_steps) : "",
                      recomputes ? ", computed again" : "",
                      precision ? absl::StrCat(", ", to_string(*precision)) : "");
}

DrawnLayout draw_layout(uint64_t seed) {
  // Its numbers are the standard's; those of std::uniform_int_distribution are each library's.
  std::mt19937_64 generator(seed);
  const auto draw = [&generator](size_t count) {
    return static_cast<size_t>(generator() % static_cast<uint64_t>(count));
  };
  DrawnLayout drawn;
  RankLayout like;
  like.experts = draw(2) == 0;
  like.zero = draw(4) == 0;
  like.fsdp = !like.zero && draw(4) == 0;
  like.sequence_shards = draw(2) == 0;
  // Few of the layouts have stages, so that these are drawn by themselves.
  const bool has_stages = draw(2) == 0;
  std::vector<RankLayout> all;
  for (const RankLayout& layout : legal_layouts(draw(2) == 0 ? 8 : 16, like)) {
    if (has_stages != (layout.pp > 1)) continue;
    // Llama's keys stand in one weight with its queries.
    if (layout.tp > kHeads / 2) continue;
    if (fits_model(layout) && (layout.tp > 1 || !like.sequence_shards)) all.push_back(layout);
  }
  drawn.ranks = all[draw(all.size())];
  if (drawn.ranks.zero) drawn.zero_stage = 1 + static_cast<int>(draw(3));
  drawn.micro_steps = 1 + static_cast<int>(draw(2));
  drawn.recomputes = draw(2) == 0;
  // Which experts a token goes to would depend on the rounding of 8 bits, and ZeRO computes in
  // other places in them than automatic mixed precision does.
  if (!like.experts && !like.zero && draw(3) == 0) drawn.precision = PrecisionType::kBf16;
  if (!like.experts && draw(2) == 0) drawn.blocks = lm::Blocks::kGpt;
  drawn.nodes = draw(2) == 0 ? 1 : 2;
  return drawn;
}

DrawnLayout one_rank_of(const DrawnLayout& layout) {
  return {.ranks = {.experts = layout.ranks.experts},
          .precision = layout.precision,
          .blocks = layout.blocks};
}

std::optional<ParallelismOptions> sizes_of(const RankLayout& layout) {
  if (layout.num_ranks() == 1 && layout.ep == 1) return std::nullopt;
  return ParallelismOptions{.dp_replicate_size = layout.dp_replicate,
                            .dp_shard_size = layout.dp_shard,
                            .tp_size = layout.tp,
                            .cp_size = layout.cp,
                            .sp_size = layout.sp,
                            .pp_size = layout.pp,
                            .ep_size = layout.ep};
}

lm::Config model_of(const DrawnLayout& layout) {
  const bool is_gpt = layout.blocks == lm::Blocks::kGpt;
  return lm::model_config("tiny", {.blocks = layout.blocks,
                                   .layers = kLayers,
                                   .hidden = 64,
                                   .heads = kHeads,
                                   .kv_heads = is_gpt ? kHeads : kHeads / 2,
                                   .intermediate = 176,
                                   .sequence_length = kLength,
                                   .experts = layout.ranks.experts ? kExperts : 0});
}

void add_techniques(const DrawnLayout& layout, AcceleratorOptions& options) {
  options.mixed_precision = layout.precision;
  if (layout.ranks.fsdp) options.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2};
  if (layout.ranks.zero) {
    nlohmann::ordered_json stage = {{"stage", layout.zero_stage}};
    if (layout.zero_stage == 3) stage["stage3_param_persistence_threshold"] = 200;
    const nlohmann::ordered_json config = {{"train_micro_batch_size_per_gpu", 2},
                                           {"gradient_accumulation_steps", layout.micro_steps},
                                           {"gradient_clipping", 1.0},
                                           {"zero_allow_untested_optimizer", true},
                                           {"zero_optimization", stage}};
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config};
  }
  if (layout.ranks.sequence_shards) {
    with_modes({.sequence_shards = true}, model_of(layout))(options);
  }
}

ExpertTraining training_of(const DrawnLayout& layout) {
  return {.config = model_of(layout),
          .sizes = sizes_of(layout.ranks),
          .cluster = layout.cluster(),
          .steps = 3,
          .rows = 32,
          .micro_steps = layout.micro_steps,
          .computes_again = layout.recomputes,
          .change = [layout](AcceleratorOptions& options) { add_techniques(layout, options); }};
}

}  // namespace accelerate
