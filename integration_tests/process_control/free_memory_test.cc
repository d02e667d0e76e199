// Accelerator::free_memory: what goes, and who keeps the rest.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

DataLoader<TensorDataset<1>> made_loader() {
  return DataLoader(make_tensor_dataset(torch::ones({8, 64})), {.batch_size = 2});
}

TOPOLOGY_SUITE(FreeDevice, .hardware = simulator::Hardware::kGpu);

TEST_P(FreeDevice, TheDeviceIsEmptyWhenNothingIsKept) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    auto net = std::make_shared<torch::nn::LinearImpl>(64, 64);
    auto adam = std::make_shared<torch::optim::Adam>(net->parameters());
    auto [model, optimizer, loader] = accelerator.prepare(net, adam, made_loader());
    torch::Tensor loss;
    for (auto& [rows] : loader) {
      auto scope = accelerator.accumulate(model);
      loss = model(rows).sum();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      break;
    }
    EXPECT_GT(rank.runtime().device_memory()->in_use, 0);
    const MemoryReport report = accelerator.free_memory(model, optimizer, loader, net, adam, loss);
    EXPECT_THAT(report.survivors, IsEmpty()) << report.to_string();
    ASSERT_TRUE(report.device.has_value());
    // cuBLAS keeps its workspaces, as on a device, where the driver's memory is modelled.
    const auto driver = rank.device()->memory().driver_figures();
    if (driver.has_value()) EXPECT_GT(driver->workspaces, 0);
    EXPECT_EQ(report.device->in_use, driver.has_value() ? driver->workspaces : 0);
    EXPECT_FALSE(loss.defined());
    EXPECT_EQ(net, nullptr);
    EXPECT_TRUE(accelerator.sync_gradients());
  });
}

TEST_P(FreeDevice, SaysWhatSurvives) {
  make_cluster().run_on_every_rank([&](Rank&) {
    Accelerator accelerator;
    auto net = std::make_shared<torch::nn::LinearImpl>(4, 4);
    auto [model, loader] = accelerator.prepare(net, made_loader());
    auto copy = model;
    MemoryReport report = accelerator.free_memory(model);
    ASSERT_THAT(report.survivors, SizeIs(2));
    EXPECT_EQ(report.survivors[0].kind, "model");
    EXPECT_EQ(report.survivors[0].bytes, 4 * (16 + 4));
    EXPECT_EQ(report.survivors[1].kind, "data loader");
    // Where ranks train together, their DDP owns the model as well.
    const char* const owners = world_size() > 1 ? "3 owners" : "2 owners";
    EXPECT_THAT(
        report.to_string(),
        AllOf(HasSubstr(std::string("model torch::nn::LinearImpl, 80 bytes, is kept alive by ") +
                        owners),
              HasSubstr("data loader, is kept alive by 1 owner\n"), HasSubstr("device: ")));
    // Nothing is prepared any more.
    EXPECT_THAT(accelerator.clear(copy, loader, net).survivors, IsEmpty());
  });
}

TOPOLOGY_SUITE(FreeMemory);

TEST_P(FreeMemory, FreedHandlesSaySo) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto net = std::make_shared<torch::nn::LinearImpl>(4, 4);
    auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
    torch::optim::StepLR step_lr(*sgd, 1);
    auto [model, optimizer, scheduler, loader] =
        accelerator.prepare(net, sgd, step_lr, made_loader());
    accelerator.free_memory(model, optimizer, scheduler, loader);
    EXPECT_THROW(model(torch::ones({1, 4})), c10::Error);
    EXPECT_THROW(optimizer.step(), c10::Error);
    EXPECT_THROW(scheduler.step(), c10::Error);
    EXPECT_THROW(loader.begin(), c10::Error);
    EXPECT_THROW(loader.size(), c10::Error);
  });
}

TEST_P(FreeMemory, TheNextModelIsPreparedAfresh) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    for (int i = 0; i < 3; ++i) {
      auto net = std::make_shared<torch::nn::LinearImpl>(4, 4);
      auto model = accelerator.prepare(net);
      accelerator.backward(model(torch::ones({1, 4}).to(accelerator.device())).sum());
      EXPECT_THAT(accelerator.free_memory(model, net).survivors, IsEmpty());
    }
  });
}

}  // namespace
}  // namespace accelerate
