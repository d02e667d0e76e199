#include "accelerate/parallel/ulysses/ulysses_technique.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/attention_calls.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"

namespace accelerate {
namespace {

constexpr int64_t kHeads = 1, kTokens = 2;  // dims of queries, keys and values

// Each head `times` times.
at::Tensor repeated(const at::Tensor& heads, int64_t times) {
  if (times == 1) return heads;
  return heads.unsqueeze(2)
      .expand({heads.size(0), heads.size(kHeads), times, heads.size(kTokens), heads.size(3)})
      .flatten(1, 2);
}

// As many heads of keys as travel: the ranks' queries find theirs among those of their own rank.
int64_t heads_to_send(int64_t key_heads, int64_t heads, int64_t ranks) {
  if (key_heads % ranks == 0) return key_heads;
  return ranks % key_heads == 0 ? ranks : heads;
}

std::string divisors_text(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return absl::StrJoin(divisors, ", ");
}

class UlyssesHandler final : public DividedAttention {
 public:
  UlyssesHandler(ProcessGroupPtr group, int rank, int64_t tokens)
      : DividedAttention(MeshAxis::kSp, rank, tokens), group_(std::move(group)) {}

  void call(const OperatorCall& call) override {
    if (is_backward_of_operator_scope()) return call.proceed();
    DividedAttention::call(call);
  }

 private:
  struct Attention {
    at::Tensor queries, keys, values;  // [batch, heads, tokens, size of a head]
    at::Tensor mask;                   // may be undefined
    double dropout = 0;
    bool is_causal = false;
    std::optional<double> scale;
    bool shares_key_heads = false;
  };

  at::Tensor attention(c10::ArrayRef<c10::IValue> given) override {
    // Marks and random numbers of other handlers are of what the model computes.
    const OperatorModeScope inside{OperatorHandlers()};
    return attend(
        {.queries = given[0].toTensor(),
         .keys = given[1].toTensor(),
         .values = given[2].toTensor(),
         .mask = given[3].isNone() ? at::Tensor() : given[3].toTensor(),
         .dropout = given[4].toScalar().toDouble(),
         .is_causal = given[5].toBool(),
         .scale = given[6].isNone() ? std::nullopt : std::optional(given[6].toScalar().toDouble()),
         .shares_key_heads = given[7].toBool()});
  }

  at::Tensor attend(const Attention& attention) const {
    check(attention);
    const int64_t ranks = group_->getSize();
    const int64_t heads = attention.queries.size(kHeads), key_heads = attention.keys.size(kHeads);
    const int64_t sent = heads_to_send(key_heads, heads, ranks);
    const auto whole_of = [&](const at::Tensor& parts) {
      return all_to_all_along(parts, kHeads, kTokens, group_);
    };
    const at::Tensor queries = whole_of(attention.queries);
    at::Tensor keys = whole_of(repeated(attention.keys, sent / key_heads));
    at::Tensor values = whole_of(repeated(attention.values, sent / key_heads));
    const int64_t shared_by = heads / sent;
    // On CPUs LibTorch computes shared heads by slow operators, and some releases compute nonsense.
    const bool shares = shared_by > 1 && queries.is_cuda();
    if (!shares) {
      keys = repeated(keys, shared_by);
      values = repeated(values, shared_by);
    }
    const at::Tensor attended = at::scaled_dot_product_attention(
        queries, keys, values,
        attention.mask.defined() ? std::optional(attention.mask) : std::nullopt, /*dropout_p=*/0.0,
        attention.is_causal, attention.scale, shares);
    return all_to_all_along(attended, kTokens, kHeads, group_);
  }

  void check(const Attention& attention) const {
    const int64_t ranks = group_->getSize();
    for (const at::Tensor& each : {attention.queries, attention.keys, attention.values}) {
      TORCH_CHECK_VALUE(each.dim() == 4, on_this_rank(),
                        "scaled_dot_product_attention gets a tensor of sizes ", each.sizes(),
                        ", but ranks along sp divide [batch, heads, tokens, size of a head]");
    }
    TORCH_CHECK_VALUE(attention.dropout == 0, on_this_rank(),
                      "scaled_dot_product_attention has dropout_p=", attention.dropout,
                      ", but ranks along sp would leave out other places than one rank; set it "
                      "to 0");
    const int64_t heads = attention.queries.size(kHeads), key_heads = attention.keys.size(kHeads);
    TORCH_CHECK_VALUE(heads % ranks == 0, on_this_rank(), "scaled_dot_product_attention has ",
                      heads, " heads, which do not divide evenly among the ", ranks,
                      " ranks along sp; set sp_size to one of ", divisors_text(heads));
    TORCH_CHECK_VALUE(
        key_heads > 0 && heads % key_heads == 0 && attention.values.size(kHeads) == key_heads &&
            (attention.shares_key_heads || key_heads == heads || key_heads == 1),
        on_this_rank(), "scaled_dot_product_attention has ", heads, " heads of queries, ",
        key_heads, " of keys and ", attention.values.size(kHeads), " of values",
        attention.shares_key_heads ? "" : ", without enable_gqa");
    check_mask(attention);
  }

