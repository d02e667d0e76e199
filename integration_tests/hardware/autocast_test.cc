// Which operators automatic mixed precision casts, by the kind of device.
// One shape each: the lists of casts belong to a kind of device.
#include <functional>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

// Casts to bfloat16 for as long as it lives.
class Autocast {
 public:
  explicit Autocast(c10::DeviceType type) : type_(type) {
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::set_autocast_dtype(type_, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, false);
  }

 private:
  const c10::DeviceType type_;
};

// Accelerators and the CPU disagree about these: LibTorch's lists say so.
TEST(Autocast, CastsByTheListsOfTheKind) {
  struct Case {
    const char* name;
    std::function<Tensor(const Tensor&)> op;
    at::ScalarType input, on_accelerator, on_cpu;
  };
  const std::vector<Case> cases{
      {"mm", [](const Tensor& x) { return x.mm(x); }, at::kFloat, at::kBFloat16, at::kBFloat16},
      {"linear", [](const Tensor& x) { return at::linear(x, x); }, at::kFloat, at::kBFloat16,
       at::kBFloat16},
      {"addmv", [](const Tensor& x) { return at::addmv(x[0], x, x[0]); }, at::kFloat, at::kBFloat16,
       at::kFloat},
      {"einsum", [](const Tensor& x) { return at::einsum("ij,jk->ik", {x, x}); }, at::kFloat,
       at::kBFloat16, at::kBFloat16},
      {"exp", [](const Tensor& x) { return x.exp(); }, at::kBFloat16, at::kFloat, at::kBFloat16},
      {"softmax", [](const Tensor& x) { return x.softmax(0); }, at::kBFloat16, at::kFloat,
       at::kBFloat16},
      {"sum", [](const Tensor& x) { return x.sum(); }, at::kBFloat16, at::kFloat, at::kBFloat16},
      {"layer_norm", [](const Tensor& x) { return at::layer_norm(x, {4}); }, at::kBFloat16,
       at::kFloat, at::kBFloat16},
      {"mse_loss", [](const Tensor& x) { return at::mse_loss(x, x); }, at::kBFloat16, at::kFloat,
       at::kFloat},
      {"norm", [](const Tensor& x) { return at::norm(x, 2); }, at::kBFloat16, at::kFloat,
       at::kBFloat16},
      {"reflection_pad1d", [](const Tensor& x) { return at::reflection_pad1d(x, {1, 1}); },
       at::kBFloat16, at::kBFloat16, at::kFloat},
      {"cat", [](const Tensor& x) { return at::cat({x, x.to(at::kFloat)}); }, at::kBFloat16,
       at::kFloat, at::kFloat},
      {"relu", [](const Tensor& x) { return x.relu(); }, at::kBFloat16, at::kBFloat16,
       at::kBFloat16}};
  // A later cluster of the process may be of the first kind again.
  for (const bool cpu : {false, true, false}) {
    Cluster cluster(cpu ? "1x1:cpu" : "1x1:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      const Autocast scope(c10::kPrivateUse1);
      for (const Case& one : cases) {
        const Tensor input =
            torch::ones({4, 4}, torch::device(rank.runtime().device()).dtype(one.input));
        EXPECT_EQ(one.op(input).scalar_type(), cpu ? one.on_cpu : one.on_accelerator)
            << one.name << (cpu ? " on a CPU" : " on an accelerator");
      }
    });
  }
}

}  // namespace
}  // namespace accelerate
