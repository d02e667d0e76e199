#include "accelerate/parallel/sequence/ring_attention.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "accelerate/comm/operations.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kTokens = 2;  // the dim of tokens

// Some of a rank's tokens: in balanced order the head of a sequence and its tail are half each.
enum class Half { kAll, kHead, kTail };

at::Tensor cut(const at::Tensor& x, Half half) {
  if (half == Half::kAll) return x;
  const int64_t count = x.size(kTokens) / 2;
  return x.narrow(kTokens, half == Half::kHead ? 0 : count, count);
}

// Which of this rank's queries see which keys of another rank.
struct Sight {
  Half queries = Half::kAll;
  Half keys = Half::kAll;
  bool is_causal = false;
};

struct Call : torch::CustomClassHolder {
  Call(ContextRing its_ring, const AttentionRule& its_rule)
      : ring(std::move(its_ring)),
        rule(its_rule),
        rank(rank_of(ring.group)),
        ranks(size_of(ring.group)) {}

  // The rank `step` places before this one.
  int source(int step) const { return (rank - step + ranks) % ranks; }

  // What queries see of the keys of the source; nothing where no query sees any.
  std::optional<Sight> sight(int step) const {
    if (!rule.is_causal) return Sight{};
    if (step == 0) return Sight{.is_causal = true};
    const bool is_before = source(step) < rank;
    if (ring.order == SequenceOrder::kInTurn) {
      return is_before ? std::optional<Sight>(Sight{}) : std::nullopt;
    }
    // All of the source's tokens but those of its tail are before this rank's, or only this rank's
    // tail is behind them, and then it is behind all of them.
    return is_before ? Sight{.keys = Half::kHead} : Sight{.queries = Half::kTail};
  }

  AttentionRule rule_of(const Sight& sight) const {
    return {.is_causal = sight.is_causal, .scale = rule.scale};
  }

  const ContextRing ring;
  const AttentionRule rule;
  const int rank, ranks;
};

// A tensor on its way to the next rank, and the one that comes from the rank before.
class Hop {
 public:
  Hop(const Call& call, at::Tensor sent)
      : sent_(std::move(sent)), received_(at::empty(sent_.sizes(), sent_.options())) {
    const auto place = [&call](int step) { return static_cast<size_t>(call.source(step)); };
    std::vector<int64_t> gives(static_cast<size_t>(call.ranks)), takes(gives);
    gives[place(-1)] = takes[place(1)] = sent_.size(0);
    work_ = call.ring.group->alltoall_base(received_, sent_, takes, gives);
  }

  at::Tensor take() {
    work_->wait();
    return std::move(received_);
  }

 private:
  at::Tensor sent_, received_;
  c10::intrusive_ptr<c10d::Work> work_;
};

// The keys and values of each source, [2, batch, heads, tokens, size of a head], which are to be
// taken step by step.
class KeysAndValues {
 public:
  KeysAndValues(const Call& call, const at::Tensor& keys, const at::Tensor& values)
      : call_(call), current_(at::stack({keys, values})) {
    if (call.ranks > 1 && call.ring.gathers) all_ = gather_tensor(call.ring.group, current_);
  }

  at::Tensor take(int step) {
    if (all_.defined()) return all_.narrow(0, 2 * call_.source(step), 2);
    if (step > 0) current_ = hop_->take();
    if (step + 1 < call_.ranks) hop_.emplace(call_, current_);
    return current_;
  }

 private:
  const Call& call_;
  at::Tensor current_, all_;
  std::optional<Hop> hop_;
};

// The gradients of keys and values on their way to the ranks that have these.
class KeyGradients {
 public:
  // `keys_and_values`: those of one rank, for sizes and dtype.
  KeyGradients(const Call& call, const at::Tensor& keys_and_values)
      : call_(call), like_(keys_and_values) {
    if (call.ranks > 1 && !call.ring.gathers) return;
    std::vector<int64_t> sizes = like_.sizes().vec();
    sizes[0] *= call.ranks;
    all_ = at::zeros(sizes, like_.options());
  }

  // This rank's share of those of a step's source, in the dtype of sums; undefined: none.
  void add(int step, at::Tensor share) {
    if (all_.defined()) {
      if (share.defined()) all_.narrow(0, 2 * call_.source(step), 2).copy_(share);
      return;
    }
    if (step > 0) {
      const at::Tensor others = hop_->take();
      share = share.defined() ? share.add_(others) : others;
    }
    hop_.emplace(call_, share.to(like_.scalar_type()));
  }

  // The sum for this rank's keys.
  at::Tensor sum() {
    if (!all_.defined()) return hop_->take();
    if (call_.ranks == 1) return all_;
    at::Tensor own = at::empty(like_.sizes(), like_.options());
    call_.ring.group->_reduce_scatter_base(own, all_)->wait();
    return own;
  }

 private:
  const Call& call_;
  const at::Tensor like_;
  at::Tensor all_;
  std::optional<Hop> hop_;
};

