// A simulated device behaves as LibTorch's other devices do: moving between devices, errors,
// memory, random numbers, streams, and the thread that computes gradients.
// One shape each: what one device does, or two or three beside each other.
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using simulator::SimDevice;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

// One rank with an H100.
void on_device(const std::function<void(c10::Device)>& body) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([&](Rank& rank) { body(rank.runtime().device()); });
}

// The message of the c10::Error that `call` raises, "" if none.
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// ---- Moving.

TEST(DeviceMoves, TensorsAreSavedAndLoadedOnEitherSide) {
  on_device([](c10::Device device) {
    const Tensor on_cpu = torch::randn({3, 4});
    std::stringstream of_device, of_cpu;
    torch::save(on_cpu.to(device).t(), of_device);
    torch::save(on_cpu, of_cpu);

    Tensor there_again, here, there;
    torch::load(there_again, of_device);
    EXPECT_EQ(there_again.device(), device);
    EXPECT_TRUE(there_again.cpu().equal(on_cpu.t()));
    of_device.seekg(0);
    torch::load(here, of_device, c10::Device(c10::kCPU));
    EXPECT_TRUE(here.is_cpu());
    EXPECT_TRUE(here.equal(on_cpu.t()));
    torch::load(there, of_cpu, device);
    EXPECT_EQ(there.device(), device);
    EXPECT_TRUE(there.cpu().equal(on_cpu));
  });
}

TEST(DeviceMoves, PickledTensorsComeBack) {
  on_device([](c10::Device device) {
    const Tensor tensor = torch::randn({5}, device);
    const Tensor again = torch::pickle_load(torch::pickle_save(tensor)).toTensor();
    EXPECT_TRUE(again.cpu().equal(tensor.cpu()));
  });
}

TEST(DeviceMoves, ModulesAndOptimizersAreSavedOnOneSideAndLoadedOnTheOther) {
  on_device([](c10::Device device) {
    nn::Linear trained(3, 2);
    trained->to(device);
    torch::optim::Adam optimizer(trained->parameters());
    trained(torch::ones({4, 3}, device)).sum().backward();
    optimizer.step();
    std::stringstream model_file, optimizer_file;
    torch::save(trained, model_file);
    torch::save(optimizer, optimizer_file);

    nn::Linear on_cpu(3, 2);
    torch::load(on_cpu, model_file, c10::Device(c10::kCPU));
    EXPECT_TRUE(on_cpu->weight.is_cpu());
    EXPECT_TRUE(on_cpu->weight.equal(trained->weight.cpu()));
    model_file.seekg(0);
    nn::Linear on_device(3, 2);
    torch::load(on_device, model_file);
    on_device->to(device);
    EXPECT_TRUE(on_device->weight.cpu().equal(trained->weight.cpu()));

    torch::optim::Adam resumed(on_device->parameters());
    torch::load(resumed, optimizer_file);
    for (auto [model, used] : {std::pair(&trained, &optimizer), std::pair(&on_device, &resumed)}) {
      used->zero_grad();
      (*model)(torch::ones({4, 3}, device)).square().sum().backward();
      used->step();
    }
    EXPECT_TRUE(on_device->weight.cpu().equal(trained->weight.cpu()));
  });
}

TEST(DeviceMoves, ModulesMoveThereAndBack) {
  on_device([](c10::Device device) {
    nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4));
    const Tensor weight = model->parameters()[0];  // Optimizers hold parameters like this.
    const Tensor before = weight.detach().clone();
    model->to(device);
    EXPECT_EQ(weight.device(), device);
    for (const Tensor& buffer : model->buffers()) EXPECT_EQ(buffer.device(), device);
    model->to(torch::kDouble);
    EXPECT_EQ(weight.scalar_type(), torch::kDouble);
    model->to(c10::Device(c10::kCPU), torch::kFloat);
    EXPECT_TRUE(weight.is_cpu());
    EXPECT_TRUE(weight.equal(before));
  });
}

TEST(DeviceMoves, ClonesAreIndependentAndWhereTheyWereAskedFor) {
  on_device([](c10::Device device) {
    nn::Linear model(3, 4);
    model->to(device);
    auto same = std::dynamic_pointer_cast<nn::LinearImpl>(model->clone());
    auto on_cpu = std::dynamic_pointer_cast<nn::LinearImpl>(model->clone(c10::Device(c10::kCPU)));
    auto back = std::dynamic_pointer_cast<nn::LinearImpl>(on_cpu->clone(device));
    EXPECT_EQ(same->weight.device(), device);
    EXPECT_TRUE(on_cpu->weight.is_cpu());
    EXPECT_EQ(back->weight.device(), device);
    {
      at::NoGradGuard guard;
      model->weight.zero_();
    }
    EXPECT_NE(same->weight.abs().sum().item<float>(), 0);
    EXPECT_TRUE(back->weight.cpu().equal(same->weight.cpu()));
  });
}

