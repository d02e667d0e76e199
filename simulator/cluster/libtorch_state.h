/// What LibTorch keeps once per process although each rank of a real job has its own: the default
/// CPU generator, the default dtype, the flags for deterministic algorithms and matmul precision.
/// The cluster swaps it whenever the baton changes hands.
#pragma once

#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

namespace accelerate::simulator {

class LibtorchState {
 public:
  /// The state of a fresh process.
  LibtorchState();

  /// Reads LibTorch's present state into this object; writes this object's into LibTorch.
  void capture();
  void install() const;

 private:
  at::mt19937 engine_;
  std::optional<float> next_float_normal_;
  std::optional<double> next_double_normal_;
  caffe2::TypeMeta default_dtype_;
  bool deterministic_ = false;
  bool deterministic_warn_only_ = false;
  bool deterministic_cudnn_ = false;
  bool benchmark_cudnn_ = false;
  bool fill_uninitialized_ = true;
  at::Float32MatmulPrecision matmul_precision_ = at::Float32MatmulPrecision::HIGHEST;
};

}  // namespace accelerate::simulator
