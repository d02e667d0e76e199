// Devices named by their number on the node: "sim:0" is another device on every node, and a rank
// may have several.
// One shape each: the names follow from the shape.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/network/network.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using simulator::SimDevice;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

c10::Device sim(int index) { return simulator::torch_device(index); }

std::string message_of(const std::function<void()>& run) {
  try {
    run();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

std::string error_of(const std::string& spec, const std::function<void(Rank&)>& body) {
  Cluster cluster(spec);
  try {
    cluster.run_on_every_rank(body);
    return "";
  } catch (const ClusterError& error) {
    return error.what();
  }
}

// ---- Names.

TEST(Names, AreTheNodesAndOneRanksDevicesAreNeighbours) {
  Cluster cluster("2x2:h100,devices=3");
  cluster.run_on_every_rank([](Rank& rank) {
    const int local_rank = rank.index() % 2;
    ASSERT_EQ(rank.devices().size(), 3);
    EXPECT_EQ(rank.device(), rank.devices()[0]);
    EXPECT_EQ(rank.runtime().device(), sim(3 * local_rank));
    for (int i = 0; i < 3; ++i) {
      const SimDevice& device = *rank.devices()[i];
      EXPECT_EQ(device.index(), 3 * local_rank + i);
      EXPECT_EQ(device.rank(), rank.index());
      EXPECT_EQ(device.name(), "rank " + std::to_string(rank.index()) +
                                   "'s sim:" + std::to_string(device.index()) + " (h100)");
    }
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    EXPECT_EQ(guard.getDevice(), rank.runtime().device());
    EXPECT_EQ(guard.deviceCount(), 6);
    EXPECT_EQ(torch::empty({1}, c10::Device(c10::kPrivateUse1)).device(), rank.runtime().device());
  });
}

TEST(Names, AreBoundedOnANodeAndNotInACluster) {
  EXPECT_NO_THROW(Cluster("1x127:h100"));
  EXPECT_NO_THROW(Cluster("1x128"));
  EXPECT_NO_THROW(Cluster("32x127:h100"));
  for (const char* spec : {"1x128:h100", "2x32:h100,devices=4"}) {
    const std::string message = message_of([&] { Cluster cluster(spec); });
    EXPECT_THAT(message, AllOf(HasSubstr(spec), HasSubstr("a node has 128 devices"),
                               HasSubstr("LibTorch counts 127 at most")));
  }
}

TEST(Names, TellMemoryOfRanksOnDifferentNodesApart) {
  Cluster cluster("2x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    EXPECT_EQ(rank.runtime().device(), sim(0));
    const int64_t rows = rank.index() + 1;
    const Tensor held = torch::ones({rows * 256}, sim(0));
    rank.runtime().sleep_for(absl::Seconds(1));  // The other allocates in between.
    EXPECT_EQ(rank.device()->memory().in_use(), rows * 1024);
    EXPECT_EQ(rank.device()->memory().num_blocks(), 1);
  });
}

// As torch::manual_seed() of newer releases of LibTorch does.
void seed_all_devices(uint64_t seed) {
  for (int i = 0; i < c10::impl::VirtualGuardImpl(c10::kPrivateUse1).deviceCount(); ++i) {
    at::Generator generator = at::globalContext().defaultGenerator(sim(i));
    generator.set_current_seed(seed);
  }
}

TEST(Names, LetSeedsOfOneRankLeaveTheDevicesOfOthersAlone) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    if (rank.index() == 0) rank.runtime().sleep_for(absl::Seconds(1));
    seed_all_devices(7 + rank.index());
    if (rank.index() == 1) rank.runtime().sleep_for(absl::Seconds(2));  // Rank 0 seeds in between.
    at::Generator own = at::detail::createCPUGenerator(7 + rank.index());
    EXPECT_TRUE(torch::equal(torch::randn({8}, sim(rank.index())).cpu(), torch::randn({8}, own)));
  });
}

TEST(Names, LetARankSeedWhereOthersAreFolded) {
  Cluster cluster("1x8:h100",
                  {.numerics = simulator::Numerics::kShapes, .fold = simulator::Folding{}});
  EXPECT_NO_THROW(cluster.run_on_every_rank([](Rank&) { seed_all_devices(7); }));
}

