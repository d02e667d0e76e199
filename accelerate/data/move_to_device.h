/// A batch on another device.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

#include "accelerate/util/tree.h"

namespace accelerate {

/// The tree with its tensors on `device`; those that are there already are the same ones. With
/// `non_blocking` the host does not wait for copies from page-locked memory.
template <typename Batch>
Batch move_to_device(Batch batch, c10::Device device, bool non_blocking = false) {
  return tree_map(std::move(batch), [=](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == device) return tensor;
    return tensor.to(at::TensorOptions().device(device), non_blocking);
  });
}

}  // namespace accelerate
