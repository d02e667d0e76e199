// A device's memory limit, as a training program meets it.
// One shape each: the bytes are worked out for these devices.
#include <cmath>
#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1024 * 1024;

// A perceptron whose output is shifted by the mean of a table of so many rows.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(int64_t rows)
      : hidden(register_module("hidden", torch::nn::Linear(64, 128))),
        table(register_parameter("table", torch::zeros({rows, 128}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(hidden(x)) + table.mean(/*dim=*/0);
  }

  torch::nn::Linear hidden;
  torch::Tensor table;
};
TORCH_MODULE(Model);

// Trains for three steps on all ranks. Returns the peak that every rank's device reached.
int64_t train(const std::string& spec, int64_t rows) {
  Cluster cluster(spec, {.seed = 1});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(0);
    Model net(rows);
    torch::optim::Adam adam(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor input = torch::randn({32, 64}).to(accelerator.device());
      torch::Tensor loss = model(input).square().mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
  });
  const double peak = cluster.reports("peak")[0].item<double>();
  for (const at::Tensor& other : cluster.reports("peak")) EXPECT_EQ(other.item<double>(), peak);
  return static_cast<int64_t>(peak);
}

TEST(DeviceMemory, AModelThatNeeds79MebibytesTrainsIn80AndOneThatNeeds81DoesNot) {
  // A model's memory grows by the same amount with every row.
  const int64_t few = train("2x4:h100", 20'000);
  const int64_t more = train("2x4:h100", 22'000);
  const double per_row = static_cast<double>(more - few) / 2'000;
  auto rows_for = [&](int64_t bytes) {
    return 20'000 + std::llround(static_cast<double>(bytes - few) / per_row);
  };
  const int64_t fits = rows_for(79 * kMebibyte);
  const int64_t too_large = rows_for(81 * kMebibyte);
  const int64_t needed = train("2x4:h100", fits);
  ASSERT_NEAR(static_cast<double>(needed), 79.0 * kMebibyte, 0.01 * kMebibyte);
  ASSERT_NEAR(static_cast<double>(train("2x4:h100", too_large)), 81.0 * kMebibyte,
              0.01 * kMebibyte);

  EXPECT_EQ(train("2x4:h100,mem=80MiB", fits), needed);
  // To the byte: with what it needs it trains, with a block less it does not.
  EXPECT_EQ(train("2x4:h100,mem=" + std::to_string(needed), fits), needed);
  EXPECT_THROW(train("2x4:h100,mem=" + std::to_string(needed - 512), fits), ClusterError);
  try {
    train("2x4:h100,mem=80MiB", too_large);
    FAIL() << "81 MiB went into 80";
  } catch (const ClusterError& error) {
    EXPECT_THROW(std::rethrow_exception(error.failures()[0].exception), c10::OutOfMemoryError);
    EXPECT_THAT(
        error.failures()[0].message,
        AllOf(HasSubstr("(h100) is out of memory: "), HasSubstr(" asked for "),
              HasSubstr(" of 80.00 MiB are free"), HasSubstr(" in step "),
              HasSubstr("parameters: "), HasSubstr("optimizer state: "), HasSubstr("buckets: ")));
  }
}

TEST(DeviceMemory, AnErrorInTheForwardPassCanBeSurvived) {
  Cluster cluster("1x1:h100,mem=8MiB");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const torch::Tensor held = torch::ones({256, 1024}, device);  // 1 MiB
    const int64_t before = rank.device()->memory().in_use();
    EXPECT_THROW(torch::ones({4096, 1024}, device), c10::OutOfMemoryError);
    EXPECT_THROW(torch::cat({held, held, held, held, held, held, held, held}),
                 c10::OutOfMemoryError);
    EXPECT_EQ(rank.device()->memory().in_use(), before);
    EXPECT_EQ(held.sum().item<float>(), 256 * 1024);
  });
}

TEST(DeviceMemory, AnErrorInTheBackwardPassCanBeSurvived) {
  Cluster cluster("1x1:h100,mem=8MiB");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    torch::Tensor weight = torch::ones({1024, 1024}, device).requires_grad_();  // 4 MiB
    torch::Tensor input = torch::ones({2, 1024}, device);
    const int64_t before = rank.device()->memory().in_use();
    {
      torch::Tensor ballast = torch::ones({512, 1024}, device);
      torch::Tensor loss = input.mm(weight).sum();
      EXPECT_THROW(loss.backward(), c10::OutOfMemoryError);
    }
    EXPECT_EQ(rank.device()->memory().in_use(), before);
    weight.mutable_grad().reset();
    input = torch::ones({1, 1024}, device);
    torch::Tensor small = torch::ones({8, 8}, device).requires_grad_();
    small.square().sum().backward();
    EXPECT_EQ(small.grad().sum().item<float>(), 128);
  });
}

TEST(DeviceMemory, IsTheRanksOwnWhereManyDevicesHaveOneName) {
  Cluster cluster("16x8:h100,mem=4MiB");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const torch::Tensor held = torch::ones({256, 1024}, device);
    EXPECT_EQ(rank.device()->memory().in_use(), kMebibyte);
    if (rank.index() % 2 == 0) {
      EXPECT_THROW(torch::ones({1024, 1024}, device), c10::OutOfMemoryError);
    }
  });
}

TEST(DeviceMemory, KeepsToItselfWhatARankDidOnItsDevice) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    const torch::Tensor held = torch::ones({(rank.index() + 1) * 256}, rank.runtime().device());
    EXPECT_EQ(rank.device()->memory().in_use(), (rank.index() + 1) * 1024);
    const auto use = rank.runtime().device_memory();
    ASSERT_TRUE(use.has_value());
    EXPECT_EQ(use->in_use, (rank.index() + 1) * 1024);
  });
}

}  // namespace
}  // namespace accelerate