TEST(Names, GiveEachRankItsOwnGenerator) {
  Cluster cluster("3x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    torch::manual_seed(rank.index() == 2 ? 8 : 7);
    const Tensor first = torch::randn({8}, sim(0));
    rank.runtime().sleep_for(absl::Seconds(1));  // The others draw in between.
    rank.report("drawn", torch::cat({first, torch::randn({8}, sim(0))}));
  });
  const std::vector<Tensor> drawn = cluster.reports("drawn");
  EXPECT_TRUE(drawn[0].equal(drawn[1]));
  EXPECT_FALSE(drawn[0].equal(drawn[2]));
}

// ---- Tensors of another rank, whose device has the same name.

TEST(Owners, AreFoundThroughTheMemory) {
  Cluster cluster("2x1:h100");
  std::vector<std::pair<std::string, std::string>> messages;
  Tensor shared, part, recurrent, loss;
  cluster.run_on_every_rank([&](Rank& rank) {
    auto store = rank.runtime().store();
    auto group = rank.runtime().new_group({.name = "world"});
    if (rank.index() == 0) {
      shared = torch::ones({4, 4}, sim(0));
      part = shared.t().slice(0, 1, 3);
      torch::nn::LSTM lstm(4, 4);
      lstm->to(sim(0));
      recurrent = std::get<0>(lstm(torch::ones({2, 3, 4}, sim(0)))).detach();
      // No operator of its backward pass reads a saved tensor.
      loss = (torch::ones({4}, sim(0)).requires_grad_() * 2).sum();
      store->set("made", "1");
      store->wait({"used"});
      shared = part = recurrent = loss = Tensor();
      return;
    }
    store->wait({"made"});
    const Tensor own = torch::ones({4, 4}, sim(0));
    std::vector<Tensor> in_group{shared};
    messages = {
        {"alone", message_of([&] { shared + 1; })},
        {"with its own", message_of([&] { own + shared; })},
        {"a view", message_of([&] { part.sum(); })},
        {"a recurrent layer's result", message_of([&] { recurrent.sum(); })},
        {"to the CPU", message_of([&] { shared.cpu(); })},
        {"as a copy", message_of([&] { shared.clone(); })},
        {"written to", message_of([&] { shared.copy_(own); })},
        {"read by a copy", message_of([&] { torch::empty_like(own).copy_(shared); })},
        {"in a collective", message_of([&] { group->allreduce(in_group); })},
        {"in a backward pass", message_of([&] { loss.backward(); })},
    };
    in_group.clear();
    store->set("used", "1");
  });
  ASSERT_EQ(messages.size(), 10);
  for (const auto& [name, message] : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 passed a tensor on sim:0"),
                               HasSubstr("but its memory is rank 0's")))
        << name;
  }
}

// ---- Several devices in a rank.

TEST(SeveralDevices, HaveTheirOwnMemory) {
  Cluster cluster("1x2:h100,devices=2,mem=4MiB,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    const int first = rank.device()->index();
    const Tensor here = torch::ones({256}, sim(first));
    const Tensor there = torch::ones({1024}, sim(first + 1));
    const Tensor sum = there + there;
    EXPECT_EQ(sum.device(), sim(first + 1));
    EXPECT_EQ(rank.devices()[0]->memory().in_use(), 1024);
    EXPECT_EQ(rank.devices()[1]->memory().in_use(), 2 * 4096);
    EXPECT_THAT(message_of([&] { torch::ones({1 << 20}, sim(first + 1)); }),
                HasSubstr("rank " + std::to_string(rank.index()) +
                          "'s sim:" + std::to_string(first + 1) + " (h100) is out of memory"));
    EXPECT_THAT(message_of([&] { torch::ones({1}, sim(3 - first)); }),
                HasSubstr("which is rank " + std::to_string(1 - rank.index()) + "'s device"));
    EXPECT_THAT(message_of([&] { torch::ones({1}, sim(4)); }),
                HasSubstr("its node has the devices sim:0 to sim:3 only"));
    EXPECT_THAT(message_of([&] { here + there.slice(0, 0, 256); }),
                HasSubstr("Expected all tensors to be on the same device"));
  });
}

TEST(SeveralDevices, FollowTheDeviceGuard) {
  Cluster cluster("1x1:h100,devices=4");
  cluster.run_on_every_rank([](Rank& rank) {
    for (int i = 0; i < 4; ++i) {
      const c10::DeviceGuard guard(sim(i));
      EXPECT_EQ(torch::empty({1}, c10::Device(c10::kPrivateUse1)).device(), sim(i));
    }
    EXPECT_EQ(torch::empty({1}, c10::Device(c10::kPrivateUse1)).device(), sim(0));
  });
}