TEST(DeviceMoves, TensorsPrintTheirValuesAndTheirDevice) {
  on_device([](c10::Device device) {
    std::ostringstream text, sparse;
    text << torch::full({2, 2}, 1.5, device);
    EXPECT_THAT(text.str(), AllOf(HasSubstr("1.5"), HasSubstr("sim"), HasSubstr("{2,2}")));
    sparse << torch::eye(2).to_sparse().to(device);
    EXPECT_THAT(sparse.str(), HasSubstr("indices"));
    EXPECT_EQ(device.str(), "sim:0");
    EXPECT_EQ(c10::Device("sim:0"), device);
  });
}

TEST(DeviceMoves, OnlyCopiesFromPinnedMemoryDoNotWait) {
  Cluster cluster("1x1:h100,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    SimDevice& clocks = *rank.device();
    const Tensor pageable = torch::ones({1024, 1024});
    const Tensor pinned = pageable.pin_memory();
    EXPECT_FALSE(pageable.is_pinned());
    EXPECT_TRUE(pinned.is_pinned());
    EXPECT_TRUE(torch::empty({3}, torch::TensorOptions().pinned_memory(true)).is_pinned());
    EXPECT_TRUE(pinned.equal(pageable));

    // Host time that a copy takes; the device is idle before.
    auto host_time = [&](const Tensor& source, bool non_blocking) {
      clocks.synchronize();
      const int64_t start = clocks.host_ns();
      const Tensor copied = source.to(device, torch::kFloat, non_blocking);
      EXPECT_EQ(copied.sum().item<float>(), 1024 * 1024);
      clocks.synchronize();
      const int64_t whole = clocks.host_ns() - start;
      const int64_t again = clocks.host_ns();
      const Tensor twice = source.to(device, torch::kFloat, non_blocking);
      return std::pair(clocks.host_ns() - again, whole);
    };
    const int64_t waits = host_time(pageable, false).first;
    EXPECT_GT(waits, 10'000);
    EXPECT_EQ(host_time(pageable, true).first, waits);
    EXPECT_EQ(host_time(pinned, false).first, waits);
    EXPECT_LT(host_time(pinned, true).first, waits / 2);
    EXPECT_GT(host_time(pinned, true).second, waits);  // Whoever needs the result waits.
  });
}

// ---- Mixing devices.

TEST(MixedDevices, RaiseWhatLibtorchRaises) {
  on_device([](c10::Device device) {
    const Tensor here = torch::ones({4, 4});
    const Tensor there = torch::ones({4, 4}, device);
    const Tensor images = torch::ones({2, 4, 5, 5}, device);
    const Tensor classes = torch::zeros({4}, torch::kLong);
    const std::vector<std::pair<const char*, std::function<void()>>> mixes = {
        {"add", [&] { there.add(here); }},
        {"add, the other way round", [&] { here.add(there); }},
        {"add in place", [&] { there.clone().add_(here); }},
        {"mul", [&] { there.mul(here); }},
        {"greater than", [&] { there.gt(here); }},
        {"where", [&] { torch::where(there > 0, there, here); }},
        {"lerp", [&] { there.lerp(here, 0.5); }},
        {"addcmul", [&] { there.addcmul(there, here); }},
        {"out=",
         [&] {
           Tensor out = torch::empty({4, 4});
           torch::add_out(out, there, there);
         }},
        {"mm", [&] { there.mm(here); }},
        {"mm, the other way round", [&] { here.mm(there); }},
        {"addmm", [&] { torch::addmm(here[0], there, there); }},
        {"bmm", [&] { there.unsqueeze(0).bmm(here.unsqueeze(0)); }},
        {"mv", [&] { there.mv(here[0]); }},
        {"dot", [&] { there[0].dot(here[0]); }},
        {"linear", [&] { F::linear(there, here); }},
        {"linear with a bias", [&] { F::linear(there, there, here[0]); }},
        {"conv2d", [&] { torch::conv2d(images, torch::ones({3, 4, 3, 3})); }},
        {"batch_norm",
         [&] { torch::batch_norm(images, {}, {}, here[0], here[1], true, 0.1, 1e-5, false); }},
        {"layer_norm", [&] { torch::layer_norm(there, {4}, here[0], here[1]); }},
        {"cat", [&] { torch::cat({there, here}); }},
        {"stack", [&] { torch::stack({here, there}); }},
        {"embedding", [&] { torch::embedding(there, classes); }},
        {"cross_entropy", [&] { F::cross_entropy(there, classes); }},
        {"mse_loss", [&] { F::mse_loss(there, here); }},
        {"index_select", [&] { there.index_select(0, classes); }},
        {"gather", [&] { there.gather(0, classes.unsqueeze(0)); }},
        {"masked_select", [&] { there.masked_select(here > 0); }},
    };
    for (const auto& [name, mix] : mixes) {
      EXPECT_THAT(message_of(mix), HasSubstr("Expected all tensors to be on the same device"))
          << name;
      EXPECT_THAT(message_of(mix), AllOf(HasSubstr("sim:0"), HasSubstr("cpu"))) << name;
    }
  });
}

