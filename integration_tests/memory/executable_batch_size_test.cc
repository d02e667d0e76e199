// Finding a batch size on devices that really run out of memory.
// One shape each: the sizes are worked out for the memory of these devices.
#include "accelerate/step/executable_batch_size.h"

#include <cmath>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/state/memory.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1024 * 1024;
constexpr int64_t kWidth = 64;

torch::nn::Sequential make_net() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kWidth));
}

// A model made anew, and two steps of Adam with it. Without collectives.
double train_alone(c10::Device device, int64_t batch_size) {
  torch::nn::Sequential net = make_net();
  net->to(device);
  torch::optim::Adam adam(net->parameters(), 1e-3);
  double last = 0;
  for (int step = 0; step < 2; ++step) {
    torch::Tensor loss = net->forward(torch::ones({batch_size, kWidth}, device)).square().mean();
    loss.backward();
    adam.step();
    adam.zero_grad();
    last = loss.item<double>();
  }
  return last;
}

// Whether it trains with that batch size on a fresh device.
bool fits(const std::string& device, int64_t batch_size) {
  try {
    Cluster cluster(device);
    cluster.run_on_every_rank(
        [&](Rank& rank) { train_alone(rank.runtime().device(), batch_size); });
    return true;
  } catch (const ClusterError&) {
    return false;
  }
}

TEST(ExecutableBatchSize, FindsWhatFitsOnTheDevice) {
  const std::string device = "1x1:h100,mem=2MiB,efficiency=ideal";
  std::vector<int64_t> tried;
  int64_t found = 0;
  Cluster cluster(device);
  cluster.run_on_every_rank([&](Rank& rank) {
    auto train = find_executable_batch_size(
        [&](int64_t batch_size) {
          EXPECT_EQ(rank.device()->memory().in_use(), 0) << "left of the try before";
          tried.push_back(batch_size);
          return train_alone(rank.runtime().device(), batch_size);
        },
        {.starting_batch_size = 4096});
    EXPECT_TRUE(std::isfinite(train()));
    found = train.batch_size();
  });
  ASSERT_GT(tried.size(), 3);
  EXPECT_EQ(tried.back(), found);
  // The sizes that were tried fit or fail on fresh devices as well.
  for (int64_t batch_size : tried) {
    EXPECT_EQ(fits(device, batch_size), batch_size == found) << batch_size;
  }
}

TEST(ExecutableBatchSize, ReplaysExactly) {
  auto losses = [] {
    std::vector<double> seen;
    Cluster cluster("1x1:h100,mem=2MiB,efficiency=ideal", {.seed = 3});
    cluster.run_on_every_rank([&](Rank& rank) {
      auto train = find_executable_batch_size(
          [&](int64_t batch_size) { return train_alone(rank.runtime().device(), batch_size); },
          {.starting_batch_size = 4096});
      seen = {train(), train(), static_cast<double>(train.batch_size())};
    });
    return seen;
  };
  EXPECT_EQ(losses(), losses());
}

TEST(ExecutableBatchSize, SaysWhatFilledTheDeviceWhenNothingFits) {
  Cluster cluster("1x1:h100,mem=64KiB,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    auto train = find_executable_batch_size(
        [&](int64_t batch_size) { train_alone(rank.runtime().device(), batch_size); },
        {.starting_batch_size = 2});
    try {
      train();
      ADD_FAILURE() << "the parameters alone need more";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("reached zero"));
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("is out of memory"));
    }
  });
}

TEST(ReleaseMemory, FreesTheDevice) {
  Cluster cluster("1x1:h100,mem=8MiB,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    torch::nn::Sequential net = make_net();
    net->to(device);
    std::vector<torch::Tensor> kept{torch::ones({1024, 1024}, device)};
    torch::Tensor out = net->forward(kept[0].slice(1, 0, kWidth));
    EXPECT_GT(rank.device()->memory().in_use(), 4 * kMebibyte);
    release_memory(net, kept, out);
    EXPECT_EQ(rank.device()->memory().in_use(), 0);
  });
}

// ---- Several ranks.

// Rank 1 holds something of its own, so less fits there.
TEST(ExecutableBatchSize, RanksAgreeOnWhatTheFullestDeviceTakes) {
  std::vector<int64_t> found(4);
  std::vector<int64_t> alone(4);
  Cluster cluster("1x4:h100,mem=2MiB,efficiency=ideal");
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    const auto index = static_cast<size_t>(rank.index());
    torch::Tensor held;
    if (rank.index() == 1) held = torch::ones({kMebibyte / 8}, accelerator.device());
    auto measure = [&](ProcessGroupPtr group) {
      auto train = find_executable_batch_size(
          [&](int64_t batch_size) { train_alone(accelerator.device(), batch_size); },
          {.starting_batch_size = 2048, .group = std::move(group)});
      train();
      return train.batch_size();
    };
    alone[index] = measure(nullptr);
    found[index] = measure(accelerator.state().group());
    // With what was agreed on all ranks train.
    train_alone(accelerator.device(), found[index]);
  });
  EXPECT_LT(alone[1], alone[0]);
  for (int64_t batch_size : found) EXPECT_EQ(batch_size, alone[1]);
}

// Equal models and equal batches run out of memory at the same place on all ranks. Models are made
// anew in each try, so the prepared ones have to go.
TEST(ExecutableBatchSize, DataParallelTrainingRetriesOnAllRanksAlike) {
  std::vector<int64_t> found(2);
  std::vector<double> losses(2);
  Cluster cluster("1x2:h100,mem=2MiB,efficiency=ideal");
  cluster.run_on_every_rank([&](Rank& rank) {
    const auto index = static_cast<size_t>(rank.index());
    Accelerator accelerator;
    auto train = find_executable_batch_size(
        [&](int64_t batch_size) {
          accelerator.free_memory();
          torch::nn::Sequential net = make_net();
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          torch::Tensor loss;
          for (int step = 0; step < 2; ++step) {
            const torch::Tensor x = torch::ones({batch_size, kWidth}, accelerator.device());
            loss = model(x * (rank.index() + 1)).square().mean();
            accelerator.backward(loss);
            optimizer.step();
            optimizer.zero_grad();
          }
          return loss.item<double>();
        },
        {.starting_batch_size = 2048, .group = accelerator.state().group()});
    losses[index] = train();
    found[index] = train.batch_size();
  });
  EXPECT_LT(found[0], 2048);
  EXPECT_EQ(found[0], found[1]);
  EXPECT_TRUE(std::isfinite(losses[0]));
}

// A failure beyond repair ends in an error that names the ranks; no rank hangs.
TEST(ExecutableBatchSize, ARankThatFailsAloneInsideCollectivesIsFound) {
  Cluster cluster("1x2:h100,mem=2MiB,efficiency=ideal");
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      torch::Tensor held;
      if (rank.index() == 1)
        held = torch::ones({kMebibyte / 4 + kMebibyte / 8 + kMebibyte / 16}, accelerator.device());
      auto train = find_executable_batch_size(
          [&](int64_t batch_size) {
            const torch::Tensor x = torch::ones({batch_size, kWidth}, accelerator.device());
            return accelerator.reduce(x.sum()).item<double>();
          },
          {.starting_batch_size = 2048, .group = accelerator.state().group()});
      train();
    });
    FAIL() << "one rank waits for the sum, the other one for the agreement";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
  }
}

}  // namespace
}  // namespace accelerate
