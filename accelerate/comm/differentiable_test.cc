#include "accelerate/comm/differentiable.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Formatting.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/tensors/libtorch_releases.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Sizes = std::vector<int64_t>;

// Small integers, of which every dtype holds the sums, different on each rank and in each element.
at::Tensor numbers(int rank, const Sizes& sizes, at::ScalarType dtype = at::kFloat, int salt = 0) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel).mul(rank + 2).add(salt).remainder(7).add(rank).view(sizes).to(dtype);
}

// The same of all ranks.
std::vector<at::Tensor> of_ranks(int ranks, const Sizes& sizes, at::ScalarType dtype, int salt) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(numbers(rank, sizes, dtype, salt));
  return all;
}

at::Tensor sum_of(const std::vector<at::Tensor>& tensors) { return at::stack(tensors).sum(0); }

// The rank's part.
at::Tensor part_of(const at::Tensor& whole, int64_t dim, const ProcessGroupPtr& group) {
  return whole.chunk(group->getSize(), dim)[static_cast<size_t>(group->getRank())];
}

// A result, and the gradient of the input where the result's is `gradient`.
std::pair<at::Tensor, at::Tensor> forward_and_backward(
    const std::function<at::Tensor(const at::Tensor&)>& collective, at::Tensor input,
    const at::Tensor& gradient) {
  input = input.detach().requires_grad_();
  const at::Tensor result = collective(input);
  result.backward(gradient);
  return {result.detach(), input.grad()};
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(actual.is_contiguous()) << what;
  EXPECT_TRUE(at::equal(actual, expected)) << what << ": " << actual << " against " << expected;
}

// For each number of ranks, dtype and dim.
void for_each_way(
    const std::function<void(const ProcessGroupPtr&, at::ScalarType, int64_t dim)>& check) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](const ProcessGroupPtr& group) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
        for (const int64_t dim : {0, 1, 2, -1, -3}) check(group, dtype, dim);
      }
    });
  }
}

const Sizes kPart{2, 3, 5};

Sizes whole_sizes(int64_t dim, int ranks) {
  Sizes sizes = kPart;
  sizes[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] *= ranks;
  return sizes;
}

TEST(IdentityForwardAllReduceBackward, SumsGradients) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t /*dim*/) {
    const int rank = group->getRank();
    const at::Tensor input = numbers(0, kPart, dtype);
    const auto gradients = of_ranks(group->getSize(), kPart, dtype, 1);
    const auto [result, gradient] = forward_and_backward(
        [&](const at::Tensor& x) { return identity_forward_all_reduce_backward(x, group); }, input,
        gradients[static_cast<size_t>(rank)]);
    expect_same(result, input, "result");
    expect_same(gradient, sum_of(gradients), "gradient");
  });
}

TEST(AllReduceForwardIdentityBackward, SumsTensors) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t /*dim*/) {
    const auto inputs = of_ranks(group->getSize(), kPart, dtype, 0);
    const at::Tensor alike = numbers(0, kPart, dtype, 1);
    const at::Tensor input = inputs[static_cast<size_t>(group->getRank())];
    const at::Tensor before = input.clone();
    const auto [result, gradient] = forward_and_backward(
        [&](const at::Tensor& x) { return all_reduce_forward_identity_backward(x, group); }, input,
        alike);
    expect_same(result, sum_of(inputs), "result");
    expect_same(gradient, alike, "gradient");
    expect_same(input, before, "input");
  });
}

TEST(AllGatherAlong, SumsThePartsOfGradients) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t dim) {
    const int ranks = group->getSize();
    const auto rank = static_cast<size_t>(group->getRank());
    const auto parts = of_ranks(ranks, kPart, dtype, 0);
    const auto gradients = of_ranks(ranks, whole_sizes(dim, ranks), dtype, 1);
    const auto [result, gradient] =
        forward_and_backward([&](const at::Tensor& x) { return all_gather_along(x, dim, group); },
                             parts[rank], gradients[rank]);
    expect_same(result, at::cat(parts, dim), "result");
    expect_same(gradient, part_of(sum_of(gradients), dim, group).contiguous(), "gradient");
  });
}

