#include "accelerate/parallel/sequence/context_handler.h"

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

constexpr size_t kNumArguments = 8;  // of scaled_dot_product_attention

// As the operator gets it where automatic mixed precision is on, which would act after the handler.
at::Tensor as_computed(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
}

// [batch, length, size] is one head.
at::Tensor with_heads(const at::Tensor& x) { return x.dim() == 3 ? x.unsqueeze(1) : x; }

}  // namespace

ContextHandler::ContextHandler(ContextRing ring, int rank, int64_t tokens)
    : OperatorHandler(OperatorOrder::kAttention),
      ring_(std::move(ring)),
      rank_(rank),
      tokens_(tokens) {}

void ContextHandler::call(const OperatorCall& call) {
  static const c10::OperatorHandle attention_op = find("aten::scaled_dot_product_attention");
  if (call.op() == attention_op) {
    at::Tensor output = attention(call);
    torch::jit::drop(call.stack(), kNumArguments);
    torch::jit::push(call.stack(), std::move(output));
    return;
  }
  TORCH_CHECK_VALUE(!is_softmax_of_scores(call), on_this_rank(), call.op().schema().name(),
                    " of scores ", torch::jit::peek(call.stack(), 0, 3).toTensor().sizes(),
                    " inside maybe_context_parallel: attention that a module computes itself is "
                    "that of the ",
                    tokens_,
                    " tokens which this rank has of each sequence; let it call "
                    "scaled_dot_product_attention");
  call.proceed();
}

bool ContextHandler::is_softmax_of_scores(const OperatorCall& call) const {
  static const std::array<c10::OperatorHandle, 3> softmax = {
      find("aten::softmax", "int"), find("aten::_softmax"), find("aten::special_softmax")};
  if (tokens_ < 2) return false;
  bool is_softmax = false;
  for (const c10::OperatorHandle& each : softmax) is_softmax |= call.op() == each;
  if (!is_softmax) return false;
  // All three take the tensor, the dim and a third argument.
  const at::Tensor& scores = torch::jit::peek(call.stack(), 0, 3).toTensor();
  const int64_t dim = torch::jit::peek(call.stack(), 1, 3).toInt();
  return scores.dim() >= 3 && (dim == -1 || dim == scores.dim() - 1) &&
         scores.size(-1) == tokens_ && scores.size(-2) == tokens_;
}

at::Tensor ContextHandler::attention(const OperatorCall& call) {
  const auto argument = [&call](size_t i) -> const c10::IValue& {
    return torch::jit::peek(call.stack(), i, kNumArguments);
  };
  const auto check = [this](bool is_fine, const auto&... why) {
    TORCH_CHECK_VALUE(is_fine, on_this_rank(),
                      "scaled_dot_product_attention inside maybe_context_parallel ", why...);
  };
  const at::Tensor& given = argument(0).toTensor();
  check(argument(3).isNone(),
        "has a mask, which ranks that have some tokens of a sequence do not divide; let "
        "is_causal=true say that tokens see those before them, and leave the mask out");
  const double dropout = argument(4).toDouble();
  check(dropout == 0, "has a dropout of ", dropout, ", which must be 0");
  const at::Tensor queries = as_computed(with_heads(given));
  const at::Tensor keys = as_computed(with_heads(argument(1).toTensor()));
  const at::Tensor values = as_computed(with_heads(argument(2).toTensor()));
  check(queries.dim() == 4 && keys.dim() == 4 && values.sizes() == keys.sizes() &&
            queries.size(0) == keys.size(0) && queries.size(3) == keys.size(3),
        "needs [batch, heads, tokens, size of a head], and keys and values of one shape, but has ",
        queries.sizes(), ", ", keys.sizes(), " and ", values.sizes());
  check(
      queries.scalar_type() == keys.scalar_type() && queries.scalar_type() == values.scalar_type(),
      "has queries, keys and values of ", queries.scalar_type(), ", ", keys.scalar_type(), " and ",
      values.scalar_type(), ", which must be one dtype");
  const int64_t heads = queries.size(1), shared = keys.size(1);
  const bool shares = argument(7).toBool();
  check(heads == shared || (shares && shared > 0 && heads % shared == 0), "has ", heads,
        " heads of queries and ", shared, " of keys; with enable_gqa as many queries share each");
  const int64_t tokens = queries.size(2);
  check(tokens == keys.size(2) && (tokens_ == 0 || tokens == tokens_), "has ", tokens,
        " queries and ", keys.size(2), " keys, but each rank along cp has ",
        tokens_ == 0 ? "as many of both" : absl::StrCat(tokens_, " tokens of a sequence"),
        "; generate tokens, and attend to other sequences, outside of the scope");
  const at::Tensor output = ring_attention(
      queries, keys, values,
      {.is_causal = argument(5).toBool(), .scale = argument(6).toOptional<double>()}, ring_);
  ++num_calls_;
  return given.dim() == 3 ? output.squeeze(1) : output;
}

std::string ContextHandler::on_this_rank() const { return absl::StrCat("rank ", rank_, ": "); }

}  // namespace accelerate
