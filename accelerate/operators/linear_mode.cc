#include "accelerate/operators/linear_mode.h"

#include <utility>

#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <torch/library.h>

namespace accelerate {
namespace {

// No backend and no other library uses this key, and PyTorch gives it no meaning of its own.
constexpr c10::DispatchKey kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKeySet kBelowMode(c10::DispatchKeySet::FULL_AFTER, kMode);

thread_local LinearHandlers handlers;

std::optional<at::Tensor> ask(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& bias) {
  for (auto handler = handlers.rbegin(); handler != handlers.rend(); ++handler) {
    if (auto output = (*handler)->linear(input, weight, bias)) return output;
  }
  return std::nullopt;
}

// What `matrix` is the transpose of; undefined where it is not the plain transpose of a matrix.
at::Tensor transposed_of(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || !matrix.is_view()) return {};
  const at::Tensor base(matrix._base());
  const bool is_transpose = base.dim() == 2 && base.size(0) == matrix.size(1) &&
                            base.size(1) == matrix.size(0) && base.stride(0) == matrix.stride(1) &&
                            base.stride(1) == matrix.stride(0) &&
                            base.storage_offset() == matrix.storage_offset() &&
                            base.scalar_type() == matrix.scalar_type();
  return is_transpose ? base : at::Tensor();
}

at::Tensor linear(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  if (auto output = ask(input, weight, bias.value_or(at::Tensor()))) return *output;
  return at::_ops::linear::redispatch(keys & kBelowMode, input, weight, bias);
}

at::Tensor matmul(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& other) {
  if (const at::Tensor weight = transposed_of(other); weight.defined()) {
    if (auto output = ask(input, weight, {})) return *output;
  }
  return at::_ops::matmul::redispatch(keys & kBelowMode, input, other);
}

at::Tensor addmm(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& input,
                 const at::Tensor& other, const at::Scalar& beta, const at::Scalar& alpha) {
  const bool is_layer = self.dim() == 1 && beta.equal(1) && alpha.equal(1);
  if (const at::Tensor weight = transposed_of(other); is_layer && weight.defined()) {
    if (auto output = ask(input, weight, self)) return *output;
  }
  return at::_ops::addmm::redispatch(keys & kBelowMode, self, input, other, beta, alpha);
}

}  // namespace

const LinearHandlers& current_linear_handlers() { return handlers; }

LinearModeScope::LinearModeScope(std::shared_ptr<LinearHandler> handler) : previous_(handlers) {
  if (!handler) return;
  handlers.push_back(std::move(handler));
  include_.emplace(kMode);
}

LinearModeScope::LinearModeScope(LinearHandlers installed)
    : previous_(std::exchange(handlers, std::move(installed))) {
  if (handlers.empty()) {
    exclude_.emplace(kMode);
  } else {
    include_.emplace(kMode);
  }
}

LinearModeScope::~LinearModeScope() { handlers = std::move(previous_); }

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("linear", &linear);
  library.impl("matmul", &matmul);
  library.impl("addmm", &addmm);
}

}  // namespace accelerate