TEST(ReduceScatterAlong, PutsGradientsTogether) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t dim) {
    const int ranks = group->getSize();
    const auto rank = static_cast<size_t>(group->getRank());
    const auto wholes = of_ranks(ranks, whole_sizes(dim, ranks), dtype, 0);
    const auto gradients = of_ranks(ranks, kPart, dtype, 1);
    const auto [result, gradient] = forward_and_backward(
        [&](const at::Tensor& x) { return reduce_scatter_along(x, dim, group); }, wholes[rank],
        gradients[rank]);
    expect_same(result, part_of(sum_of(wholes), dim, group).contiguous(), "result");
    expect_same(gradient, at::cat(gradients, dim), "gradient");
  });
}

TEST(GatherAlongSplitBackward, TakesItsPartOfTheGradient) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t dim) {
    const int ranks = group->getSize();
    const auto parts = of_ranks(ranks, kPart, dtype, 0);
    const at::Tensor alike = numbers(0, whole_sizes(dim, ranks), dtype, 1);
    const auto [result, gradient] = forward_and_backward(
        [&](const at::Tensor& x) { return gather_along_split_backward(x, dim, group); },
        parts[static_cast<size_t>(group->getRank())], alike);
    expect_same(result, at::cat(parts, dim), "result");
    expect_same(gradient, part_of(alike, dim, group).contiguous(), "gradient");
  });
}

TEST(SplitAlongGatherBackward, PutsGradientsTogether) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t dim) {
    const int ranks = group->getSize();
    const at::Tensor alike = numbers(0, whole_sizes(dim, ranks), dtype, 0);
    const auto gradients = of_ranks(ranks, kPart, dtype, 1);
    const auto [result, gradient] = forward_and_backward(
        [&](const at::Tensor& x) { return split_along_gather_backward(x, dim, group); }, alike,
        gradients[static_cast<size_t>(group->getRank())]);
    expect_same(result, part_of(alike, dim, group).contiguous(), "result");
    expect_same(gradient, at::cat(gradients, dim), "gradient");
    EXPECT_FALSE(result.is_alias_of(alike));
  });
}

// Ranks have parts of a tensor along one dim and want parts along another one.
TEST(AllToAllAlong, TradesPartsAlongOneDimForThoseAlongAnother) {
  for_each_way([](const ProcessGroupPtr& group, at::ScalarType dtype, int64_t split) {
    const int ranks = group->getSize();
    for (const int64_t join : {0, 1, 2}) {
      if (join == (split + 3) % 3) continue;
      Sizes sizes = whole_sizes(split, ranks);
      sizes[static_cast<size_t>(join)] *= ranks;
      const at::Tensor whole = numbers(0, sizes, dtype, 0), of_whole = numbers(1, sizes, dtype, 1);
      const auto [result, gradient] = forward_and_backward(
          [&](const at::Tensor& x) { return all_to_all_along(x, split, join, group); },
          part_of(whole, join, group).contiguous(), part_of(of_whole, split, group));
      expect_same(result, part_of(whole, split, group).contiguous(), "result");
      expect_same(gradient, part_of(of_whole, join, group).contiguous(), "gradient");
    }
  });
}

