// A module of torch.jit and its twin in C++ train alike on simulated ranks, and its checkpoints are
// those of the twin. What it is refused says so in a sentence.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "integration_tests/script/convnet.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::script_tests {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kFolder[] = "/sim/x";

Convnet seeded_net() {
  set_seed(3);
  return Convnet();
}

void expect_near(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE((ours[i] - theirs[i]).abs().max().item<double>(), 1e-6) << "parameter " << i;
  }
}

TOPOLOGY_SUITE(ScriptModule, .also = {"2x4"}, .hardware = simulator::Hardware::kNone);

TEST_P(ScriptModule, TrainsLikeItsTwin) {
  make_cluster({.seed = 5}).run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    Convnet net = seeded_net();
    torch::jit::Module script = script_of(net);
    const std::vector<at::Tensor> before = {net->conv->weight.detach().clone()};
    train(accelerator, net, net->parameters());
    EXPECT_FALSE(torch::equal(net->conv->weight, before[0]));
    accelerator.free_memory();
    train(accelerator, script, parameters_of(script));
    expect_near(parameters_of(script), net->parameters());
  });
}

// As people have it who come from Python.
TEST_P(ScriptModule, ATraceTrainsLikeItsTwin) {
  make_cluster({.seed = 5}).run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    auto [script, net] = traced_net();
    expect_near(parameters_of(script), net->parameters());
    const at::Tensor before = net->conv->weight.detach().clone();
    train(accelerator, net, net->parameters());
    EXPECT_FALSE(torch::equal(net->conv->weight, before));
    accelerator.free_memory();
    train(accelerator, script, parameters_of(script));
    expect_near(parameters_of(script), net->parameters());
  });
}

TEST_P(ScriptModule, ItsCheckpointsAreThoseOfItsTwin) {
  const auto disk = std::make_shared<SimDisk>();
  std::vector<at::Tensor> saved;
  make_cluster({.seed = 5, .disk = disk}).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::jit::Module script = script_of(seeded_net());
    train(accelerator, script, parameters_of(script), [&] { accelerator.save_state(kFolder); });
    if (rank.index() > 0) return;
    for (const at::Tensor& each : parameters_of(script)) saved.push_back(each.detach().clone());
  });
  make_cluster({.seed = 5, .disk = disk}).run_on_every_rank([&](Rank&) {
    Accelerator accelerator;
    Convnet net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto [images, labels] = samples(4);
    DataLoader data(make_tensor_dataset(images, labels), {.batch_size = 4});
    auto prepared = accelerator.prepare(net, sgd, data);
    accelerator.load_state(kFolder);
    expect_near(net->parameters(), saved);
  });
}

TEST_P(ScriptModule, IsPreparedOnce) {
  make_cluster({.seed = 5}).run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::jit::Module script = script_of(seeded_net());
    auto model = accelerator.prepare(script);
    torch::jit::Module handle = script;
    EXPECT_EQ(accelerator.prepare(handle).module(), model.module());
    EXPECT_EQ(accelerator.prepare_model(script).module(), model.module());
    EXPECT_TRUE(accelerator.unwrap_model(model)->script() == script);
  });
}

// What a rank of two says of preparing one.
std::string refusal(const std::function<AcceleratorOptions()>& options) {
  std::string text = "none";
  Cluster cluster("1x2");
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options());
    torch::jit::Module script = script_of(seeded_net());
    try {
      auto model = accelerator.prepare(script);
    } catch (const c10::ValueError& error) {
      if (rank.index() == 1) text = error.what_without_backtrace();
    }
  });
  return text;
}

TEST(RefusedScriptModule, SaysWhatItCannotDo) {
  constexpr char kBeginning[] = "a torch::jit::Module is one graph, so ";
  const auto fsdp = [] {
    return AcceleratorOptions{.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}};
  };
  EXPECT_THAT(refusal(fsdp), AllOf(HasSubstr(kBeginning), HasSubstr("FSDP and DeepSpeed")));
  const auto bf16 = [] { return AcceleratorOptions{.mixed_precision = PrecisionType::kBf16}; };
  EXPECT_THAT(refusal(bf16), AllOf(HasSubstr(kBeginning), HasSubstr("leave mixed_precision out")));
  const auto along = [](const ParallelismOptions& sizes) {
    return [sizes] { return AcceleratorOptions{.parallelism_config = ParallelismConfig(sizes)}; };
  };
  EXPECT_THAT(refusal(along({.tp_size = 2})),
              AllOf(HasSubstr(kBeginning), HasSubstr("tp cannot divide it")));
  const auto compiled = [] {
    return AcceleratorOptions{.dynamo_backend = DynamoBackend::kAotEager};
  };
  EXPECT_THAT(refusal(compiled), AllOf(HasSubstr(kBeginning), HasSubstr("dynamo_backend=no")));
  EXPECT_EQ(refusal([] { return AcceleratorOptions(); }), "none");
}

}  // namespace
}  // namespace accelerate::script_tests
