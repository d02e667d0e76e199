/// Whether a device computed what the CPU did, to the bit.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace accelerate::device_test {

/// What tells `actual` from `expected`, a CPU tensor; empty if nothing does. Compared are dtype,
/// layout, sizes, strides, lazy flags, whether they need gradients, and every element's bits, so
/// that NaNs equal themselves and zeros of different signs differ. Sparse tensors are compared by
/// their indices and values.
/// `device`: where `actual` has to be.
std::string difference(const at::Tensor& expected, const at::Tensor& actual, c10::Device device);

}  // namespace accelerate::device_test
