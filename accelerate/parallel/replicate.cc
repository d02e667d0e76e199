#include "accelerate/parallel/replicate.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/parallel/replica_check.h"

namespace accelerate {
namespace {

// The peer's figure.
constexpr size_t kBroadcastBytes = size_t{250} << 20;

}  // namespace

void broadcast_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<at::Tensor>& tensors, int source) {
  at::NoGradGuard no_grad;
  if (!tensors.empty()) c10d::broadcast_coalesced(group, tensors, kBroadcastBytes, source);
}

void replicate(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
               const torch::nn::Module& module) {
  check_same_model(group, module);
  std::vector<at::Tensor> state = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) state.push_back(buffer);
  broadcast_tensors(group, state, 0);
}

}  // namespace accelerate
