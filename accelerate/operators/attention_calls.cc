#include "accelerate/operators/attention_calls.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/operators/call_arguments.h"

namespace accelerate {
namespace {

void check_attention_by_hand(const OperatorCall& call, int64_t tokens, int rank, MeshAxis axis) {
  static const c10::OperatorHandle kernels[] = {
      find_operator("aten::_scaled_dot_product_flash_attention"),
      find_operator("aten::_scaled_dot_product_flash_attention_for_cpu"),
      find_operator("aten::_scaled_dot_product_efficient_attention"),
      find_operator("aten::_scaled_dot_product_attention_math")};
  // Each takes the tensor first, and then the dim.
  static const c10::OperatorHandle softmax[] = {
      find_operator("aten::softmax", "int"), find_operator("aten::_softmax"),
      find_operator("aten::_safe_softmax"), find_operator("aten::special_softmax")};
  const auto is = [&call](const c10::OperatorHandle& each) { return call.op() == each; };
  const auto check = [&](bool is_fine, const auto&... what) {
    TORCH_CHECK_VALUE(is_fine, "rank ", rank, ": ", call.op().schema().name(), what...,
                      ", which is among the tokens that this rank has of each sequence alone; call "
                      "scaled_dot_product_attention, which ranks along ",
                      to_string(axis), " divide");
  };
  check(std::ranges::none_of(kernels, is), " computes attention");
  if (tokens < 2 || std::ranges::none_of(softmax, is)) return;
  const at::Tensor& scores = arguments_of(call)[0].toTensor();
  const int64_t dim = arguments_of(call)[1].toInt();
  const bool is_attention = scores.dim() >= 3 && (dim == -1 || dim == scores.dim() - 1) &&
                            scores.size(-1) == tokens && scores.size(-2) == tokens;
  check(!is_attention, " of sizes ", scores.sizes(), " looks like attention by hand");
}

}  // namespace

void DividedAttention::call(const OperatorCall& call) {
  static const c10::OperatorHandle attention_op =
      find_operator("aten::scaled_dot_product_attention");
  if (call.op() != attention_op) {
    check_attention_by_hand(call, tokens_, rank_, axis_);
    return call.proceed();
  }
  at::Tensor output = attention(arguments_of(call));
  ++num_calls_;
  torch::jit::drop(call.stack(), arguments_of(call).size());
  torch::jit::push(call.stack(), std::move(output));
}

std::string DividedAttention::on_this_rank() const { return absl::StrCat("rank ", rank_, ": "); }

std::string divided_attention_text(MeshAxis axis, int64_t calls) {
  return absl::StrCat(to_string(axis), ": ranks divided ", calls, " calls of attention");
}

}  // namespace accelerate
