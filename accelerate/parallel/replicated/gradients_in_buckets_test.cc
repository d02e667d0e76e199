// Gradients that lie in buckets behave as if copied out of them: what users can do to gradients has
// the same outcome as with find_unused_parameters, where the Reducer copies.
#include "accelerate/parallel/replicated/gradients_in_buckets.h"

#include <functional>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/parallel/replicated/ddp.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr double kSmall = 1e-4;  // MiB: several buckets

// A model of this rank. Ranks share a generator: nothing is drawn.
class Trainee {
 public:
  Trainee(const Group& group, const DistributedDataParallelKwargs& options)
      : rank_(group->getRank()), ddp_(made().ptr(), group, options) {}

  Tensor forward(int step) {
    ddp_.before_forward();
    const Tensor x = torch::sin(torch::arange(24.).reshape({4, 6}) * (1 + rank_) + step);
    return ddp_.after_forward({net_->forward(x)})[0].square().mean();
  }
  void pass(int step) { forward(step).backward(); }
  void set_no_sync(bool no_sync) { *ddp_.no_sync_count() = no_sync ? 1 : 0; }
  std::vector<Tensor> parameters() const { return net_->parameters(); }
  torch::nn::Sequential& net() { return net_; }

 private:
  torch::nn::Sequential& made() {
    torch::NoGradGuard no_grad;
    for (Tensor& parameter : net_->parameters()) {
      parameter.copy_(torch::sin(torch::arange(1. * parameter.numel())).view_as(parameter) / 2);
    }
    return net_;
  }

  const int rank_;
  torch::nn::Sequential net_{torch::nn::Linear(6, 5), torch::nn::Tanh(), torch::nn::Linear(5, 4),
                             torch::nn::Tanh(), torch::nn::Linear(4, 3)};
  DistributedDataParallel ddp_;
};

void on_ranks(int ranks, const std::function<void(const Group&)>& body) {
  run_ranks(ranks, [&body](const Group& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    body(group);
  });
}

// What a user who does things at random sees; the same things for the same seed.
std::vector<Tensor> lived(const Group& group, const DistributedDataParallelKwargs& options,
                          int seed) {
  struct Held {
    size_t of = 0;
    bool is_whole = false;
    Tensor tensor;
  };
  std::mt19937 random(static_cast<uint32_t>(seed));
  auto one_in = [&random](uint32_t n) { return random() % n == 0; };
  // Some keep nothing, some do not reset.
  const bool keeps = !one_in(4);
  const bool resets = !one_in(3);
  Trainee trainee(group, options);
  const std::vector<Tensor> parameters = trainee.parameters();
  std::vector<Held> held;
  std::vector<Tensor> seen;

  auto touch = [&] {
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor& gradient = parameters[i].mutable_grad();
      if (keeps && one_in(4) && gradient.defined()) held.push_back({i, true, gradient});
      if (keeps && one_in(8) && gradient.defined()) held.push_back({i, false, gradient.detach()});
      if (keeps && one_in(8) && gradient.defined()) {
        held.push_back({i, false, gradient.flatten().slice(0, 1)});
      }
      if (one_in(16)) gradient = torch::ones_like(parameters[i]);
      if (one_in(16) && gradient.defined()) gradient = gradient.detach();
      if (one_in(16) && gradient.defined()) gradient.mul_(2);
      if (one_in(32) && gradient.defined()) gradient.set_data(gradient.clone());
      if (resets && one_in(8)) gradient.reset();
    }
    if (resets && one_in(2)) trainee.net()->zero_grad();
    if (one_in(3)) trainee.net()->zero_grad(/*set_to_none=*/false);
    if (one_in(4)) held.clear();
  };
  for (int step = 0; step < 7; ++step) {
    touch();
    trainee.set_no_sync(one_in(3));
    Tensor loss = trainee.forward(step);
    if (one_in(3)) touch();
    loss.backward();
    for (const Tensor& parameter : parameters) seen.push_back(parameter.grad().clone());
    for (const Held& one : held) {
      seen.push_back(one.tensor.clone());
      if (!one.is_whole) continue;
      seen.push_back(torch::tensor(one.tensor.is_same(parameters[one.of].grad())));
    }
  }
  return seen;
}

TEST(GradientsInBuckets, BehaveAsIfCopiedOut) {
  on_ranks(2, [](const Group& group) {
    for (int seed = 0; seed < 300; ++seed) {
      const double cap = seed % 2 == 0 ? kSmall : 25;
      const std::vector<Tensor> got = lived(group, {.bucket_cap_mb = cap}, seed);
      const std::vector<Tensor> expected =
          lived(group, {.bucket_cap_mb = cap, .find_unused_parameters = true}, seed);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(torch::equal(got[i], expected[i])) << "seed " << seed << ", tensor " << i;
      }
    }
  });
}

