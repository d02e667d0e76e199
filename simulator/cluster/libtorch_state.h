/// What LibTorch keeps once per process, for ranks that share one.
///
/// Threads: the one that holds the baton.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include "simulator/device/generator.h"

namespace accelerate::simulator {

/// The state that LibTorch keeps once per process although each rank of a real job has its own: the
/// default CPU generator, the default dtype, the flags for deterministic algorithms and matmul
/// precision. The cluster exchanges it whenever the baton changes hands; of the generator, whose
/// state has kilobytes, it exchanges the object.
class LibtorchState {
 public:
  /// The state of a fresh process.
  LibtorchState()
      : generator_(new_cpu_generator()),
        default_dtype_(caffe2::TypeMeta::fromScalarType(at::kFloat)) {}

  /// Copies LibTorch's present state into this object.
  void capture() {
    generator_ = default_cpu_generator();
    default_dtype_ = c10::get_default_dtype();
    const at::Context& context = at::globalContext();
    deterministic_ = context.deterministicAlgorithms();
    deterministic_warn_only_ = context.deterministicAlgorithmsWarnOnly();
    fill_uninitialized_ = context.deterministicFillUninitializedMemory();
    deterministic_cudnn_ = context.deterministicCuDNN();
    benchmark_cudnn_ = context.benchmarkCuDNN();
    matmul_precision_ = context.float32MatmulPrecision();
  }

  /// Copies this object's state into LibTorch.
  void install() const {
    default_cpu_generator() = generator_;
    c10::set_default_dtype(default_dtype_);
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(deterministic_, deterministic_warn_only_);
    context.setDeterministicFillUninitializedMemory(fill_uninitialized_);
    context.setDeterministicCuDNN(deterministic_cudnn_);
    context.setBenchmarkCuDNN(benchmark_cudnn_);
    // By its name: all releases of LibTorch take that.
    constexpr const char* kNames[] = {"highest", "high", "medium"};
    context.setFloat32MatmulPrecision(kNames[static_cast<int>(matmul_precision_)]);
  }

 private:
  at::Generator generator_;
  caffe2::TypeMeta default_dtype_;
  bool deterministic_ = false;
  bool deterministic_warn_only_ = false;
  bool deterministic_cudnn_ = false;
  bool benchmark_cudnn_ = false;
  bool fill_uninitialized_ = true;
  at::Float32MatmulPrecision matmul_precision_ = at::Float32MatmulPrecision::HIGHEST;
};

}  // namespace accelerate::simulator