TEST(MixedDevices, RaiseAttentionsOwnMessage) {
  on_device([](c10::Device device) {
    const Tensor here = torch::ones({4, 4});
    const Tensor there = torch::ones({4, 4}, device);
    EXPECT_THAT(message_of([&] { at::scaled_dot_product_attention(there, here, there); }),
                HasSubstr("Expected query, key, and value to have the same device type"));
  });
}

TEST(MixedDevices, AreFineWhereLibtorchAllowsThem) {
  on_device([](c10::Device device) {
    const Tensor there = torch::arange(8, torch::kFloat).to(device);
    EXPECT_EQ((there + torch::tensor(2.0)).device(), device);
    EXPECT_EQ(there.index({torch::tensor({1, 3})}).sum().item<float>(), 4);
    Tensor filled = torch::zeros({8}, device);
    filled.index_put_({torch::tensor({1, 3})}, torch::tensor(2.0));
    EXPECT_EQ(filled.sum().item<float>(), 4);
    // Not in this direction.
    EXPECT_THAT(message_of([&] { torch::zeros({8}).index({torch::tensor({1, 3}).to(device)}); }),
                HasSubstr("indices should be either on cpu or on the same device"));
  });
}

// ---- Other ranks' devices.

TEST(OtherRanksDevices, CannotBeUsed) {
  Cluster cluster("1x2:h100");
  Tensor shared;
  std::vector<std::pair<std::string, std::string>> messages;
  cluster.run_on_every_rank([&](Rank& rank) {
    auto store = rank.runtime().store();
    if (rank.index() == 0) {
      shared = torch::ones({4, 4}, rank.runtime().device()).requires_grad_();
      store->set("made", "1");
      store->wait({"used"});
      shared = Tensor();
      return;
    }
    store->wait({"made"});
    const c10::Device own = rank.runtime().device();
    const Tensor other = shared.detach();
    messages = {
        {"alone", message_of([&] { other + 1; })},
        {"with its own", message_of([&] { torch::ones({4, 4}, own) + other; })},
        {"to be printed", message_of([&] { std::ostringstream() << other; })},
        {"to the CPU", message_of([&] { other.cpu(); })},
        {"to its own device", message_of([&] { other.to(own); })},
        {"written to", message_of([&] { shared.detach().copy_(torch::ones({4, 4})); })},
        {"allocated", message_of([&] { torch::empty({2}, c10::Device(c10::kPrivateUse1, 0)); })},
        {"filled", message_of([&] { torch::ones({2}, c10::Device(c10::kPrivateUse1, 0)); })},
    };
    store->set("used", "1");
  });
  ASSERT_EQ(messages.size(), 8);
  for (const auto& [name, message] : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("rank 0"))) << name;
  }
}

TEST(OtherRanksDevices, DoNotComputeGradientsForOthers) {
  Cluster cluster("1x2:h100");
  Tensor loss;
  std::string message;
  cluster.run_on_every_rank([&](Rank& rank) {
    auto store = rank.runtime().store();
    if (rank.index() == 0) {
      loss = torch::ones({4}, rank.runtime().device()).requires_grad_().square().sum();
      store->set("made", "1");
      store->wait({"used"});
      loss = Tensor();
      return;
    }
    store->wait({"made"});
    message = message_of([&] { loss.backward(); });
    store->set("used", "1");
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("rank 0")));
}

// ---- Memory.