TEST(SeveralDevices, CopyOverTheNodesLinkWhileTheHostGoesOn) {
  for (const char* spec : {"1x1:h100,devices=4,efficiency=ideal", "1x1:mi300x,devices=4",
                           "1x1:h100,devices=2,node=pcie,efficiency=ideal"}) {
    Cluster cluster(spec);
    const simulator::LinkModel link = simulator::link_in_node(cluster.spec());
    cluster.run_on_every_rank([&](Rank& rank) {
      SimDevice& from = *rank.devices()[0];
      SimDevice& to = *rank.devices()[1];
      constexpr int64_t kBytes = 32 << 20;
      const Tensor source = torch::arange(kBytes / 4, torch::kInt).to(sim(0));
      Tensor target = torch::empty({kBytes / 4}, torch::dtype(torch::kInt).device(sim(1)));
      for (SimDevice* device : rank.devices()) device->synchronize();
      const int64_t start_ns = from.host_ns();
      const int64_t launch_ns = from.model().launch_ns;
      target.copy_(source);
      EXPECT_EQ(from.host_ns() - start_ns, launch_ns) << spec;
      const double ns = link.latency_ns + kBytes / link.bytes_per_second * 1e9;
      EXPECT_NEAR(from.stream_ns(0) - start_ns, launch_ns + ns, 1) << spec;
      EXPECT_EQ(to.stream_ns(0), from.stream_ns(0)) << spec;
      EXPECT_TRUE(target.cpu().equal(source.cpu())) << spec;
      // A copy begins when the target is done with its earlier work, too.
      for (SimDevice* device : rank.devices()) device->synchronize();
      target.add_(1);
      const int64_t busy_ns = to.stream_ns(0);
      target.copy_(source);
      EXPECT_NEAR(to.stream_ns(0) - busy_ns, ns, 1) << spec;
      EXPECT_TRUE(source.to(sim(1)).equal(target)) << spec;
    });
  }
}

TEST(SeveralDevices, HaveTheirOwnStreamsAndShareTheHostsClock) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    const Tensor a = torch::ones({256, 256}, sim(0));
    const Tensor b = torch::ones({256, 256}, sim(1));
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    for (int i = 0; i < 2; ++i) guard.synchronizeDevice(static_cast<c10::DeviceIndex>(i));
    EXPECT_EQ(rank.devices()[0]->host_ns(), rank.devices()[1]->host_ns());
    for (int i = 0; i < 10; ++i) a.mm(a);
    EXPECT_FALSE(guard.getStream(sim(0)).query());
    EXPECT_TRUE(guard.getStream(sim(1)).query());
    const c10::Stream side = guard.getNewStream(sim(1));
    {
      const c10::StreamGuard scope(side);
      EXPECT_EQ(guard.getStream(sim(1)), side);
      EXPECT_EQ(guard.getStream(sim(0)), guard.getDefaultStream(sim(0)));
      b.mm(b);
    }
    c10::Event done(c10::kPrivateUse1);
    done.record(guard.getStream(sim(0)));
    done.block(side);
    EXPECT_GE(rank.devices()[1]->stream_ns(static_cast<int>(side.id())),
              rank.devices()[0]->stream_ns(0));
    guard.synchronizeDevice(1);
    EXPECT_TRUE(side.query());
    EXPECT_TRUE(guard.getStream(sim(0)).query());  // The side stream waited for it.
  });
}

TEST(SeveralDevices, AreSeededTogetherAndDrawApart) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    torch::manual_seed(5);
    const Tensor on_cpu = torch::randn({10});
    torch::manual_seed(5);
    EXPECT_TRUE(torch::randn({10}, sim(0)).cpu().equal(on_cpu));
    EXPECT_TRUE(torch::randn({10}, sim(1)).cpu().equal(on_cpu));
    at::Generator second = at::globalContext().defaultGenerator(sim(1));
    EXPECT_EQ(second.device(), sim(1));
    second.set_current_seed(6);
    EXPECT_FALSE(torch::randn({10}, sim(0)).cpu().equal(torch::randn({10}, sim(1)).cpu()));
  });
}

TEST(SeveralDevices, HoldBackAProgramThatLeaksOnAnyOfThem) {
  Tensor kept;
  EXPECT_THAT(error_of("1x2:h100,devices=2",
                       [&kept](Rank& rank) {
                         if (rank.index() == 1) kept = torch::ones({1024}, sim(3));
                       }),
              HasSubstr("rank 1's sim:3 (h100) held 4.00 KiB in 1 blocks when the rank ended"));
  kept.reset();
}

