// The same on two processes, over Gloo.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "integration_tests/script/convnet.h"

namespace accelerate::script_tests {
namespace {

TEST(ScriptModule, TrainsLikeItsTwinOnTwoProcesses) {
  const std::string folder = ::testing::TempDir() + "script_on_two_processes/";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  debug_launch([&] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    set_seed(3);
    Convnet net;
    torch::jit::Module script = script_of(net);
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

}  // namespace
}  // namespace accelerate::script_tests
