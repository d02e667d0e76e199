// Tokens behind those that an engine is given.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/checksum.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/megatron_engine.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/pipeline/pipeline_technique.h"

namespace accelerate {
namespace {

constexpr char kCaller[] = "megatron_generate";

void check_generation(const AbstractTrainStep& step, const at::Tensor& inputs,
                      const MegatronGenerateOptions& options) {
  TORCH_CHECK_VALUE(dynamic_cast<const GPTTrainStep*>(&step) != nullptr, kCaller, ": ", step.name(),
                    " is not for models that read from left to right, as GPTTrainStep is");
  TORCH_CHECK_VALUE(inputs.dim() == 2 && inputs.size(1) > 0, kCaller,
                    ": expected tokens [rows, length], got ", inputs.sizes());
  TORCH_CHECK_VALUE(options.temperature > 0 && options.top_k >= 0 && options.top_p >= 0 &&
                        options.top_p <= 1 && (options.top_k == 0 || options.top_p == 0),
                    kCaller, ": temperature=", options.temperature, ", top_k=", options.top_k,
                    ", top_p=", options.top_p,
                    "; the first is above 0, the last from 0 to 1, and one of the others is 0");
}

// How many tokens each row gets at most.
int64_t most_tokens(const at::Tensor& inputs, const MegatronGenerateOptions& options) {
  constexpr int64_t kUsual = 64;
  return options.max_length ? *options.max_length - inputs.size(1)
                            : options.max_new_tokens.value_or(kUsual);
}

std::string text_of_call(const at::Tensor& inputs, const MegatronGenerateOptions& options) {
  const at::Tensor tokens = inputs.to(at::kCPU, at::kLong).contiguous();
  const absl::string_view bytes(static_cast<const char*>(tokens.const_data_ptr()), tokens.nbytes());
  return absl::StrCat("tokens [", absl::StrJoin(inputs.sizes(), ", "), "] with the checksum ",
                      absl::Hex(internal::crc32c(bytes), absl::kZeroPad8), ", ",
                      most_tokens(inputs, options), " more, temperature=", options.temperature,
                      ", top_k=", options.top_k, ", top_p=", options.top_p,
                      ", seed=", options.seed);
}

// Whether all ranks that make passes together can, and those with parts of one model were asked
// for the same. `text` describes this rank's call. Collective over the ranks that together have
// each element of the model.
void check_calls(const ModelPlacements& placements, const std::function<std::string()>& text) {
  const internal::RankOutcome own = internal::outcome_of(text);
  if (placements.norm == nullptr) {
    if (own.error) std::rethrow_exception(own.error);
    return;
  }
  const std::vector<internal::RankOutcome> all =
      internal::exchange_outcomes(placements.norm, kCaller, own);
  const Mesh& mesh = placements.layout->mesh();
  const RankRoles& roles = *placements.roles;
  const std::vector<int> ranks = mesh.group(placements.rank, roles.norm_axes);
  for (size_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK_VALUE(all[i].ok(), "rank ", ranks[i], ": ", all[i].text);
  }
  std::map<int, size_t> firsts;  // by the number of the shard
  for (size_t i = 0; i < all.size(); ++i) {
    const int shard = mesh.coordinate(ranks[i], roles.shard_axes);
    const size_t first = firsts.try_emplace(shard, i).first->second;
    TORCH_CHECK_VALUE(all[i].text == all[first].text, kCaller,
                      ": ranks along tp and pp give the same tokens and options, but rank ",
                      ranks[first], " has ", all[first].text, ", and rank ", ranks[i], " ",
                      all[i].text);
  }
}

// A token for each row of logits, [rows, vocabulary] on the CPU: [rows, 1].
at::Tensor next_tokens(at::Tensor logits, const MegatronGenerateOptions& options,
                       const at::Generator& generator) {
  if (options.top_k == 1) return logits.argmax(1, /*keepdim=*/true);
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  logits = logits / options.temperature;
  if (options.top_k > 1) {
    const int64_t count = std::min(options.top_k, logits.size(1));
    const at::Tensor least = std::get<0>(logits.topk(count, 1)).narrow(1, count - 1, 1);
    logits = logits.masked_fill(logits.lt(least), kNever);
  } else if (options.top_p > 0) {
    const auto [sorted, order] = logits.sort(1, /*descending=*/true);
    const at::Tensor shares = sorted.softmax(1);
    // The probability of the tokens before each one.
    const at::Tensor before = shares.cumsum(1) - shares;
    const at::Tensor kept = sorted.masked_fill(before.gt(options.top_p), kNever);
    logits = at::zeros_like(logits).scatter(1, order, kept);
  }
  return logits.softmax(1).multinomial(1, /*replacement=*/true, generator);
}

}  // namespace

namespace internal {

at::Tensor MegatronCore::divisible(const at::Tensor& tokens) const {
  const int64_t length = tokens.size(1), rest = length % length_unit_;
  if (rest == 0) return tokens;
  const at::Tensor last = tokens.narrow(1, length - 1, 1);
  return at::cat({tokens, last.expand({tokens.size(0), length_unit_ - rest})}, 1);
}

at::Tensor MegatronCore::generate(
    const ModelState& model, const at::Tensor& inputs, const MegatronGenerateOptions& options,
    const std::function<at::Tensor(const at::Tensor& tokens)>& last_logits) const {
  const ModelPlacements& placements = model.placements();
  check_calls(placements, [&] {
    check_generation(*step_, inputs, options);
    return text_of_call(inputs, options);
  });
  const int64_t most = most_tokens(inputs, options);
  const int64_t end = dynamic_cast<const GPTTrainStep&>(*step_).mask_options().eod_token;
  const auto* const pipeline = model.find_technique<PipelineTechnique>();
  const int last = pipeline == nullptr ? 0 : pipeline->stages().ranks.back();
  const at::NoGradGuard no_grad;
  const at::Generator generator = at::detail::createCPUGenerator(options.seed);
  at::Tensor tokens = inputs.to(at::kLong).to(device_);
  at::Tensor has_ended = at::zeros({inputs.size(0), 1}, at::kBool);
  // Ranks that divide rows of parameters or experts meet in each pass, so that a rank which needs
  // no more makes passes for the others.
  const auto is_wanted = [&](bool by_this_rank) {
    if (placements.shards == nullptr) return by_this_rank;
    const at::Tensor own =
        at::full({1}, by_this_rank ? 1 : 0, at::TensorOptions(device_).dtype(at::kLong));
    return reduce_tensor(placements.shards, own, Reduction::kMax).item<int64_t>() > 0;
  };
  const at::Tensor filler = at::zeros({1, inputs.size(1)}, tokens.options());
  // The first pass behind a step makes the buffers of replicas equal.
  bool owes_a_pass =
      size_of(placements.roles->tokens.group) > 1 && !model.module()->buffers().empty();
  int64_t made = 0;
  for (;;) {
    const bool is_needed = made < most && !has_ended.all().item<bool>();
    if (!is_wanted(is_needed || owes_a_pass)) return tokens;
    owes_a_pass = false;
    if (!is_needed) {
      last_logits(filler);
      continue;
    }
    const at::Tensor logits = last_logits(tokens);
    at::Tensor next = logits.defined() ? next_tokens(logits, options, generator)
                                       : at::empty({tokens.size(0), 1}, at::kLong);
    if (pipeline != nullptr) {
      at::Tensor told = next.to(device_);
      broadcast_tensor(pipeline->group(), told, last);
      next = told.to(at::kCPU);
    }
    next = next.masked_fill(has_ended, end);
    has_ended = has_ended.logical_or(next.eq(end));
    tokens = at::cat({tokens, next.to(device_)}, 1);
    ++made;
  }
}

}  // namespace internal
}  // namespace accelerate
