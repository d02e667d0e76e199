// The same on two processes, over Gloo.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "integration_tests/script/convnet.h"

namespace accelerate::script_tests {
namespace {

using Twins = std::pair<torch::jit::Module, Convnet>;

Twins scripted_net() {
  set_seed(3);
  const Convnet net;
  return {script_of(net), net};
}

// Both of them get the same training on two processes.
void expect_alike(const std::string& name, const std::function<Twins()>& make_twins) {
  const std::string folder = ::testing::TempDir() + name + "_on_two_processes/";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  debug_launch([&] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    auto [script, net] = make_twins();
    const at::Tensor before = net->conv->weight.detach().clone();
    train(accelerator, net, net->parameters());
    accelerator.free_memory();
    train(accelerator, script, parameters_of(script));
    double difference = 0;
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      difference = std::max(
          difference, (net->parameters()[i] - parameters_of(script)[i]).abs().max().item<double>());
    }
    const bool is_trained = !torch::equal(net->conv->weight, before);
    std::ofstream(folder + std::to_string(accelerator.process_index()))
        << accelerator.num_processes() << (is_trained && difference <= 1e-6 ? " alike" : " not ")
        << (difference <= 1e-6 ? "" : std::to_string(difference));
  });
  for (const char* rank : {"0", "1"}) {
    std::ifstream file(folder + rank);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "2 alike") << rank;
  }
}

TEST(ScriptModule, TrainsLikeItsTwinOnTwoProcesses) { expect_alike("script", scripted_net); }

TEST(ScriptModule, ATraceTrainsLikeItsTwinOnTwoProcesses) { expect_alike("trace", traced_net); }

}  // namespace
}  // namespace accelerate::script_tests
