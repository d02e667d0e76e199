#include "accelerate/config/parallelism_config.h"

#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/config/option_fields.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr options::Section kSection = options::Section::kParallelism;

// The handler of an axis that is on is there.
template <typename Handler>
void fill_handler(std::optional<Handler>& handler, int64_t size, const Environment& environment) {
  if (size > 1 && !handler) handler = Handler();
  if (handler) handler = resolve(*std::move(handler), environment);
}

void check_size(const char* name, int64_t size) {
  TORCH_CHECK_VALUE(size >= 1, name, " must be at least 1, but got ", size);
}

void check_backend(const char* name, const std::string& backend, const char* known) {
  TORCH_CHECK_VALUE(backend == known, name, " must be one of ['", known, "'], but got ", backend);
}

using SizeField = std::optional<int64_t> ParallelismOptions::*;

// In the order of MeshAxis.
constexpr SizeField kSizes[] = {
    &ParallelismOptions::pp_size,       &ParallelismOptions::dp_replicate_size,
    &ParallelismOptions::dp_shard_size, &ParallelismOptions::cp_size,
    &ParallelismOptions::sp_size,       &ParallelismOptions::tp_size,
};
static_assert(std::size(kSizes) == kNumPlainAxes);

// So that every number of ranks is an int.
void check_product(const ParallelismOptions& options) {
  int64_t total = 1;
  for (const SizeField size : kSizes) {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    TORCH_CHECK_VALUE(*(options.*size) <= kMost / total,
                      "ParallelismConfig: the sizes of its axes multiply to more than ", kMost,
                      " ranks");
    total *= *(options.*size);
  }
}

RankLayout layout_of(const ParallelismOptions& options) {
  RankLayout layout{.ep = *options.ep_size};
  for (size_t i = 0; i < kNumPlainAxes; ++i) {
    size_along(layout, static_cast<MeshAxis>(i)) = *(options.*kSizes[i]);
  }
  return layout;
}

// The checks and their order are HF Accelerate's.
void check(const ParallelismOptions& options) {
  check_size("dp_replicate_size", *options.dp_replicate_size);
  check_size("dp_shard_size", *options.dp_shard_size);
  check_size("tp_size", *options.tp_size);
  check_size("cp_size", *options.cp_size);
  check_backend("cp_backend", *options.cp_backend, "torch");
  check_size("sp_size", *options.sp_size);
  check_backend("sp_backend", *options.sp_backend, "deepspeed");
  check_size("pp_size", *options.pp_size);
  check_size("ep_size", *options.ep_size);
  check_product(options);
  check_layout(layout_of(options));
}

ParallelismOptions resolve(ParallelismOptions options, const Environment& environment) {
  fill_fields(options, kSection, environment);
  fill_handler(options.tp_handler, *options.tp_size, environment);
  fill_handler(options.cp_handler, *options.cp_size, environment);
  fill_handler(options.sp_handler, *options.sp_size, environment);
  return options;
}

}  // namespace

absl::Span<const MeshAxis> parts_of(MeshAxis axis) {
  using enum MeshAxis;
  static constexpr MeshAxis kPlain[] = {kPp, kDpReplicate, kDpShard, kCp, kSp, kTp};
  static_assert(std::size(kPlain) == kNumPlainAxes);
  static constexpr MeshAxis kExperts[] = {kEp, kEdp};
  const absl::Span<const MeshAxis> plain(kPlain);
  switch (axis) {
    case kDp: return plain.subspan(1, 2);
    case kDpShardCp: return plain.subspan(2, 2);
    case kDpCp: return plain.subspan(1, 3);
    case kDpCpSp: return plain.subspan(1, 4);
    case kDpShardCpSp: return plain.subspan(2, 3);
    case kEp: return absl::MakeConstSpan(kExperts).subspan(0, 1);
    case kEdp: return absl::MakeConstSpan(kExperts).subspan(1, 1);
    default: return plain.subspan(static_cast<size_t>(axis), 1);
  }
}

void check_layout(const RankLayout& layout) {
  const std::optional<IllegalLayout> illegal = find_illegal(layout);
  TORCH_CHECK_VALUE(!illegal, illegal->text());
}

TorchTensorParallelConfig resolve(TorchTensorParallelConfig handler,
                                  const Environment& /*environment*/) {
  if (handler.enable_async_tp) {
    TORCH_WARN("Async tensor parallelism is currently not supported, ignoring this option.");
  }
  return handler;
}

TorchContextParallelConfig resolve(TorchContextParallelConfig handler,
                                   const Environment& environment) {
  fill_fields(handler, kSection, environment);
  TORCH_CHECK_VALUE(
      *handler.cp_comm_strategy == "allgather" || *handler.cp_comm_strategy == "alltoall",
      "Invalid cp_comm_strategy: ", *handler.cp_comm_strategy,
      ". Must be one of 'allgather' or 'alltoall'.");
  return handler;
}