// The two layers of an MLP, of which each rank has half, or a quarter, against the whole of them.
// In float64, so that orders of sums do not show.
TEST(DifferentiableCollectives, TrainCutLayersAsWholeOnes) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](const ProcessGroupPtr& group) {
      const auto small = [](const Sizes& sizes, int salt) {
        return numbers(1, sizes, at::kDouble, salt).div(8);
      };
      const at::Tensor up = small({8, 4}, 1).requires_grad_();
      const at::Tensor down = small({4, 8}, 2).requires_grad_();
      const at::Tensor input = small({2, 4, 4}, 3).requires_grad_();
      const at::Tensor expected = at::tanh(input.matmul(up.t())).matmul(down.t());
      expected.square().sum().backward();

      const auto cut = [&](const at::Tensor& whole, int64_t dim) {
        return part_of(whole.detach(), dim, group).clone().requires_grad_();
      };
      const at::Tensor up_part = cut(up, 0), down_part = cut(down, 1);
      const auto check = [&](const at::Tensor& input_gradient, const std::string& what) {
        EXPECT_TRUE(at::allclose(input_gradient, input.grad())) << what;
        EXPECT_TRUE(at::allclose(up_part.grad(), part_of(up.grad(), 0, group))) << what;
        EXPECT_TRUE(at::allclose(down_part.grad(), part_of(down.grad(), 1, group))) << what;
        up_part.mutable_grad().reset();
        down_part.mutable_grad().reset();
      };

      const at::Tensor same = input.detach().requires_grad_();
      const at::Tensor entered = identity_forward_all_reduce_backward(same, group);
      const at::Tensor left = all_reduce_forward_identity_backward(
          at::tanh(entered.matmul(up_part.t())).matmul(down_part.t()), group);
      EXPECT_TRUE(at::allclose(left, expected));
      left.square().sum().backward();
      check(same.grad(), "whole sequences");

      const at::Tensor shards = input.detach().requires_grad_();
      const at::Tensor gathered =
          all_gather_along(split_along_gather_backward(shards, 1, group), 1, group);
      const at::Tensor scattered = reduce_scatter_along(
          at::tanh(gathered.matmul(up_part.t())).matmul(down_part.t()), 1, group);
      EXPECT_TRUE(at::allclose(gather_along_split_backward(scattered, 1, group), expected));
      scattered.square().sum().backward();
      check(shards.grad(), "parts of sequences");
    });
  }
}

TEST(DifferentiableCollectives, AreTheInputOnARankAlone) {
  const at::Tensor input = at::ones({3}).requires_grad_();
  EXPECT_TRUE(identity_forward_all_reduce_backward(input, {}).is_same(input));
  EXPECT_TRUE(all_reduce_forward_identity_backward(input, {}).is_same(input));
  EXPECT_TRUE(all_gather_along(input, 0, {}).is_same(input));
  EXPECT_TRUE(reduce_scatter_along(input, 0, {}).is_same(input));
  EXPECT_TRUE(gather_along_split_backward(input, 0, {}).is_same(input));
  EXPECT_TRUE(split_along_gather_backward(input, 0, {}).is_same(input));
}

TEST(DifferentiableCollectives, NeedNoGraph) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const auto check = [&](const at::Tensor& input) {
      const at::Tensor sum = all_reduce_forward_identity_backward(input, group);
      EXPECT_FALSE(sum.requires_grad());
      expect_same(sum, at::full({2, 2}, 2.0), "sum");
      expect_same(all_gather_along(input, 1, group), at::ones({2, 4}), "gathered");
      expect_same(reduce_scatter_along(input, 1, group), at::full({2, 1}, 2.0), "scattered");
      expect_same(split_along_gather_backward(input, 1, group), at::ones({2, 1}), "split");
      EXPECT_TRUE(identity_forward_all_reduce_backward(input, group).is_same(input));
    };
    check(at::ones({2, 2}));
    {
      const at::NoGradGuard no_grad;
      check(at::ones({2, 2}).requires_grad_());
    }
    const c10::InferenceMode inference;
    check(at::ones({2, 2}));
  });
}

// Programs change activations in place.
TEST(DifferentiableCollectives, GiveResultsThatCanBeChangedInPlace) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const auto check = [](const at::Tensor& result, const at::Tensor& input, double gradient) {
      result.mul_(3).sum().backward();
      EXPECT_TRUE(at::equal(input.grad(), at::full_like(input, gradient)));
      EXPECT_TRUE(at::equal(input.detach(), at::ones_like(input)));
      input.mutable_grad().reset();
    };
    const at::Tensor input = at::ones({2, 2}).requires_grad_();
    check(all_reduce_forward_identity_backward(input, group), input, 3);
    check(all_gather_along(input, 1, group), input, 6);
    check(gather_along_split_backward(input, 1, group), input, 3);
    check(reduce_scatter_along(input, 1, group), input, 3);
    check(split_along_gather_backward(input, 1, group), input, 3);
  });
}

