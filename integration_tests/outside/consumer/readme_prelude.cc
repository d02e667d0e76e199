// The model and the data that README.md leaves to its reader, before the loop that stands there.
#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include "accelerate/accelerate.h"

struct NetImpl : torch::nn::Module {
  NetImpl() {
    const accelerate::Topology& topology = accelerate::Runtime::current().topology();
    char text[80];
    std::snprintf(text, sizeof(text), "rank %d of %d\n", topology.rank, topology.world_size);
    accelerate::Runtime::current().write_console(accelerate::ConsoleStream::kOut, text);
    register_module("line", line);
  }
  torch::Tensor forward(torch::Tensor x) { return torch::log_softmax(line(x), 1); }
  torch::nn::Linear line{4, 3};
};
TORCH_MODULE(Net);

inline const torch::Tensor images = torch::arange(2048, torch::kFloat).view({512, 4}) / 2048;
inline const torch::Tensor labels = torch::arange(512) % 3;
