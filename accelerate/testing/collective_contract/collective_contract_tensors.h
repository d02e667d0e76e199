/// Fresh tensors for the collective contract, on the device that the running test's rank uses.
///
/// Threads: each has its own device; a rank's thread sets it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace accelerate::testing {

inline c10::Device& test_device() {
  thread_local c10::Device device(c10::kCPU);
  return device;
}

inline at::TensorOptions on_test_device(at::ScalarType dtype) {
  return at::TensorOptions(test_device()).dtype(dtype);
}

inline at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::zeros(shape, on_test_device(dtype));
}
inline at::Tensor ones(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::ones(shape, on_test_device(dtype));
}
inline at::Tensor full(at::IntArrayRef shape, const at::Scalar& value, at::ScalarType dtype) {
  return at::full(shape, value, on_test_device(dtype));
}
/// The result has the value's own dtype, as with at::full.
inline at::Tensor full(at::IntArrayRef shape, const at::Scalar& value) {
  return at::full(shape, value, at::TensorOptions(test_device()));
}
inline at::Tensor arange(const at::Scalar& end, at::ScalarType dtype) {
  return at::arange(end, on_test_device(dtype));
}

}  // namespace accelerate::testing