// Half of a model on each device.
struct SplitImpl : torch::nn::Module {
  SplitImpl(c10::Device first, c10::Device second)
      : first(first),
        second(second),
        lower(register_module("lower", torch::nn::Linear(16, 32))),
        upper(register_module("upper", torch::nn::Linear(32, 4))) {
    lower->to(first);
    upper->to(second);
  }
  Tensor forward(const Tensor& x) {
    return upper(torch::relu(lower(x.to(first))).to(second)).square().mean();
  }

  const c10::Device first, second;
  torch::nn::Linear lower, upper;
};
TORCH_MODULE(Split);

TEST(SeveralDevices, HoldOneModelAndItsBackwardPass) {
  const auto train = [](c10::Device first, c10::Device second) {
    torch::manual_seed(3);
    Split model(first, second);
    torch::optim::AdamW adam(model->parameters(), 0.1);
    const Tensor input = torch::randn({8, 16});
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = model(input);
      losses.push_back(loss.item<double>());
      loss.backward();
      adam.step();
      adam.zero_grad();
    }
    return losses;
  };
  const std::vector<double> on_cpu = train(c10::kCPU, c10::kCPU);
  Cluster cluster("1x2:h100,devices=2", {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    const int first = rank.device()->index();
    EXPECT_EQ(train(sim(first), sim(first + 1)), on_cpu);
    EXPECT_EQ(train(sim(first + 1), sim(first)), on_cpu);
    for (SimDevice* device : rank.devices()) {
      EXPECT_FALSE(device->memory().in_backward());
      EXPECT_EQ(device->memory().step(), 5);
      EXPECT_EQ(device->memory().in_use(), 0);
    }
  });
  // Each step once, though both devices took part in it.
  EXPECT_EQ(cluster.trace().steps.size(), 5);
}

TEST(SeveralDevices, TakePartInABackwardPassThatEndsOnTheHost) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    const Tensor a = torch::ones({4}, sim(0)).requires_grad_();
    const Tensor b = torch::ones({4}, sim(1)).requires_grad_();
    ((a * 2).cpu() + (b * 3).cpu()).sum().backward();
    EXPECT_EQ(a.grad().device(), sim(0));
    EXPECT_EQ(b.grad().device(), sim(1));
    EXPECT_EQ(a.grad().sum().item<float>(), 8);
    EXPECT_EQ(b.grad().sum().item<float>(), 12);
  });
}

TEST(SeveralDevices, ChargeARecurrentLayersGradientsToItsOwn) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    torch::nn::LSTM lstm(8, 64);
    lstm->to(sim(1));
    int64_t bytes = 0;
    for (const Tensor& weight : lstm->parameters()) {
      bytes += 2 * static_cast<int64_t>(weight.nbytes());
    }
    std::get<0>(lstm(torch::ones({2, 3, 8}, sim(1)))).to(sim(0)).sum().backward();
    for (const Tensor& weight : lstm->parameters()) EXPECT_EQ(weight.grad().device(), sim(1));
    EXPECT_GE(rank.devices()[1]->memory().in_use(), bytes);
    EXPECT_EQ(rank.devices()[0]->memory().in_use(), 0);
  });
}

TEST(SeveralDevices, CommunicateEachOnItsOwnStream) {
  Cluster cluster("2x1:h100,devices=2", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 2; ++i) {
        std::vector<Tensor> tensors{torch::full({8}, rank.index() + i, sim(i))};
        group->allreduce(tensors)->wait();
        EXPECT_EQ(tensors[0][0].item<float>(), 1 + 2 * i);
      }
    }
    for (SimDevice* device : rank.devices()) EXPECT_EQ(device->num_streams(), 2);
    std::vector<Tensor> both{torch::ones({2}, sim(0)), torch::ones({2}, sim(1))};
    EXPECT_THAT(message_of([&] { group->allreduce_coalesced(both); }),
                HasSubstr("tensors on sim:0 and on sim:1"));
  });
  std::vector<int> collectives(2);
  for (const simulator::Slice& slice : cluster.trace().slices) {
    if (slice.kind == simulator::SliceKind::kCollective) ++collectives[slice.device];
  }
  EXPECT_THAT(collectives, testing::ElementsAre(4, 4));
}

