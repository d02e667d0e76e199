/// Weights of a module that are kept quantised: values of them are made for each operator, and a
/// Linear layer multiplies with what is kept.
///
/// The module is not changed. Its weight shows the shape and the dtype of its values, on the device
/// of what is kept, and does not require gradients; see value_at_use.h. In the state dict it is as
/// bitsandbytes has it (bnb_layout.h).
///
/// A layer's input is multiplied
///   in 8 bits  as integers (int8.h), inside of a scope with QuantizedProducts; elsewhere with the
///              weight's values,
///   in 4 bits  in compute_dtype, with the weight's values; inside of such a scope inputs of other
///              dtypes are converted to it, and outputs back.
///              There, up to four rows of input on a CPU are multiplied by the codes as they are
///              read (four_bit.h), unless gradients are wanted.
/// Gradients of inputs are computed with the values. Writing to a weight quantises it again.
///
/// Errors:  c10::ValueError naming the weight: for values that cannot be quantised, for one that is
///          in memory only while it is used already, and, of the operator that uses it, for one
///          whose values were never loaded.
/// Local. Threads: any, as for values made at use.
/// Mirrors: bitsandbytes nn/modules.py, Linear8bitLt and Linear4bit, in purpose.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/quantization/bnb_config.h"
#include "accelerate/quantization/bnb_layout.h"

namespace accelerate {

/// What is kept of the weight from now on, as the resolved configuration says. On "meta" it is
/// nothing yet: codes, or values, are loaded by load_checkpoint_in_model.
/// One that is kept so already stays as it is; in another way it is an error.
/// \pre The name ends with "weight". Shapes: weight [out, in].
void quantize_weight(const at::Tensor& weight, const std::string& name,
                     const BnbQuantizationConfig& config);

/// The errors of quantize_weight, but those of memory; nothing changes. Memory: a copy of the
/// weight in the dtype of its values.
void check_quantizable_weight(const at::Tensor& weight, const std::string& name,
                              const BnbQuantizationConfig& config);

/// A weight in 4 bits that has no values yet becomes as a checkpoint's text describes it: of that
/// type, with those blocks, with double quantisation or without. Nothing happens to others.
/// Errors: c10::ValueError naming the weight, and the text's shape and block size, for another
/// shape;
///         for blocks that there are not.
void match_stored_layout(const at::Tensor& weight, const std::string& name,
                         const FourBitState& state);

enum class QuantizedBits { k4 = 4, k8 = 8 };

/// Absent for a weight that is not quantised.
std::optional<QuantizedBits> quantized_bits(const at::Tensor& weight);

/// Errors: c10::ValueError if what is kept of it, as it was loaded, does not fit together. Nothing
///         happens for a weight that is not quantised.
void check_quantized(const at::Tensor& weight, const std::string& name);

/// Computes the products with quantised weights.
class QuantizedProducts final : public LinearHandler {
 public:
  explicit QuantizedProducts(BnbQuantizationConfig config) : config_(std::move(config)) {}

  const BnbQuantizationConfig& config() const { return config_; }

  std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias) override;

 private:
  const BnbQuantizationConfig config_;
};

}  // namespace accelerate