TEST(OutOfMemory, LeavesNothingBehindAndTrainingCanGoOn) {
  Cluster cluster("1x1:h100,mem=4MiB,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    simulator::DeviceMemory& memory = rank.device()->memory();
    torch::manual_seed(3);
    nn::Sequential model(nn::Linear(64, 256), nn::ReLU(), nn::Linear(256, 8));
    model->to(device);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto step = [&](int64_t batch) {
      optimizer.zero_grad();
      model->forward(torch::ones({batch, 64}, device)).square().mean().backward();
      optimizer.step();
    };
    step(16);
    optimizer.zero_grad();
    const int64_t before = memory.in_use();

    // Hidden units take 1 KiB an example each time. In the forward pass:
    EXPECT_THROW(step(3000), c10::OutOfMemoryError);
    optimizer.zero_grad();
    EXPECT_EQ(memory.in_use(), before);
    // In the backward pass: the largest batch whose forward pass fits.
    bool failed_in_backward = false;
    for (int64_t batch = 3000; batch > 0 && !failed_in_backward; batch -= 50) {
      Tensor loss;
      try {
        loss = model->forward(torch::ones({batch, 64}, device)).square().mean();
      } catch (const c10::OutOfMemoryError&) {
        continue;
      }
      EXPECT_THROW(loss.backward(), c10::OutOfMemoryError) << batch;
      failed_in_backward = true;
    }
    EXPECT_TRUE(failed_in_backward);
    optimizer.zero_grad();
    EXPECT_EQ(memory.in_use(), before);
    EXPECT_FALSE(memory.in_backward());
    EXPECT_NO_THROW(step(16));
  });
}

// ---- Random numbers.

// x + 1, doubled, which keeps more than its result.
struct DoubleOfNext : torch::autograd::Function<DoubleOfNext> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const Tensor next = x + 1;
    context->save_for_backward({next});
    return next * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * context->get_saved_variables()[0].clamp(2, 2)};
  }
};

TEST(MemoryOfFunctions, IsActivationsInEachForwardPass) {
  on_device([](c10::Device device) {
    const auto held = [&](simulator::MemoryCategory category) {
      const auto& bytes = SimDevice::of(device.index()).memory().by_category();
      return bytes[static_cast<size_t>(category)];
    };
    const auto activations = [&] { return held(simulator::MemoryCategory::kActivations); };
    nn::Linear layer(64, 64);
    {
      const c10::AutoGradMode without_gradients(false);
      layer->to(device);
    }
    torch::optim::SGD optimizer(layer->parameters(), 0.1);
    constexpr int64_t kBytes = 64 * 64 * 4;
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(step);
      const Tensor x = torch::ones({64, 64}, device);
      const int64_t before = activations();
      const int64_t parameters = held(simulator::MemoryCategory::kParameters);
      const int64_t temporaries = held(simulator::MemoryCategory::kTemporaries);
      const Tensor hidden = layer(x), doubled = DoubleOfNext::apply(hidden), loss = doubled.sum();
      // The layer's result, the next numbers, their doubles, and a block for the sum.
      EXPECT_EQ(activations() - before, 3 * kBytes + 512);
      EXPECT_EQ(held(simulator::MemoryCategory::kParameters), parameters);
      EXPECT_EQ(held(simulator::MemoryCategory::kTemporaries), temporaries);
      loss.backward();
      optimizer.step();
    }
  });
}

TEST(DeviceGenerator, FollowsManualSeedAndCanBeSaved) {
  on_device([](c10::Device device) {
    torch::manual_seed(5);
    const Tensor on_cpu = torch::randn({40});
    torch::manual_seed(5);
    const Tensor first = torch::randn({40}, device);
    EXPECT_TRUE(first.cpu().equal(on_cpu));
    EXPECT_FALSE(torch::randn({40}, device).cpu().equal(on_cpu));

    at::Generator generator = at::globalContext().defaultGenerator(device);
    EXPECT_EQ(generator.device(), device);
    EXPECT_EQ(generator.current_seed(), 5);
    const Tensor state = generator.get_state();
    const Tensor drawn = torch::rand({20}, device);
    generator.set_state(state);
    EXPECT_TRUE(torch::rand({20}, device).cpu().equal(drawn.cpu()));
    generator.set_current_seed(5);
    EXPECT_TRUE(torch::randn({40}, device).cpu().equal(on_cpu));
  });
}

TEST(DeviceGenerator, IsNotTheCpus) {
  on_device([](c10::Device device) {
    torch::manual_seed(6);
    const Tensor expected = torch::randn({30});
    torch::manual_seed(6);
    torch::randn({100}, device);
    torch::dropout(torch::ones({50}, device), 0.5, /*train=*/true);
    EXPECT_TRUE(torch::randn({30}).equal(expected));
  });
}

