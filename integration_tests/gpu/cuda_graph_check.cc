// Built where LibTorch has CUDA, whose headers say so.
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "accelerate/accelerate.h"
#include "integration_tests/gpu/checks.h"

#if defined(USE_C10D_NCCL) && __has_include(<ATen/cuda/CUDAGraph.h>)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#define ACCELERATE_HAS_CUDA_GRAPHS 1
#endif

namespace accelerate::device_checks {

#ifdef ACCELERATE_HAS_CUDA_GRAPHS

namespace {

constexpr int64_t kIn = 32;
constexpr int kSteps = 10;
constexpr int kWarmUp = 3;  // what a first step makes, gradients above all, is not captured

// The weights after kWarmUp + kSteps steps through prepare() and backward(), the last kSteps of
// them replayed or not.
at::Tensor weights_after(bool captured) {
  torch::manual_seed(1);
  Accelerator accelerator;
  torch::nn::Linear net(kIn, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto [model_, optimizer_] = accelerator.prepare(net, sgd);
  auto &model = model_;
  auto &optimizer = optimizer_;
  const at::Tensor x = at::randn({64, kIn}).to(accelerator.device());
  const at::Tensor y = x.sum(1, /*keepdim=*/true);
  auto step = [&] {
    optimizer.zero_grad(/*set_to_none=*/false);
    accelerator.backward(torch::nn::functional::mse_loss(model(x), y));
    optimizer.step();
  };
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  c10::cuda::CUDAStreamGuard guard(stream);
  for (int i = 0; i < kWarmUp; ++i) step();
  if (captured) {
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    step();
    graph.capture_end();
    for (int i = 0; i < kSteps; ++i) graph.replay();
    stream.synchronize();
  } else {
    for (int i = 0; i < kSteps; ++i) step();
  }
  return net->weight.detach().cpu();
}

}  // namespace

void check_cuda_graph() {
  const at::Tensor replayed = weights_after(true), plain = weights_after(false);
  expect(at::allclose(replayed, plain, 1e-5, 1e-6), "a replayed step trains otherwise");
}

#else

void check_cuda_graph() { expect(false, "built without CUDA's headers"); }

#endif

}  // namespace accelerate::device_checks
