#include "simulator/cluster/libtorch_state.h"

namespace accelerate::simulator {
namespace {

at::CPUGeneratorImpl& default_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

}  // namespace

LibtorchState::LibtorchState()
    : engine_(at::CPUGeneratorImpl().engine()),
      default_dtype_(caffe2::TypeMeta::fromScalarType(at::kFloat)) {}

void LibtorchState::capture() {
  at::CPUGeneratorImpl& generator = default_generator();
  engine_ = generator.engine();
  next_float_normal_ = generator.next_float_normal_sample();
  next_double_normal_ = generator.next_double_normal_sample();
  default_dtype_ = c10::get_default_dtype();
  const at::Context& context = at::globalContext();
  deterministic_ = context.deterministicAlgorithms();
  deterministic_warn_only_ = context.deterministicAlgorithmsWarnOnly();
  fill_uninitialized_ = context.deterministicFillUninitializedMemory();
  deterministic_cudnn_ = context.deterministicCuDNN();
  benchmark_cudnn_ = context.benchmarkCuDNN();
  matmul_precision_ = context.float32MatmulPrecision();
}

void LibtorchState::install() const {
  at::CPUGeneratorImpl& generator = default_generator();
  generator.set_engine(engine_);
  generator.set_next_float_normal_sample(next_float_normal_);
  generator.set_next_double_normal_sample(next_double_normal_);
  c10::set_default_dtype(default_dtype_);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic_, deterministic_warn_only_);
  context.setDeterministicFillUninitializedMemory(fill_uninitialized_);
  context.setDeterministicCuDNN(deterministic_cudnn_);
  context.setBenchmarkCuDNN(benchmark_cudnn_);
  context.setFloat32MatmulPrecision(matmul_precision_);
}

}  // namespace accelerate::simulator
