#include "accelerate/parallel/sequence/context_handler.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

// As the operator gets it where automatic mixed precision is on, which would act after the handler.
at::Tensor as_computed(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
}

// [batch, length, size] is one head.
at::Tensor with_heads(const at::Tensor& x) { return x.dim() == 3 ? x.unsqueeze(1) : x; }

}  // namespace

at::Tensor ContextHandler::attention(c10::ArrayRef<c10::IValue> arguments) {
  const auto check = [this](bool is_fine, const auto&... why) {
    TORCH_CHECK_VALUE(is_fine, on_this_rank(),
                      "scaled_dot_product_attention inside maybe_context_parallel ", why...);
  };
  const at::Tensor& given = arguments[0].toTensor();
  check(arguments[3].isNone(),
        "has a mask, which ranks that have some tokens of a sequence do not divide; let "
        "is_causal=true say that tokens see those before them, and leave the mask out");
  const double dropout = arguments[4].toDouble();
  check(dropout == 0, "has a dropout of ", dropout, ", which must be 0");
  const at::Tensor queries = as_computed(with_heads(given));
  const at::Tensor keys = as_computed(with_heads(arguments[1].toTensor()));
  const at::Tensor values = as_computed(with_heads(arguments[2].toTensor()));
  check(queries.dim() == 4 && keys.dim() == 4 && values.sizes() == keys.sizes() &&
            queries.size(0) == keys.size(0) && queries.size(3) == keys.size(3),
        "needs [batch, heads, tokens, size of a head], and keys and values of one shape, but has ",
        queries.sizes(), ", ", keys.sizes(), " and ", values.sizes());
  check(
      queries.scalar_type() == keys.scalar_type() && queries.scalar_type() == values.scalar_type(),
      "has queries, keys and values of ", queries.scalar_type(), ", ", keys.scalar_type(), " and ",
      values.scalar_type(), ", which must be one dtype");
  const int64_t heads = queries.size(1), shared = keys.size(1);
  const bool shares = arguments[7].toBool();
  check(heads == shared || (shares && shared > 0 && heads % shared == 0), "has ", heads,
        " heads of queries and ", shared, " of keys; with enable_gqa as many queries share each");
  const int64_t length = queries.size(2);
  check(length == keys.size(2) && (tokens() == 0 || length == tokens()), "has ", length,
        " queries and ", keys.size(2), " keys, but each rank along cp has ",
        tokens() == 0 ? "as many of both" : absl::StrCat(tokens(), " tokens of a sequence"),
        "; generate tokens, and attend to other sequences, outside of the scope");
  const at::Tensor output = ring_attention(
      queries, keys, values,
      {.is_causal = arguments[5].toBool(), .scale = arguments[6].toOptional<double>()}, ring_);
  return given.dim() == 3 ? output.squeeze(1) : output;
}

}  // namespace accelerate
