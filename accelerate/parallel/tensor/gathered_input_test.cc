#include "accelerate/parallel/tensor/managed_parts.h"

#include <chrono>
#include <functional>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "accelerate/comm/differentiable.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

// The backend of a group of one rank. While a call runs, something else happens.
class OneRank : public CallBackend {
 public:
  OneRank() : CallBackend(/*rank=*/0, /*size=*/1) {}

  std::function<void()> meanwhile = [] {};
  int gathers = 0;

 private:
  struct Done : c10d::Work {
    bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  };
  WorkPtr issue(const CollectiveCall& call) override {
    const at::Tensor &input = call.inputs[0][0], &output = call.outputs[0][0];
    output.copy_(input.view(output.sizes()));
    if (call.op == c10d::OpType::_ALLGATHER_BASE) ++gathers;
    meanwhile();
    return c10::make_intrusive<Done>();
  }
};

// An input that a column layer of one rank has used, and its part.
struct Used {
  Used() {
    group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    const at::Tensor part = leaf * 2;
    const at::Tensor whole = all_gather_along(part, 0, group);
    input = gathered_at_use(whole, at::kFloat, part, 0, group);
    loss = (input * input).sum();
  }

  c10::intrusive_ptr<OneRank> backend = c10::make_intrusive<OneRank>();
  ProcessGroupPtr group;
  at::Tensor leaf = at::ones({2, 3}).requires_grad_();
  at::Tensor input, loss;
};

TEST(GatheredInput, IsGatheredAgainOnceInTheBackwardPassWhetherOrNotItsMemoryIsGone) {
  for (const bool is_dropped : {false, true}) {
    Used used;
    EXPECT_EQ(used.backend->gathers, 1);
    if (is_dropped) drop_gathered(used.input);
    EXPECT_EQ(is_absent(used.input), is_dropped);
    used.loss.backward();
    EXPECT_EQ(used.backend->gathers, 2) << is_dropped;
    EXPECT_TRUE(at::equal(used.leaf.grad(), at::full({2, 3}, 8.0)));
  }
}

// As a thread of Gloo does that has the part as long as it has a lock that every call needs.
TEST(GatheredInput, IsGatheredWhileAnotherThreadLetsGoOfThePart) {
  for (const bool is_dropped : {false, true}) {
    Used used;
    if (is_dropped) drop_gathered(used.input);
    used.backend->meanwhile = [&used] {
      std::thread([&used] { drop_gathered(used.input); }).join();
    };
    used.loss.backward();
    EXPECT_EQ(used.backend->gathers, 2) << is_dropped;
    EXPECT_TRUE(at::equal(used.leaf.grad(), at::full({2, 3}, 8.0)));
  }
}

TEST(GatheredInput, CanBeDroppedAfterAGatherThatFailed) {
  Used used;
  drop_gathered(used.input);
  used.backend->meanwhile = [] { TORCH_CHECK(false, "no connection"); };
  {
    const at::NoGradGuard no_grad;
    EXPECT_THROW(at::add(used.input, 1), c10::Error);
    used.backend->meanwhile = [] {};
    EXPECT_TRUE(at::equal(used.input + 1, at::full({2, 3}, 3.0)));
  }
  EXPECT_FALSE(is_absent(used.input));
  drop_gathered(used.input);
  EXPECT_TRUE(is_absent(used.input));
}

}  // namespace
}  // namespace accelerate
