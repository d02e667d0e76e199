#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "simulator/device/op_info.h"

namespace accelerate::simulator {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

c10::IntArrayRef sizes(const c10::IValue& argument) { return argument.toTensor().sizes(); }

double product(c10::IntArrayRef extents) {
  double result = 1;
  for (const int64_t extent : extents) result *= static_cast<double>(extent);
  return result;
}

// Complex products take four real ones.
double scale(const c10::IValue& argument) { return argument.toTensor().is_complex() ? 4 : 1; }

// [.., n, k] x [.., k, m] at arguments `a` and `b`.
template <int a, int b>
double matrix_product(Arguments arguments) {
  const c10::IntArrayRef right = sizes(arguments[b]);
  const double columns = right.size() < 2 ? 1 : static_cast<double>(right.back());
  return 2 * scale(arguments[a]) * product(sizes(arguments[a])) * columns;
}

double outer_product(Arguments arguments) {
  return 2 * scale(arguments[1]) * product(sizes(arguments[1])) * product(sizes(arguments[2]));
}

// Each output element takes one multiply-add per input channel of its group and kernel element.
// Weights are [out, in / groups, kernel...], for transposed convolutions [in, out / groups,
// kernel...].
double convolution(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const int64_t spatial = weight.dim() - 2;
  const bool transposed = arguments[6].toBool();
  const double batch = input.dim() == weight.dim() ? static_cast<double>(input.size(0)) : 1;
  if (transposed) {
    double positions = batch;
    for (int64_t d = 0; d < spatial; ++d) {
      positions *= static_cast<double>(input.size(input.dim() - spatial + d));
    }
    return 2 * scale(arguments[0]) * positions * product(weight.sizes());
  }
  const auto stride = arguments[3].toIntVector();
  const auto padding = arguments[4].toIntVector();
  const auto dilation = arguments[5].toIntVector();
  auto of = [](const std::vector<int64_t>& values, int64_t d) {
    return values[values.size() == 1 ? 0 : d];
  };
  double positions = batch;
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t extent = input.size(input.dim() - spatial + d) + 2 * of(padding, d) -
                           of(dilation, d) * (weight.size(2 + d) - 1);
    positions *= static_cast<double>((extent - 1) / of(stride, d) + 1);
  }
  return 2 * scale(arguments[0]) * positions * product(weight.sizes());
}

// One product for the inputs' gradient, one for the weights', each as large as the forward one.
double convolution_backward(Arguments arguments) {
  const at::Tensor& weight = arguments[2].toTensor();
  const bool transposed = arguments[7].toBool();
  const c10::IntArrayRef positions_of = sizes(arguments[transposed ? 1 : 0]);
  double positions = static_cast<double>(positions_of[0]);
  for (size_t d = 2; d < positions_of.size(); ++d)
    positions *= static_cast<double>(positions_of[d]);
  const auto mask = arguments[10].toBoolList();
  const int products = static_cast<int>(mask.get(0)) + static_cast<int>(mask.get(1));
  return products * 2 * scale(arguments[1]) * positions * product(weight.sizes());
}

// Scores and their weighted sum, for queries [.., L, E], keys [.., S, E], values [.., S, V].
double attention_at(Arguments arguments, size_t query) {
  const double queries = product(sizes(arguments[query]));
  const c10::IntArrayRef keys = sizes(arguments[query + 1]);
  const c10::IntArrayRef values = sizes(arguments[query + 2]);
  const auto length = static_cast<double>(keys[keys.size() - 2]);
  const double depth = static_cast<double>(keys.back());
  return 2 * queries * length * (1 + static_cast<double>(values.back()) / depth);
}

double attention(Arguments arguments) { return attention_at(arguments, 0); }

// Flash attention computes the scores again: five products instead of two.
double attention_backward(Arguments arguments) { return 2.5 * attention_at(arguments, 1); }

// Input [T, B, I] or [B, T, I], or packed [rows, I]; every weight matrix meets every row once.
double recurrent(Arguments arguments) {
  const c10::IntArrayRef input = sizes(arguments[0]);
  const double rows = product(input) / static_cast<double>(input.back());
  double weights = 0;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensorList()) continue;
    for (const at::Tensor& weight : argument.toTensorVector()) {
      if (weight.dim() == 2) weights += static_cast<double>(weight.numel());
    }
  }
  return 2 * rows * weights;
}

// input, state(s), w_ih, w_hh, ...
double recurrent_cell(Arguments arguments) {
  const double rows = static_cast<double>(sizes(arguments[0])[0]);
  double weights = 0;
  for (size_t i = 2; i < 4; ++i) weights += product(sizes(arguments[i]));
  return 2 * rows * weights;
}

}  // namespace

FlopFormula flop_formula(const std::string& name) {
  static const auto& formulas = *new std::unordered_map<std::string, FlopFormula>{
      {"aten::mm", matrix_product<0, 1>},
      {"aten::bmm", matrix_product<0, 1>},
      {"aten::mv", matrix_product<0, 1>},
      {"aten::dot", matrix_product<0, 1>},
      {"aten::vdot", matrix_product<0, 1>},
      {"aten::_int_mm", matrix_product<0, 1>},
      {"aten::_scaled_mm", matrix_product<0, 1>},
      {"aten::addmm", matrix_product<1, 2>},
      {"aten::addmm_", matrix_product<1, 2>},
      {"aten::_addmm_activation", matrix_product<1, 2>},
      {"aten::addmv", matrix_product<1, 2>},
      {"aten::addmv_", matrix_product<1, 2>},
      {"aten::baddbmm", matrix_product<1, 2>},
      {"aten::baddbmm_", matrix_product<1, 2>},
      {"aten::addbmm", matrix_product<1, 2>},
      {"aten::addbmm_", matrix_product<1, 2>},
      {"aten::addr", outer_product},
      {"aten::addr_", outer_product},
      {"aten::convolution", convolution},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"aten::lstm", recurrent},
      {"aten::gru", recurrent},
      {"aten::rnn_tanh", recurrent},
      {"aten::rnn_relu", recurrent},
      {"aten::lstm_cell", recurrent_cell},
      {"aten::gru_cell", recurrent_cell},
  };
  auto found = formulas.find(name);
  return found == formulas.end() ? nullptr : found->second;
}

MathType math_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble: return MathType::kFp64;
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf: return MathType::kFp16;
    case c10::ScalarType::BFloat16: return MathType::kBf16;
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::QInt8:
    case c10::ScalarType::QUInt8: return MathType::kInt8;
    default: break;
  }
  return c10::isFloat8Type(dtype) ? MathType::kFp8 : MathType::kFp32;
}

}  // namespace accelerate::simulator