// A product that nothing else uses is summed where it is.
TEST(AllReduceForwardIdentityBackward, SumsInTheMemoryThatItIsGiven) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor weight = at::ones({4}).requires_grad_();
    at::Tensor product = weight * 2;
    const void* const memory = product.const_data_ptr();
    const at::Tensor sum = all_reduce_forward_identity_backward(std::move(product), group);
    EXPECT_EQ(sum.const_data_ptr(), memory);
    EXPECT_TRUE(at::equal(sum, at::full({4}, 4.0)));
    sum.sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), at::full({4}, 2.0)));
  });
}

// What autograd has saved of a tensor, or another tensor shows, stays as it is.
TEST(AllReduceForwardIdentityBackward, LeavesMemoryThatOthersUse) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor weight = at::zeros({4}).requires_grad_();
    // The gradient of exp is its result.
    const at::Tensor sum = all_reduce_forward_identity_backward(weight.exp(), group);
    EXPECT_TRUE(at::equal(sum, at::full({4}, 2.0)));
    sum.sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), at::ones({4})));
    const at::Tensor base = at::ones({2, 4});
    EXPECT_TRUE(
        at::equal(all_reduce_forward_identity_backward(base[0], group), at::full({4}, 2.0)));
    EXPECT_TRUE(at::equal(base, at::ones({2, 4})));
  });
}

// One gradient goes to both summands; summing it for one of them must not change the other's.
TEST(IdentityForwardAllReduceBackward, LeavesAGradientThatOthersUse) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor input = at::ones({4}).requires_grad_();
    const at::Tensor own = at::ones({4}).requires_grad_();
    const at::Tensor sum = identity_forward_all_reduce_backward(input, group) + own;
    sum.mul(at::arange(4.0)).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), at::arange(4.0).mul(2)));
    EXPECT_TRUE(at::equal(own.grad(), at::arange(4.0)));
    const at::Tensor given = at::ones({4});
    identity_forward_all_reduce_backward(input, group).backward(given);
    EXPECT_TRUE(at::equal(given, at::ones({4})));
  });
}

TEST(DifferentiableCollectives, TakeStridedTensorsAndGradients) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor input = numbers(group->getRank(), {4, 2}).t().requires_grad_();
    const auto all = of_ranks(2, {4, 2}, at::kFloat, 0);
    expect_same(all_reduce_forward_identity_backward(input, group).detach(),
                sum_of(all).t().contiguous(), "sum");
    expect_same(reduce_scatter_along(input, 1, group).detach(),
                part_of(sum_of(all).t(), 1, group).contiguous(), "scattered");
    // The gradient of a sum is one number for all elements.
    identity_forward_all_reduce_backward(input, group).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), at::full({2, 4}, 2.0)));
  });
}

// A group of one rank.
ProcessGroupPtr group_of(const c10::intrusive_ptr<CallBackend>& backend) {
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return group;
}

struct Done : c10d::Work {
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// Writes down what calls are for, and does nothing.
class RecordingBackend : public CallBackend {
 public:
  RecordingBackend() : CallBackend(/*rank=*/0, /*size=*/1) {}

  std::vector<std::string> purposes;

 private:
  WorkPtr issue(const CollectiveCall& call) override {
    purposes.push_back(call.describe().purpose);
    return c10::make_intrusive<Done>();
  }
};

TEST(DifferentiableCollectives, SayInTheBackwardPassWhatTheyAreFor) {
  const auto backend = c10::make_intrusive<RecordingBackend>();
  const ProcessGroupPtr group = group_of(backend);
  const at::Tensor input = at::ones({2}).requires_grad_();
  at::Tensor result;
  {
    const std::string text = "tp, layer.weight";
    const CollectivePurpose purpose(text);
    result = all_gather_along(identity_forward_all_reduce_backward(input, group), 0, group);
  }
  all_reduce_forward_identity_backward(result, group).sum().backward();
  EXPECT_THAT(backend->purposes, ElementsAre("tp, layer.weight", "", "gradient of tp, layer.weight",
                                             "gradient of tp, layer.weight"));
}

// Does nothing and keeps what it was given, as a thread of Gloo does that is late to let go of it.
class KeepingBackend : public CallBackend {
 public:
  KeepingBackend() : CallBackend(/*rank=*/0, /*size=*/1) {}