int64_t bytes_behind(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.storage().nbytes());
}

TEST(GradientsInBuckets, StayThereWhileNobodyKeepsThem) {
  on_ranks(3, [](const Group& group) {
    for (const bool sets_to_none : {true, false}) {
      Trainee trainee(group, {});
      const Tensor parameter = trainee.parameters()[0];
      std::optional<const void*> place;
      for (int step = 0; step < 5; ++step) {
        trainee.pass(step);
        EXPECT_GT(bytes_behind(parameter.grad()), parameter.numel() * 4) << "a copy";
        if (place) {
          EXPECT_EQ(parameter.grad().const_data_ptr(), *place);
        }
        if (step > 0) place = parameter.grad().const_data_ptr();  // buckets were rebuilt
        trainee.net()->zero_grad(sets_to_none || step == 3);
      }
    }
  });
}

TEST(GradientsInBuckets, LeaveThoseKeptAlone) {
  on_ranks(2, [](const Group& group) {
    for (int way = 0; way < 3; ++way) {
      Trainee trainee(group, {});
      const Tensor parameter = trainee.parameters()[0];
      for (int step = 0; step < 3; ++step) {
        trainee.net()->zero_grad();
        trainee.pass(step);
      }
      const Tensor& gradient = parameter.grad();
      const Tensor kept = way == 0 ? gradient : way == 1 ? gradient.detach() : gradient[2];
      const Tensor before = kept.clone();
      // The pass is on its way already.
      const Tensor loss = trainee.forward(3);
      trainee.net()->zero_grad();
      loss.backward();
      EXPECT_TRUE(torch::equal(kept, before));
      EXPECT_FALSE(torch::equal(way == 2 ? parameter.grad()[2] : parameter.grad(), before));
      // Who keeps gradients keeps no whole buckets.
      EXPECT_EQ(bytes_behind(parameter.grad()), parameter.numel() * 4);
    }
  });
}

TEST(GradientsInBuckets, MayHaveAHistory) {
  on_ranks(2, [](const Group& group) {
    auto gradients = [&](bool creates_graph) {
      Trainee trainee(group, {});
      std::vector<Tensor> all;
      for (int step = 0; step < 5; ++step) {
        trainee.forward(step).backward({}, true, creates_graph && step % 2 == 1);
        const Tensor gradient = trainee.parameters()[2].grad();
        EXPECT_EQ(gradient.requires_grad(), creates_graph && step % 2 == 1);
        all.push_back(gradient.detach().clone());
        trainee.net()->zero_grad();
      }
      return torch::stack(all);
    };
    EXPECT_TRUE(torch::equal(gradients(true), gradients(false)));
  });
}

TEST(GradientsInBuckets, MayBeThereBefore) {
  on_ranks(2, [](const Group& group) {
    torch::nn::Linear layer(3, 2);
    torch::nn::init::ones_(layer->weight);
    layer->weight.mutable_grad() = torch::full({2, 3}, 5.);
    const Tensor kept = layer->weight.grad();
    DistributedDataParallel ddp(layer.ptr(), group, {});
    EXPECT_TRUE(layer->weight.grad().is_same(kept));
    for (int step = 1; step < 4; ++step) {
      ddp.before_forward();
      ddp.after_forward({layer->forward(torch::full({1, 3}, 1. + group->getRank()))})[0]
          .sum()
          .backward();
      EXPECT_TRUE(layer->weight.grad().is_same(kept));
      EXPECT_TRUE(torch::equal(kept, torch::full({2, 3}, 5 + 1.5 * step)));
    }
  });
}

TEST(GradientsInBuckets, LieBesideSparseOnes) {
  on_ranks(2, [](const Group& group) {
    auto table = torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true));
    torch::nn::Linear layer(4, 2);
    torch::nn::Sequential net(table, layer);
    DistributedDataParallel ddp(net.ptr(), group, {.bucket_cap_mb = kSmall});
    for (int step = 0; step < 4; ++step) {
      ddp.before_forward();
      ddp.after_forward({net->forward(torch::tensor({group->getRank(), 2}))})[0].sum().backward();
      EXPECT_TRUE(table->weight.grad().is_sparse());
      EXPECT_TRUE(torch::equal(layer->bias.grad(), torch::full({2}, 2.)));
      net->zero_grad();
    }
  });
}

}  // namespace
}  // namespace accelerate
