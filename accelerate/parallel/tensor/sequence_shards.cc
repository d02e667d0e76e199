#include "accelerate/parallel/tensor/sequence_shards.h"

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/tensor_handler.h"

namespace accelerate {
namespace {

// Null outside of a forward pass of a model whose layers are divided.
const TensorHandler* current_layers() {
  for (const auto& handler : current_operator_handlers()) {
    const auto* const layers = dynamic_cast<const TensorHandler*>(handler.get());
    if (layers != nullptr) return layers;
  }
  return nullptr;
}

}  // namespace

at::Tensor shard_sequence(const at::Tensor& whole) {
  const TensorHandler* const layers = current_layers();
  return layers != nullptr ? layers->shard_sequence(whole) : whole;
}

at::Tensor whole_sequence(const at::Tensor& part) {
  const TensorHandler* const layers = current_layers();
  return layers != nullptr ? layers->whole_sequence(part) : part;
}

}  // namespace accelerate