  std::vector<at::Tensor> kept;

 private:
  WorkPtr issue(const CollectiveCall& call) override {
    for (const CollectiveCall::Lists lists : {call.inputs, call.outputs}) {
      for (const at::Tensor& tensor : flattened(lists)) kept.push_back(tensor);
    }
    return c10::make_intrusive<Done>();
  }
};

// When a graph ends is up to the program, and not to the backend's threads.
TEST(DifferentiableCollectives, LeaveNothingOfTheGraphToTheBackend) {
  const auto backend = c10::make_intrusive<KeepingBackend>();
  const ProcessGroupPtr group = group_of(backend);
  const auto check = [&](const char* what, const auto& collective) {
    backend->kept.clear();
    const at::Tensor leaf = at::ones({2, 2}).requires_grad_();
    at::Tensor input = leaf * 2;
    const internal::WeakNodePointer of_input(input.grad_fn());
    at::Tensor result = collective(input);
    const internal::WeakNodePointer of_result(result.grad_fn());
    input.reset();
    EXPECT_TRUE(of_input.lock() != nullptr) << what;
    result.reset();
    EXPECT_FALSE(backend->kept.empty()) << what;
    EXPECT_TRUE(of_input.lock() == nullptr) << what;
    EXPECT_TRUE(of_result.lock() == nullptr) << what;
  };
  check("sum", [&](const at::Tensor& x) { return all_reduce_forward_identity_backward(x, group); });
  for (const int64_t dim : {0, 1}) {
    check("gather", [&](const at::Tensor& x) { return all_gather_along(x, dim, group); });
    check("scatter", [&](const at::Tensor& x) { return reduce_scatter_along(x, dim, group); });
  }
  check("trade", [&](const at::Tensor& x) { return all_to_all_along(x, 0, 1, group); });
  check("rows", [&](const at::Tensor& x) { return RowExchange(x, {2}, {2}, group).finish(); });
}

// Each rank gives rank q as many rows as q says, so that the first one gets none.
// The memory of such a view holds the numbers with the other sign.
TEST(DifferentiableCollectives, SendTheNumbersOfNegatedViews) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor stored = numbers(group->getRank(), {4, 2});
    const std::vector<int64_t> halves = {2, 2};
    std::vector<at::Tensor> results;
    for (const at::Tensor& input : {stored._neg_view(), stored.neg()}) {
      results.push_back(reduce_scatter_along(input, 0, group));
      results.push_back(all_to_all_along(input, 0, 1, group));
      results.push_back(RowExchange(input, halves, halves, group).finish());
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 3])) << i;
  });
}

TEST(RowExchange, MovesRowsAndTheirGradientsBack) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](const ProcessGroupPtr& group) {
      const int64_t size = group->getSize(), rank = group->getRank();
      Sizes give, take;
      at::Tensor expected = at::empty({size * rank, 1});
      at::Tensor back = at::empty({size * (size - 1) / 2, 1});
      for (int64_t other = 0; other < size; ++other) {
        give.push_back(other);
        take.push_back(rank);
        for (int64_t i = 0; i < rank; ++i) {
          expected[other * rank + i] = 100 * other + rank * (rank - 1) / 2 + i;
        }
        for (int64_t i = 0; i < other; ++i) {
          back[other * (other - 1) / 2 + i] = 1000 * other + rank * other + i;
        }
      }
      const at::Tensor columns = at::ones({1, 3});
      const at::Tensor input =
          ((at::arange(back.size(0)) + 100 * rank).view({-1, 1}) * columns).requires_grad_();
      RowExchange exchange(input, give, take, group);
      const at::Tensor rows = exchange.finish();
      expect_same(rows.detach(), expected * columns, "rows");
      rows.backward((at::arange(rows.size(0)) + 1000 * rank).view({-1, 1}) * columns);
      expect_same(input.grad(), back * columns, "gradient");
    });
  }
}

