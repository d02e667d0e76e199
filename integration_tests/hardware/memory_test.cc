// A device's memory limit, as a training program meets it.
// One shape each: the bytes are worked out for these devices.
#include <cmath>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using simulator::SimDevice;
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

// Trains this rank's model for three steps and calls `then` while the model is there.
void train_rank(int64_t rows, const std::function<void()>& then) {
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
  then();
}

// Trains for three steps on all ranks. Returns the peak that every rank's device reached.
int64_t train(const std::string& spec, int64_t rows) {
  Cluster cluster(spec, {.seed = 1});
  cluster.run_on_every_rank([&](Rank& rank) {
    train_rank(rows,
               [&] { rank.report("peak", static_cast<double>(rank.device()->memory().peak())); });
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

  EXPECT_EQ(train("2x4:h100,mem=80MiB,efficiency=ideal", fits), needed);
  // To the byte: with what it needs it trains, with a block less it does not.
  EXPECT_EQ(train("2x4:h100,efficiency=ideal,mem=" + std::to_string(needed), fits), needed);
  EXPECT_THROW(train("2x4:h100,efficiency=ideal,mem=" + std::to_string(needed - 512), fits),
               ClusterError);
  try {
    train("2x4:h100,mem=80MiB,efficiency=ideal", too_large);
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
  Cluster cluster("1x1:h100,mem=8MiB,efficiency=ideal");
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
  Cluster cluster("1x1:h100,mem=8MiB,efficiency=ideal");
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
  Cluster cluster("16x8:h100,mem=4MiB,efficiency=ideal");
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

// ---- The driver that `efficiency=measured` models.

using simulator::DriverFigures;

// 1 GiB is shown, of which tensors and libraries can have 460.8 MiB.
constexpr char kOneGiB[] = "1x1:h100,mem=1GiB";

torch::Tensor mebibytes(Rank& rank, int64_t count) {
  return torch::empty({count * kMebibyte}, at::device(rank.runtime().device()).dtype(at::kByte));
}

DriverFigures figures_of(Rank& rank) { return rank.device()->memory().driver_figures().value(); }

// What each rank's driver tells after training, and how long the run took.
std::vector<double> figures_after_training(const std::string& spec,
                                           simulator::ClusterOptions options) {
  options.seed = 3;
  Cluster cluster(spec, options);
  cluster.run_on_every_rank([&](Rank& rank) {
    train_rank(2'000, [&] {
      const DriverFigures figures = figures_of(rank);
      rank.report("allocated", static_cast<double>(figures.allocator.allocated_peak));
      rank.report("reserved", static_cast<double>(figures.allocator.reserved_peak));
      rank.report("active", static_cast<double>(figures.allocator.active));
      rank.report("split", static_cast<double>(figures.inactive_split));
      rank.report("segments", static_cast<double>(figures.allocator.segments_made));
      rank.report("libraries", static_cast<double>(figures.libraries));
      rank.report("workspaces", static_cast<double>(figures.workspaces));
    });
  });
  std::vector<double> all = {absl::ToDoubleNanoseconds(cluster.elapsed())};
  for (const char* name :
       {"allocated", "reserved", "active", "split", "segments", "libraries", "workspaces"}) {
    for (const at::Tensor& value : cluster.reports(name)) all.push_back(value.item<double>());
  }
  return all;
}

TEST(DriverMemory, IsTheSameInEveryRunWithoutValuesAndFolded) {
  const std::string spec = "2x4:h100";
  const std::vector<double> figures = figures_after_training(spec, {});
  EXPECT_EQ(figures_after_training(spec, {}), figures);
  const simulator::ClusterOptions shapes = {.numerics = simulator::Numerics::kShapes};
  EXPECT_EQ(figures_after_training(spec, shapes), figures);
  const simulator::ClusterOptions folded = {.numerics = simulator::Numerics::kShapes,
                                            .fold = simulator::Folding{}};
  EXPECT_EQ(figures_after_training(spec, folded), figures);
  const auto of_rank_0 = [&figures](size_t number) { return figures[1 + number * 8]; };
  EXPECT_GE(of_rank_0(1), of_rank_0(0)) << "reserved, allocated";
  // 8 ranks on 2 nodes: 16 channels, four of which use the network at each rank.
  EXPECT_EQ(of_rank_0(5),
            (54 + 12 * 12) * kMebibyte + 4.0 * (524'288 + 2 * (4'915'200 + 4'194'304)));
  EXPECT_EQ(of_rank_0(6), 2 * 32 * kMebibyte) << "a forward and a backward pass";
}

TEST(DriverMemory, IsNotModelledUnderIdealOrForOthers) {
  for (const char* spec : {"1x1:h100,efficiency=ideal", "1x1:ascend910b", "1x1:tpu-v4"}) {
    Cluster(spec).run_on_every_rank([](Rank& rank) {
      const torch::Tensor held = mebibytes(rank, 1);
      EXPECT_FALSE(rank.device()->memory().driver_figures().has_value());
      EXPECT_EQ(rank.runtime().device_memory()->in_use, kMebibyte);
    });
  }
}

TEST(DriverMemory, HasTheBuffersOfAGroupFromItsFirstCollectiveOn) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    const torch::Tensor one = torch::ones({4}, accelerator.device());
    EXPECT_EQ(figures_of(rank).libraries, 0);
    const int64_t free = rank.runtime().free_memory().accelerators.at(0).second;
    accelerator.gather(one);
    EXPECT_EQ(figures_of(rank).libraries, 342 * kMebibyte);
    accelerator.gather(one);
    EXPECT_EQ(figures_of(rank).libraries, 342 * kMebibyte) << "once";
    EXPECT_EQ(free - rank.runtime().free_memory().accelerators.at(0).second, 342 * kMebibyte);
  });
}

// Two segments of 200 MiB, of which 40 MiB are in use, and 300 MiB asked for.
void fill_in_pieces(Rank& rank) {
  {
    const torch::Tensor first = mebibytes(rank, 200);
    const torch::Tensor second = mebibytes(rank, 200);
  }
  const torch::Tensor third = mebibytes(rank, 20);
  const torch::Tensor fourth = mebibytes(rank, 20);
  mebibytes(rank, 300);
}

TEST(DriverMemory, RunsOutByFragmentationUnlessSegmentsExpand) {
  const std::string spec = kOneGiB;
  try {
    Cluster(spec).run_on_every_rank(&fill_in_pieces);
    FAIL() << "300 MiB went beside 200";
  } catch (const ClusterError& error) {
    EXPECT_THROW(std::rethrow_exception(error.failures()[0].exception), c10::OutOfMemoryError);
    EXPECT_THAT(error.failures()[0].message,
                AllOf(HasSubstr("(h100) is out of memory: "),
                      HasSubstr(" asked for 300.00 MiB in step 0, 260.80 MiB of 1.00 GiB are free"),
                      HasSubstr("reserved 200.00 MiB: 40.00 MiB are tensors'"),
                      HasSubstr("160.00 MiB are reserved but unallocated"),
                      HasSubstr("the context 563.20 MiB"),
                      HasSubstr("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")));
  }
  Cluster(spec + ",expandable_segments=true").run_on_every_rank(&fill_in_pieces);
  simulator::ClusterOptions options;
  options.environment.set("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
  const Cluster by_variable(spec, options);
  EXPECT_THAT(by_variable.spec().to_string(), HasSubstr(",expandable_segments=true"));
  Cluster(spec, options).run_on_every_rank(&fill_in_pieces);
  // The newer name counts first.
  options.environment.set("PYTORCH_ALLOC_CONF", "expandable_segments:False");
  EXPECT_THROW(Cluster(spec, options).run_on_every_rank(&fill_in_pieces), ClusterError);
  options.environment.set("PYTORCH_ALLOC_CONF", "expandable_segments:on");
  EXPECT_THROW(Cluster(spec, options), c10::ValueError);
}

TEST(DriverMemory, ARetryCountsAndTakesTime) {
  Cluster(kOneGiB).run_on_every_rank([](Rank& rank) {
    const int64_t start_ns = rank.device()->host_ns();
    mebibytes(rank, 300);
    const int64_t first_ns = rank.device()->host_ns() - start_ns;
    mebibytes(rank, 300);
    EXPECT_EQ(rank.device()->host_ns() - start_ns, first_ns) << "from the cache";
    EXPECT_EQ(figures_of(rank).allocator.retries, 0);
    mebibytes(rank, 320);
    EXPECT_EQ(figures_of(rank).allocator.retries, 1);
    EXPECT_GT(rank.device()->host_ns() - start_ns, 2 * first_ns);
    EXPECT_EQ(figures_of(rank).allocator.reserved, 320 * kMebibyte);
    EXPECT_EQ(rank.runtime().device_memory()->capacity, 1024 * kMebibyte);
    rank.runtime().empty_device_cache();
    EXPECT_EQ(figures_of(rank).allocator.reserved, 0);
  });
}

TEST(DriverMemory, StreamsDoNotShareBlocks) {
  Cluster(kOneGiB).run_on_every_rank([](Rank& rank) {
    SimDevice& device = *rank.device();
    const c10::Stream other(c10::Stream::UNSAFE, rank.runtime().device(), device.new_stream());
    mebibytes(rank, 30);
    {
      const c10::StreamGuard guard(other);
      mebibytes(rank, 30);
      EXPECT_EQ(figures_of(rank).allocator.reserved, 60 * kMebibyte);
      // Work that the host does not wait for.
      torch::ones({1024, 1024}, rank.runtime().device()).mul_(2);
      EXPECT_GT(device.stream_ns(static_cast<int>(other.id())), device.host_ns());
    }
    // Used on that stream: free once its work is done.
    mebibytes(rank, 30).record_stream(other);
    EXPECT_EQ(figures_of(rank).allocator.active - figures_of(rank).allocator.allocated,
              30 * kMebibyte);
    mebibytes(rank, 30);
    EXPECT_EQ(figures_of(rank).allocator.reserved, (60 + 30) * kMebibyte);
    device.synchronize();
    const torch::Tensor third = mebibytes(rank, 30);
    EXPECT_EQ(figures_of(rank).allocator.active, 30 * kMebibyte);
  });
}

}  // namespace
}  // namespace accelerate
