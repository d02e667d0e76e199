#include <cmath>
#include <string>

#include <ATen/Functions.h>
#include <torch/utils.h>

#include "absl/strings/str_cat.h"
#include "accelerate/parallel/sequence/attention_block.h"
#include "integration_tests/gpu/checks.h"

namespace accelerate::device_checks {
namespace {

constexpr int64_t kTokens = 100, kSize = 64;  // no kernel's blocks divide these tokens

double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor on_host = actual.cpu().to(at::kDouble);
  return ((on_host - expected).norm() / expected.norm()).item<double>();
}

// Two blocks of keys, of which a head serves two heads of queries, beside the definition.
void check_two_blocks(c10::Device device, at::ScalarType dtype, double tolerance) {
  torch::manual_seed(3);
  const auto drawn = [&](int64_t heads) {
    return at::randn({2, heads, kTokens, kSize}).to(dtype).to(at::kDouble);
  };
  const at::Tensor queries = drawn(4).requires_grad_(), keys = drawn(2).requires_grad_(),
                   values = drawn(2).requires_grad_(), gradient = drawn(4);
  const auto repeated = [](const at::Tensor& x) { return x.repeat_interleave(2, 1); };
  const at::Tensor scores =
      queries.matmul(repeated(keys).transpose(-1, -2)) / std::sqrt(static_cast<double>(kSize));
  const at::Tensor output = scores.softmax(-1).matmul(repeated(values));
  output.backward(gradient);

  const at::NoGradGuard no_grad;
  const auto there = [&](const at::Tensor& x) { return x.detach().to(device, dtype); };
  const auto half = [&](const at::Tensor& x, int number) {
    return there(x).narrow(2, number * kTokens / 2, kTokens / 2);
  };
  const at::Tensor own = there(queries);
  AttentionBlock blocks[2];
  for (int i = 0; i < 2; ++i) blocks[i] = attend(own, half(keys, i), half(values, i), {});
  AttentionBlock whole{.log_sum = at::logaddexp(blocks[0].log_sum, blocks[1].log_sum)};
  at::Tensor sum = at::zeros(own.sizes(), own.options().dtype(at::kFloat));
  for (const AttentionBlock& each : blocks) {
    sum += each.output * (each.log_sum - whole.log_sum).exp().unsqueeze(-1);
  }
  whole.output = sum.to(dtype);
  const auto check = [&](const at::Tensor& actual, const at::Tensor& expected, const char* what) {
    const double error = error_of(actual, expected);
    expect(error < tolerance, absl::StrCat(c10::toString(dtype), ", ", what, ": off by ", error));
  };
  check(whole.output, output.detach(), "output");
  check(whole.log_sum, scores.detach().logsumexp(-1), "log-sum-exp");
  at::Tensor of_queries = at::zeros_like(sum);
  for (int i = 0; i < 2; ++i) {
    const AttentionGradients block =
        attend_backward(there(gradient), own, half(keys, i), half(values, i), whole, {});
    of_queries += block.queries;
    const auto of_heads = [](const at::Tensor& x) { return x.unflatten(1, {2, 2}).sum({2}); };
    const auto expected = [i](const at::Tensor& x) {
      return x.grad().narrow(2, i * kTokens / 2, kTokens / 2);
    };
    check(of_heads(block.keys.to(at::kFloat)), expected(keys), "gradient of keys");
    check(of_heads(block.values.to(at::kFloat)), expected(values), "gradient of values");
  }
  check(of_queries, queries.grad(), "gradient of queries");
}

}  // namespace

void check_attention_blocks(c10::Device device) {
  check_two_blocks(device, at::kFloat, 1e-5);
  check_two_blocks(device, at::kBFloat16, 1e-2);
}

}  // namespace accelerate::device_checks