TEST(RowExchange, IsTheRowsThemselvesOnOneRank) {
  const at::Tensor rows = at::ones({3, 2});
  RowExchange exchange(rows, {3}, {3}, nullptr);
  EXPECT_TRUE(exchange.finish().is_same(rows));
}

TEST(RowExchange, RefusesNumbersThatAreNotThoseOfItsRows) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor rows = at::ones({3, 2});
    EXPECT_THAT(value_error_of([&] { RowExchange(rows, {1, 1}, {1, 1}, group); }),
                HasSubstr("gives 2 rows of a tensor of sizes [3, 2]"));
    EXPECT_THAT(value_error_of([&] { RowExchange(rows, {3}, {1, 2}, group); }),
                HasSubstr("of 2 gives rows of 1 ranks"));
  });
}

TEST(DifferentiableCollectives, RefuseSizesThatDoNotDivideEvenly) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor input = at::ones({4, 127, 8}).requires_grad_();
    const auto mentions = [](const std::string& name) {
      return HasSubstr(name +
                       ": dim 1 of a tensor of sizes [4, 127, 8] has 127 elements, which do not "
                       "divide evenly among 2 ranks; 128 would");
    };
    EXPECT_THAT(value_error_of([&] { reduce_scatter_along(input, 1, group); }),
                mentions("reduce_scatter_along"));
    EXPECT_THAT(value_error_of([&] { split_along_gather_backward(input, 1, group); }),
                mentions("split_along_gather_backward"));
    EXPECT_EQ(all_gather_along(input, 1, group).size(1), 254);
  });
}

TEST(DifferentiableCollectives, RefuseDimsThatThereAreNot) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    for (const int64_t dim : {2, -3}) {
      EXPECT_THAT(value_error_of([&] { all_gather_along(at::ones({2, 3}), dim, group); }),
                  AllOf(HasSubstr("all_gather_along: a tensor of sizes [2, 3] has no dim"),
                        HasSubstr(std::to_string(dim))));
    }
    EXPECT_THAT(value_error_of([&] { split_along_gather_backward(at::ones({}), 0, group); }),
                HasSubstr("a tensor of sizes [] has no dim 0"));
  });
}

// Also a rank without tokens, whose mean is NaN.
TEST(MeanOverTokens, WeightsRanksByTheirTokens) {
  run_ranks(4, [](const ProcessGroupPtr& group) {
    const auto rank = static_cast<size_t>(group->getRank());
    const std::vector<int64_t> tokens = {3, 0, 1, 4};
    const std::vector<double> means = {2, std::nan(""), 10, 1};
    const at::Tensor own = at::scalar_tensor(means[rank], at::kFloat).requires_grad_();
    const at::Tensor count = at::scalar_tensor(tokens[rank], at::kLong);
    const at::Tensor mean = mean_over_tokens(own, count, group);
    EXPECT_FLOAT_EQ(mean.item<float>(), (3 * 2 + 1 * 10 + 4 * 1) / 8.F);
    mean.backward();
    EXPECT_FLOAT_EQ(own.grad().item<float>(), 4 * static_cast<float>(tokens[rank]) / 8);
    const at::Tensor none = at::scalar_tensor(0, at::kLong);
    EXPECT_EQ(mean_over_tokens(own.detach(), none, group).item<float>(), 0);
    EXPECT_TRUE(mean_over_tokens(own, count, nullptr).is_same(own));
    EXPECT_THAT(value_error_of([&] { mean_over_tokens(own, own, group); }),
                HasSubstr("mean_over_tokens: Float of sizes [] over a number of tokens that is "
                          "Float"));
  });
}

TEST(DifferentiableCollectives, RefuseASecondDerivative) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor input = at::ones({2}).requires_grad_();
    const at::Tensor loss = all_gather_along(input, 0, group).square().sum();
    try {
      torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("all_gather_along has no second derivative"));
    }
  });
}

}  // namespace
}  // namespace accelerate