  void check_mask(const Attention& attention) const {
    const at::Tensor& mask = attention.mask;
    if (!mask.defined()) return;
    const int64_t ranks = group_->getSize();
    const int64_t rows = attention.queries.size(kTokens) * ranks;
    const int64_t columns = attention.keys.size(kTokens) * ranks;
    const bool is_whole = mask.dim() >= 2 && (mask.size(-2) == rows || mask.size(-2) == 1) &&
                          mask.size(-1) == columns;
    TORCH_CHECK_VALUE(is_whole && (mask.dim() < 3 || mask.size(-3) == 1), on_this_rank(),
                      "scaled_dot_product_attention has a mask of sizes ", mask.sizes(),
                      ", but ranks along sp attend to ", columns, " tokens from ", rows,
                      ", each with other heads; give a mask of these sizes that is the same for "
                      "all heads, or is_causal=true in place of it");
  }

  const ProcessGroupPtr group_;
};

bool is_integral(const at::Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

// The tokens of a pass, integers [batch, tokens], or what else comes first with such sizes;
// undefined if nothing does.
at::Tensor tokens_of(const std::vector<at::Tensor>& inputs) {
  const auto found = std::ranges::find_if(
      inputs, [](const at::Tensor& input) { return input.defined() && input.dim() >= 2; });
  return found == inputs.end() ? at::Tensor() : *found;
}

// Whether integers with a number for each token come besides. `reads_values`: and they are not a
// mask of zeros and ones.
bool has_positions(const std::vector<at::Tensor>& inputs, const at::Tensor& tokens,
                   bool reads_values) {
  return std::ranges::any_of(inputs, [&](const at::Tensor& input) {
    return input.defined() && !input.is_same(tokens) && input.dim() >= 1 && is_integral(input) &&
           input.size(-1) == tokens.size(1) &&
           (!reads_values || tokens.size(1) < 3 || input.gt(1).any().item<bool>());
  });
}

class UlyssesTechnique final : public Technique {
 public:
  UlyssesTechnique(ProcessGroupPtr group, int rank, std::shared_ptr<RandomStreams> streams)
      : group_(std::move(group)), rank_(rank), streams_(std::move(streams)) {}

  std::string_view name() const override { return kUlyssesTechnique; }

  void forward(ForwardPass& pass) override {
    const std::vector<at::Tensor> inputs = pass.inputs();
    const at::Tensor tokens = tokens_of(inputs);
    const auto handler =
        std::make_shared<UlyssesHandler>(group_, rank_, tokens.defined() ? tokens.size(1) : 0);
    {
      const OperatorModeScope attention(handler), draws(streams_);
      pass.proceed();
    }
    num_attention_calls_ += handler->num_calls();
    if (handler->num_calls() == 0 || !tokens.defined() || !is_integral(tokens)) return;
    // Reading values makes the host wait for the device, so that is done once.
    const bool reads_values = !knows_positions_ && !has_shapes_alone(Runtime::current());
    TORCH_CHECK_VALUE(has_positions(inputs, tokens, reads_values), "rank ", rank_,
                      ": the model attends to ", tokens.size(1), " tokens of each of ",
                      size_of(group_),
                      " ranks along sp, but its forward pass gets no positions for them, which "
                      "would begin at 0 on each rank; give it the numbers of the tokens in their "
                      "sequences (the loader's \"position_ids\")");
    knows_positions_ = true;
  }

  std::string passes_text() const override {
    return divided_attention_text(MeshAxis::kSp, num_attention_calls_);
  }

 private:
  int64_t num_attention_calls_ = 0;
  const ProcessGroupPtr group_;
  const int rank_;
  const std::shared_ptr<RandomStreams> streams_;
  bool knows_positions_ = false;
};

}  // namespace

std::unique_ptr<Technique> make_ulysses_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.device_mesh == nullptr || plan.mesh.size(MeshAxis::kSp) == 1) return nullptr;
  const ProcessGroupPtr& group = plan.device_mesh->group(MeshAxis::kSp);
  return std::make_unique<UlyssesTechnique>(group, plan.rank, RandomStreams::along(group));
}

}  // namespace accelerate