// Adds the result for more keys to that for the keys so far.
void join(AttentionBlock& sum, const AttentionBlock& more, Half queries) {
  const at::Tensor output = cut(sum.output, queries), log_sum = cut(sum.log_sum, queries);
  const at::Tensor joined = at::logaddexp(log_sum, more.log_sum);
  output.mul_((log_sum - joined).exp().unsqueeze(-1))
      .add_(more.output * (more.log_sum - joined).exp().unsqueeze(-1));
  log_sum.copy_(joined);
}

AttentionBlock attend_to_all(const Call& call, const at::Tensor& queries, const at::Tensor& keys,
                             const at::Tensor& values) {
  const at::ScalarType sums = at::toOpMathType(queries.scalar_type());
  KeysAndValues others(call, keys, values);
  AttentionBlock sum;
  for (int step = 0; step < call.ranks; ++step) {
    const at::Tensor pair = others.take(step);
    const std::optional<Sight> sight = call.sight(step);
    if (!sight) continue;
    AttentionBlock block = attend(cut(queries, sight->queries), cut(pair[0], sight->keys),
                                  cut(pair[1], sight->keys), call.rule_of(*sight));
    block.output = block.output.to(sums);
    if (step == 0) {
      sum = {.output = std::move(block.output), .log_sum = block.log_sum.contiguous()};
    } else {
      join(sum, block, sight->queries);
    }
  }
  sum.output = sum.output.to(queries.scalar_type());
  return sum;
}

// The sum over the heads of queries that share one of keys: [batch, heads of keys, tokens, size].
at::Tensor summed_over_queries(const at::Tensor& gradient, int64_t heads, at::ScalarType sums) {
  if (gradient.size(1) == heads) return gradient.to(sums);
  return gradient.unflatten(1, {heads, gradient.size(1) / heads}).sum({2}, /*keepdim=*/false, sums);
}

AttentionGradients attend_to_all_backward(const Call& call, const at::Tensor& gradient,
                                          const at::Tensor& queries, const at::Tensor& keys,
                                          const at::Tensor& values, const AttentionBlock& whole) {
  const at::ScalarType sums = at::toOpMathType(queries.scalar_type());
  KeysAndValues others(call, keys, values);
  std::optional<KeyGradients> of_keys;
  at::Tensor of_queries;
  for (int step = 0; step < call.ranks; ++step) {
    const at::Tensor pair = others.take(step);
    if (!of_keys) of_keys.emplace(call, pair);
    at::Tensor share;
    if (const std::optional<Sight> sight = call.sight(step)) {
      const auto own = [&sight](const at::Tensor& x) { return cut(x, sight->queries); };
      const AttentionGradients block = attend_backward(
          own(gradient), own(queries), cut(pair[0], sight->keys), cut(pair[1], sight->keys),
          {.output = own(whole.output), .log_sum = own(whole.log_sum)}, call.rule_of(*sight));
      if (step == 0) {
        of_queries = block.queries.to(sums);
      } else {
        own(of_queries).add_(block.queries);
      }
      const auto of_heads = [&](const at::Tensor& x) {
        return summed_over_queries(x, keys.size(1), sums);
      };
      if (sight->keys == Half::kAll) {
        share = at::stack({of_heads(block.keys), of_heads(block.values)});
      } else {
        share = at::zeros(pair.sizes(), pair.options().dtype(sums));
        cut(share[0], sight->keys).copy_(of_heads(block.keys));
        cut(share[1], sight->keys).copy_(of_heads(block.values));
      }
    }
    of_keys->add(step, std::move(share));
  }
  const at::Tensor own = of_keys->sum();
  return {.queries = of_queries.to(queries.scalar_type()), .keys = own[0], .values = own[1]};
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values,
                            const c10::intrusive_ptr<Call>& call) {
    AttentionBlock whole = attend_to_all(*call, queries, keys, values);
    context->save_for_backward({queries, keys, values, whole.output, whole.log_sum});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return whole.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "attention along cp has no second derivative (backward with create_graph)");
    const OperatorModeScope plain{OperatorHandlers()};
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data.at("call").toCapsule());
    const variable_list saved = context->get_saved_variables();
    const AttentionGradients result =
        attend_to_all_backward(*call, gradients[0], saved[0], saved[1], saved[2],
                               {.output = saved[3], .log_sum = saved[4]});
    return {result.queries, result.keys, result.values, at::Tensor()};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& queries, const at::Tensor& keys,
                          const at::Tensor& values, const AttentionRule& rule,
                          const ContextRing& ring) {
  // Handlers have seen the attention itself.
  const OperatorModeScope plain{OperatorHandlers()};
  const auto call = c10::make_intrusive<Call>(ring, rule);
  const bool has_gradient =
      queries.requires_grad() || keys.requires_grad() || values.requires_grad();
  if (!at::GradMode::is_enabled() || !has_gradient) {
    return attend_to_all(*call, queries, keys, values).output;
  }
  return RingAttention::apply(queries, keys, values, call);
}

}  // namespace accelerate
