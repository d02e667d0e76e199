// Collectives with gradients, and the loss of logits that are cut among ranks, on simulated devices
// with values and without: what is sent, to the byte, and the same virtual time.
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/tensor/loss.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Numerics;
using simulator::Rank;
using simulator::Traffic;

struct Outcome {
  double bytes = 0;  // that all ranks send together
  absl::Duration elapsed;
};

Outcome run(Numerics numerics,
            const std::function<void(const ProcessGroupPtr& tp, at::Device device)>& body) {
  ClusterOptions options;
  options.numerics = numerics;
  options.record = true;
  if (numerics == Numerics::kShapes) options.largest_real_tensor = 64;
  Cluster cluster("1x2:h100", options);
  cluster.run_on_every_rank(
      [&](Rank& rank) { body(rank.runtime().new_group({.name = "tp"}), rank.runtime().device()); });
  Outcome outcome{.elapsed = cluster.elapsed()};
  for (const Traffic& pair : cluster.trace().communication) outcome.bytes += pair.bytes;
  return outcome;
}

// 512 tokens: a rank sends as many float32 numbers three times.
TEST(ParallelCrossEntropy, SendsThreeNumbersAToken) {
  const auto body = [](const ProcessGroupPtr& tp, at::Device device) {
    const at::Tensor logits = at::zeros({512, 128}, device).requires_grad_();
    const at::Tensor target = at::zeros({512}, at::TensorOptions(device).dtype(at::kLong));
    const at::Tensor loss = parallel_cross_entropy(logits, target, {}, tp, 256);
    EXPECT_EQ(loss.dim(), 0);
    loss.backward();
    EXPECT_EQ(logits.grad().sizes(), logits.sizes());
  };
  const Outcome real = run(Numerics::kReal, body);
  const Outcome shapes = run(Numerics::kShapes, body);
  EXPECT_EQ(real.bytes, 2 * 6144);
  EXPECT_EQ(shapes.bytes, 2 * 6144);
  EXPECT_EQ(real.elapsed, shapes.elapsed);
}

TEST(DifferentiableCollectives, SendEachByteOnce) {
  const std::vector<int64_t> part{8, 16, 32};
  const auto body = [&](const ProcessGroupPtr& tp, at::Device device) {
    const auto pass = [&](const std::vector<int64_t>& sizes, const std::vector<int64_t>& expected,
                          const std::function<at::Tensor(const at::Tensor&)>& collective) {
      const at::Tensor input = at::zeros(sizes, device).requires_grad_();
      const at::Tensor result = collective(input);
      EXPECT_EQ(result.sizes(), at::IntArrayRef(expected));
      EXPECT_TRUE(result.is_contiguous());
      result.backward(at::ones(expected, device));
      EXPECT_EQ(input.grad().sizes(), input.sizes());
    };
    pass(part, part,
         [&](const at::Tensor& x) { return identity_forward_all_reduce_backward(x, tp); });
    pass(part, part,
         [&](const at::Tensor& x) { return all_reduce_forward_identity_backward(x, tp); });
    for (const int64_t dim : {0, 1, 2}) {
      std::vector<int64_t> whole = part;
      whole[static_cast<size_t>(dim)] *= 2;
      pass(part, whole, [&](const at::Tensor& x) { return all_gather_along(x, dim, tp); });
      pass(whole, part, [&](const at::Tensor& x) { return reduce_scatter_along(x, dim, tp); });
      pass(part, whole,
           [&](const at::Tensor& x) { return gather_along_split_backward(x, dim, tp); });
      pass(whole, part,
           [&](const at::Tensor& x) { return split_along_gather_backward(x, dim, tp); });
    }
  };
  const Outcome real = run(Numerics::kReal, body);
  const Outcome shapes = run(Numerics::kShapes, body);
  // Among two ranks a sum, a gather and a reduce-scatter each send as much as a part is large.
  // There are two sums, and along each dim four gathers and two reduce-scatters.
  const double bytes = 8 * 16 * 32 * 4;
  EXPECT_EQ(real.bytes, 2 * (2 + 3 * 6) * bytes);
  EXPECT_EQ(shapes.bytes, real.bytes);
  EXPECT_EQ(real.elapsed, shapes.elapsed);
}

}  // namespace
}  // namespace accelerate