TEST(DeviceGenerator, BelongsToItsRank) {
  Cluster cluster("1x3:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    torch::manual_seed(rank.index() == 2 ? 8 : 7);
    const Tensor first = torch::randn({8}, rank.runtime().device());
    rank.runtime().sleep_for(absl::Seconds(1));  // The others draw in between.
    rank.report("drawn", torch::cat({first, torch::randn({8}, rank.runtime().device())}));
  });
  const std::vector<Tensor> drawn = cluster.reports("drawn");
  EXPECT_TRUE(drawn[0].equal(drawn[1]));
  EXPECT_FALSE(drawn[0].equal(drawn[2]));
}

// ---- Streams and events.

TEST(DeviceStreams, OverlapUntilAnEventJoinsThem) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const c10::impl::VirtualGuardImpl impl(device.type());
    const c10::Stream main = impl.getStream(device);
    const c10::Stream side = impl.getNewStream(device);
    EXPECT_EQ(main, impl.getDefaultStream(device));
    EXPECT_NE(main, side);
    const Tensor x = torch::ones({1024, 1024}, device);
    rank.device()->synchronize();
    EXPECT_TRUE(main.query());

    {
      const c10::StreamGuard guard(side);
      EXPECT_EQ(impl.getStream(device), side);
      for (int i = 0; i < 20; ++i) x.mm(x);
    }
    EXPECT_EQ(impl.getStream(device), main);
    EXPECT_FALSE(side.query());
    EXPECT_TRUE(main.query());  // Nothing runs there.

    c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event done(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    start.record(main);
    done.record(side);
    EXPECT_TRUE(start.query());
    EXPECT_FALSE(done.query());
    done.block(main);
    x.add(1);
    EXPECT_FALSE(main.query());
    EXPECT_GT(start.elapsedTime(done), 0.01);
    const int64_t before = rank.device()->host_ns();
    done.synchronize();
    EXPECT_TRUE(done.query());
    EXPECT_TRUE(side.query());
    EXPECT_FALSE(main.query());  // The addition comes after.
    main.synchronize();
    EXPECT_TRUE(main.query());
    EXPECT_GT(rank.device()->host_ns(), before);
  });
}

// ---- Backward passes.

TEST(BackwardPass, RunsOnTheThreadOfItsRank) {
  Cluster cluster("1x3:h100");
  std::vector<std::string> problems(3);
  std::vector<int> num_calls(3);
  cluster.run_on_every_rank([&](Rank& rank) {
    const auto own_thread = std::this_thread::get_id();
    const int index = rank.index();
    auto note = [&](const char* where) {
      ++num_calls[index];
      if (std::this_thread::get_id() != own_thread)
        problems[index] += where + std::string(" thread ");
      if (&Runtime::current() != &rank.runtime())
        problems[index] += where + std::string(" runtime ");
      if (simulator::current_rank() != index) problems[index] += where + std::string(" rank ");
    };
    Tensor weight = torch::ones({4, 4}, rank.runtime().device()).requires_grad_();
    for (int i = 0; i < 5; ++i) {
      Tensor hidden = weight.mm(weight);
      hidden.register_hook([&](const Tensor&) {
        note("hook");
        rank.runtime().sleep_for(absl::Seconds(1));  // The others' passes run in between.
      });
      weight.register_hook([&](const Tensor& gradient) {
        note("leaf hook");
        // A pass within the pass, and one of the CPU.
        const at::AutoGradMode with_gradients(true);
        Tensor inner = gradient.detach().clone().requires_grad_();
        inner.register_hook([&](const Tensor&) { note("inner hook"); });
        inner.square().sum().backward();
        Tensor on_cpu = torch::ones({2}).requires_grad_();
        on_cpu.register_hook([&](const Tensor&) { note("CPU hook"); });
        on_cpu.sum().backward();
      });
      hidden.sum().backward();
      weight = weight.detach().clone().requires_grad_();
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(problems[rank], "") << "rank " << rank;
    EXPECT_EQ(num_calls[rank], 5 * 4);
  }
}

TEST(BackwardPass, PassesErrorsOfHooksOn) {
  on_device([](c10::Device device) {
    Tensor x = torch::ones({4}, device).requires_grad_();
    const Tensor y = x * 2;
    y.register_hook([](const Tensor&) { TORCH_CHECK(false, "this hook fails"); });
    EXPECT_THAT(message_of([&] { y.sum().backward(); }), HasSubstr("this hook fails"));
    (x * 3).sum().backward();
    EXPECT_EQ(x.grad().sum().item<float>(), 12);
  });
}

}  // namespace
}  // namespace accelerate