TEST(SeveralDevices, AreRecordedApart) {
  Cluster cluster("1x1:h100,devices=3", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    const Tensor a = torch::ones({1024}, sim(0));
    const Tensor b = torch::ones({4096}, sim(2));
    b.to(sim(1));
  });
  const simulator::Trace& trace = cluster.trace();
  EXPECT_EQ(trace.devices_per_rank, 3);
  std::vector<int64_t> peaks(3);
  for (const simulator::MemorySample& sample : trace.memory) {
    const int64_t bytes = std::accumulate(sample.bytes.begin(), sample.bytes.end(), int64_t{0});
    peaks[sample.device] = std::max(peaks[sample.device], bytes);
  }
  EXPECT_THAT(peaks, testing::ElementsAre(4096, 16384, 16384));
  EXPECT_EQ(trace.ranks[0].memory_peak, 16384);
  int copies = 0;
  for (const simulator::Slice& slice : trace.slices) {
    if (slice.kind != simulator::SliceKind::kCopy) continue;
    EXPECT_EQ(trace.names[slice.name], "copy between devices");
    EXPECT_EQ(slice.device, 2);
    ++copies;
  }
  EXPECT_EQ(copies, 1);
}

// ---- Backward passes of ranks whose devices have one name.

TEST(BackwardPasses, OfOneNameStayOnTheirThreadsThroughHooksThatWait) {
  constexpr int kRanks = 3;
  Cluster cluster("3x1:h100");
  std::vector<std::string> problems(kRanks);
  std::vector<int> num_calls(kRanks);
  cluster.run_on_every_rank([&](Rank& rank) {
    const int index = rank.index();
    auto group = rank.runtime().new_group({.name = "world"});
    auto note = [&](const char* where) {
      ++num_calls[index];
      if (&Runtime::current() != &rank.runtime() || simulator::current_rank() != index) {
        problems[index] += where + std::string(" ");
      }
    };
    const Tensor weight = torch::full({4, 4}, index + 1.0, sim(0)).requires_grad_();
    const Tensor hidden = weight * 2;
    hidden.register_hook([&](const Tensor& gradient) {
      note("hook");
      // All ranks are in their passes now; each waits for the others.
      std::vector<Tensor> reduced{gradient.clone()};
      group->allreduce(reduced)->wait();
      return reduced[0];
    });
    weight.register_hook([&](const Tensor& gradient) {
      note("leaf hook");
      const at::AutoGradMode with_gradients(true);
      const Tensor inner = gradient.detach().clone().requires_grad_();
      inner.register_hook([&](const Tensor& of_inner) {
        note("inner hook");
        std::vector<Tensor> reduced{of_inner.clone()};
        group->allreduce(reduced)->wait();
        return reduced[0];
      });
      inner.square().sum().backward();
      return inner.grad();
    });
    (hidden * (index + 1)).sum().backward();
    // The sum of 1 + 2 + 3, times two; then 2 * 12 from each of the three.
    EXPECT_TRUE(weight.grad().cpu().equal(torch::full({4, 4}, 3 * 2 * 12.0f)));
    EXPECT_EQ(weight.grad().device(), sim(0));
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(problems[rank], "") << "rank " << rank;
    EXPECT_EQ(num_calls[rank], 3);
  }
}

// ---- More ranks than LibTorch counts devices.

// Trains on the rank's device. Reports the loss of each step and the largest memory.
void train_data_parallel(Rank& rank) {
  Accelerator accelerator;
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 2));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<double> losses;
  for (int step = 0; step < 2; ++step) {
    const Tensor input = torch::ones({4, 8}).to(accelerator.device());
    Tensor loss = model(input).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_EQ(loss.device(), rank.runtime().device());
    losses.push_back(loss.item<double>());
  }
  rank.report("losses", torch::tensor(losses));
  rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
}

TEST(LargeClusters, TrainOnDevices) {
  Cluster small("1x2:h100");
  small.run_on_every_rank(train_data_parallel);
  const Tensor losses = small.reports("losses")[0];
  for (const char* spec : {"65x2:h100", "10x13:h100", "75x4:h100"}) {
    Cluster cluster(spec);
    cluster.run_on_every_rank(train_data_parallel);
    // Equal inputs, so the mean gradient is each rank's own, but for its rounding.
    for (const Tensor& each : cluster.reports("losses")) {
      EXPECT_TRUE(each.allclose(losses, 1e-5)) << spec;
    }
    const std::vector<Tensor> peaks = cluster.reports("peak");
    for (const Tensor& each : peaks) EXPECT_TRUE(each.equal(peaks[0])) << spec;
  }
}

}  // namespace
}  // namespace accelerate