DeepSpeedSequenceParallelConfig resolve(DeepSpeedSequenceParallelConfig handler,
                                        const Environment& environment) {
  constexpr char kLength[] = "sp_seq_length";
  fill_fields(handler, kSection, environment, {kLength});
  if (!*handler.sp_seq_length_is_variable) {
    fill_field(handler.sp_seq_length, *options::find_field(kSection, kLength), environment);
    TORCH_CHECK_VALUE(handler.sp_seq_length,
                      "when `sp_seq_length_is_variable` is `False` `sp_seq_length` must be "
                      "provided either through the constructor or the environment variable "
                      "PARALLELISM_CONFIG_SP_SEQ_LENGTH");
  }
  if (!handler.sp_attn_implementation) return handler;
  const std::string& kernel = *handler.sp_attn_implementation;
  TORCH_CHECK_VALUE(kernel != "eager" && kernel != "flex_attention",
                    "Invalid sp_attn_implementation: ", kernel,
                    ". 'eager' and 'flex_attention' are not supported with sequence parallelism.");
  const bool is_from_hub =
      absl::StrContains(kernel, "/") && absl::StrContains(kernel, "flash-attn");
  TORCH_CHECK_VALUE(kernel == "flash_attention_2" || kernel == "flash_attention_3" ||
                        kernel == "sdpa" || is_from_hub,
                    "Invalid sp_attn_implementation: ", kernel,
                    ". Must be one of ['flash_attention_2', 'flash_attention_3', 'sdpa'] or a "
                    "hub-hosted flash attention kernel (e.g. 'kernels-community/flash-attn2').");
  return handler;
}

ParallelismConfig::ParallelismConfig(ParallelismOptions options, const Environment& environment)
    : options_(resolve(std::move(options), environment)) {
  check(options_);
}

int ParallelismConfig::size(MeshAxis axis) const {
  if (axis == MeshAxis::kEp) return static_cast<int>(*options_.ep_size);
  if (axis == MeshAxis::kEdp) return size(MeshAxis::kDpShardCpSp) / ep_size();
  int64_t size = 1;
  for (const MeshAxis part : parts_of(axis)) size *= *(options_.*kSizes[static_cast<size_t>(part)]);
  return static_cast<int>(size);
}

RankLayout ParallelismConfig::layout() const { return layout_of(options_); }

std::vector<std::string> ParallelismConfig::enabled_names(absl::Span<const MeshAxis> axes) const {
  std::vector<std::string> names;
  for (const MeshAxis axis : axes) {
    if (enabled(axis)) names.emplace_back(to_string(axis));
  }
  return names;
}

std::vector<std::string> ParallelismConfig::fsdp_dim_names() const {
  std::vector<std::string> names = enabled_names({MeshAxis::kDpReplicate});
  names.emplace_back(to_string(MeshAxis::kDpShardCp));
  return names;
}

std::vector<std::string> ParallelismConfig::active_mesh_dims() const {
  std::vector<std::string> names = dp_dim_names();
  for (std::string& name : non_dp_dim_names()) names.push_back(std::move(name));
  return names;
}

void ParallelismConfig::validate_accelerator(const AcceleratorFacts& accelerator) {
  if (total_size() == 1) {
    if (!accelerator.multi_device) return;
    options_.dp_replicate_size = accelerator.num_processes;
  }
  // HF Accelerate leaves the number of ranks under sequence parallelism to DeepSpeed. The text is
  // HF Accelerate's, which has no pp_size.
  TORCH_CHECK_VALUE(sp_enabled() || total_size() == accelerator.num_processes,
                    "ParallelismConfig total_size (", total_size(),
                    ") does not match num_processes (", accelerator.num_processes,
                    "). Please adjust dp_replicate_size/ "
                    "dp_shard_size/tp_size/cp_size/sp_size",
                    pp_enabled() ? "/pp_size." : ".");
  TORCH_CHECK_VALUE(
      total_size() == 1 || accelerator.is_fsdp2 || accelerator.multi_device ||
          accelerator.distributed_type == DistributedType::kDeepSpeed,
      "ParallelismConfig is only compatible DistributedType.FSDP (version 2) or "
      "DistributedType.Multi{Device} or DistributedType.DEEPSPEED, but got DistributedType.",
      to_string(accelerator.distributed_type), ".");
  RankLayout asked = layout();
  asked.fsdp = accelerator.is_fsdp2;
  check_layout(asked);
  if (!accelerator.is_main_process) return;
  std::vector<std::string> lines;
  const auto warn_of = [&](const char* axis, bool is_ignored) {
    if (!is_ignored) return;
    lines.push_back(absl::StrCat("ParallelismConfig.", axis, "_handler is set, but ", axis,
                                 "_size is set to 1. This handler will be ignored."));
  };
  warn_of("cp", cp_handler() && !cp_enabled());
  warn_of("sp", sp_handler() && !sp_enabled());
  warn_of("tp", tp_handler() && !tp_enabled());
  if (!lines.empty()) {
    TORCH_WARN("ParallelismConfig has the following warnings:\n", absl::StrJoin(lines, "\n"));
  }
}

void ParallelismConfig::fill_replicas(int num_processes) {
  const int rest = non_data_parallel_size();
  if (data_parallel_size() > 1 || num_processes % rest != 0) return;
  options_.dp_replicate_size = num_processes / rest;
}

nlohmann::ordered_json ParallelismConfig::to_json() const { return to_dict(options_); }

}  // namespace accelerate
