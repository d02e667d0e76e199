#include "accelerate/quantization/models/quantized_weight.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/custom_function.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/precision/plain_operators.h"
#include "accelerate/quantization/bnb_layout.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/int8.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {

using internal::PlainOperators;

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor empty_meta(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype));
}

class QuantizedWeight : public ValueMaker {
 public:
  explicit QuantizedWeight(at::ScalarType dtype) : dtype_(dtype) {}

  void store(const Tensor& values) final {
    const std::vector<Tensor> parts = encode(values.to(at::kCPU));
    const std::vector<KeptTensor> own = kept("weight");
    for (size_t i = 0; i < own.size(); ++i) own[i].tensor.copy_(parts[i]);
    changed();
  }
  bool keeps_elements() const final { return false; }

  virtual QuantizedBits bits() const = 0;
  // Whether it is kept as the configuration says.
  virtual bool is_as(const BnbQuantizationConfig& config) const = 0;
  virtual Tensor product(const Tensor& input, const Tensor& weight, const Tensor& bias,
                         double threshold) const = 0;
  // What is kept has other values, which its tensors' versions do not show.
  virtual void changed() {}
  // Throws if what was loaded does not fit together.
  virtual void check(const std::string& name) const = 0;

 protected:
  at::ScalarType dtype() const { return dtype_; }
  static void check_finite(const std::string& name, const Tensor& scales) {
    if (scales.is_meta() || storage_owner(scales) != nullptr) return;
    TORCH_CHECK_VALUE(at::isfinite(scales).all().item<bool>(), "the quantised weight \"", name,
                      "\": a scale is infinite or NaN");
  }
  static void check_values(const Tensor& data) {
    TORCH_CHECK_VALUE(!data.is_meta(),
                      "a quantised weight is used that has no values (they are on the meta device):"
                      " load a checkpoint into the model");
  }

 private:
  const at::ScalarType dtype_;  // the values'
};

// Whether it is the text with the rest of a weight in 4 bits.
bool is_state(const std::string& key) { return key.find(".quant_state.") != std::string::npos; }

// The text has a length that does not depend on values: blanks stand behind it. So whatever is kept
// of a weight has the same sizes on all ranks and in all files.
TensorsByName four_bit_parts(const std::string& name, const FourBitTensor& weight) {
  constexpr int64_t kLongestNumber = 24;
  TensorsByName tensors = to_bnb(name, weight);
  if (!weight.nested) return tensors;
  FourBitTensor plain = weight;
  plain.nested->offset = 0;
  for (const auto& [key, tensor] : to_bnb(name, plain)) {
    if (!is_state(key)) continue;
    const Tensor padded = at::full({tensor.numel() + kLongestNumber}, ' ', at::kByte);
    const Tensor& text = tensors.at(key);
    padded.narrow(0, 0, text.numel()).copy_(text);
    tensors[key] = padded;
  }
  return tensors;
}

// In the order of the state dict, the values first.
std::vector<KeptTensor> in_order(const std::string& name, TensorsByName tensors) {
  std::vector<KeptTensor> kept = {{name, tensors.at(name)}};
  for (auto& [key, tensor] : tensors) {
    if (key == name) continue;
    kept.push_back(
        {.name = key, .tensor = std::move(tensor), .is_values = false, .is_text = is_state(key)});
  }
  return kept;
}

TensorsByName by_name(std::vector<KeptTensor> kept) {
  TensorsByName tensors;
  for (KeptTensor& each : kept) tensors.emplace(each.name, std::move(each.tensor));
  return tensors;
}

std::vector<Tensor> tensors_of(std::vector<KeptTensor> kept) {
  std::vector<Tensor> tensors;
  for (KeptTensor& each : kept) tensors.push_back(std::move(each.tensor));
  return tensors;
}

// ---- 8 bits.

class Int8Kept final : public QuantizedWeight {
 public:
  Int8Kept(Int8Weight weight, at::ScalarType dtype)
      : QuantizedWeight(dtype),
        weight_(std::move(weight)),
        format_(to_bnb("weight", weight_)
                    .at("weight_format")
                    .to(weight_.data.is_meta() ? c10::Device(at::kCPU) : weight_.data.device())) {
    if (!weight_.data.is_meta()) tag_memory(weight_.data, MemoryKind::kParameter);
  }

  Tensor make() override {
    check_values(weight_.data);
    return weight_.dequantize(dtype());
  }
  std::vector<KeptTensor> kept(const std::string& name) const override {
    TensorsByName tensors = to_bnb(name, weight_);
    for (auto& [key, tensor] : tensors) {
      if (key.ends_with("weight_format")) tensor = format_;
    }
    return in_order(name, std::move(tensors));
  }
  std::vector<Tensor> encode(const Tensor& values) const override {
    return tensors_of(in_order("weight", to_bnb("weight", quantize_rowwise(values))));
  }
  std::unique_ptr<ValueMaker> on_device(c10::Device device) const override {
    return std::make_unique<Int8Kept>(weight_.to(device), dtype());
  }

  QuantizedBits bits() const override { return QuantizedBits::k8; }
  bool is_as(const BnbQuantizationConfig& config) const override {
    return config.load_in_8bit && config.remaining_dtype() == dtype();
  }
  Tensor product(const Tensor& input, const Tensor& weight, const Tensor& bias,
                 double threshold) const override;

  const Int8Weight& weight() const { return weight_; }
  void check(const std::string& name) const override {
    int8_from_bnb(name, by_name(kept(name)));
    check_finite(name, weight_.scb);
  }

 private:
  const Int8Weight weight_;
  const Tensor format_;
};

struct Int8Product : torch::autograd::Function<Int8Product> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, double threshold) {
    const PlainOperators plain;
    context->save_for_backward({weight});
    if (bias) context->saved_data["bias"] = static_cast<int64_t>(bias->scalar_type());
    const auto* const kept = dynamic_cast<const Int8Kept*>(find_maker(weight));
    const Tensor output = int8_linear(input, kept->weight(), bias.value_or(Tensor()), threshold);
    // Not a view, which autograd would keep callers from writing to: LibTorch's layers add biases.
    return at::_unsafe_view(output, output.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "products with weights in 8 bits have no second derivative");
    const PlainOperators plain;
    const Tensor& gradient = gradients[0];
    const Tensor weight = context->get_saved_variables()[0];
    Tensor of_input, of_bias;
    if (context->needs_input_grad(0)) {
      of_input = at::matmul(gradient, weight.to(gradient.scalar_type()));
    }
    const auto bias = context->saved_data.find("bias");
    if (bias != context->saved_data.end() && context->needs_input_grad(2)) {
      of_bias = gradient.reshape({-1, gradient.size(-1)})
                    .sum(0)
                    .to(static_cast<at::ScalarType>(bias->second.toInt()));
    }
    return {of_input, Tensor(), of_bias, Tensor()};
  }
};

Tensor Int8Kept::product(const Tensor& input, const Tensor& weight, const Tensor& bias,
                         double threshold) const {
  check_values(weight_.data);
  return Int8Product::apply(input, weight, bias.defined() ? std::optional(bias) : std::nullopt,
                            threshold);
}

// ---- 4 bits.

class FourBitKept final : public QuantizedWeight {
 public:
  FourBitKept(FourBitTensor weight, at::ScalarType dtype)
      : QuantizedWeight(dtype), weight_(std::move(weight)) {
    TensorsByName tensors = four_bit_parts("weight", weight_);
    for (auto& [key, tensor] : tensors) {
      if (!is_state(key)) continue;
      state_ = weight_.data.is_meta() ? std::move(tensor) : tensor.to(weight_.data.device());
    }
    seen_ = Seen(state_);
    if (!weight_.data.is_meta()) tag_memory(weight_.data, MemoryKind::kParameter);
  }

  Tensor make() override {
    check_values(weight_.data);
    const FourBitTensor weight = current();
    // Memory that comes and goes is used by operators alone.
    return storage_owner(weight.data) != nullptr
               ? internal::dequantize_by_operators(weight, dtype())
               : weight.dequantize(dtype());
  }
  std::vector<KeptTensor> kept(const std::string& name) const override {
    TensorsByName tensors = to_bnb(name, weight_);
    for (auto& [key, tensor] : tensors) {
      if (is_state(key)) tensor = state_;
    }
    return in_order(name, std::move(tensors));
  }
  std::vector<Tensor> encode(const Tensor& values) const override {
    const FourBitOptions options = {.type = weight_.type,
                                    .use_double_quant = weight_.nested.has_value(),
                                    .block_size = weight_.block_size,
                                    .nested_block_size = nested_block_size()};
    return tensors_of(in_order("weight", four_bit_parts("weight", quantize_4bit(values, options))));
  }
  std::unique_ptr<ValueMaker> on_device(c10::Device device) const override {
    return std::make_unique<FourBitKept>(current().to(device), dtype());
  }

  void changed() override {
    const absl::MutexLock lock(&mutex_);
    seen_ = Seen();
  }
  bool has_values() const { return !weight_.data.is_meta(); }
  QuantizedBits bits() const override { return QuantizedBits::k4; }
  bool is_as(const BnbQuantizationConfig& config) const override {
    return config.load_in_4bit && config.quant_type() == weight_.type &&
           config.bnb_4bit_use_double_quant == weight_.nested.has_value() &&
           config.compute_dtype() == dtype();
  }
  Tensor product(const Tensor& input, const Tensor& weight, const Tensor& bias,
                 double /*threshold*/) const override {
    const PlainOperators plain;
    const Tensor converted = input.to(dtype());
    const Tensor added = bias.defined() ? bias.to(dtype()) : Tensor();
    // Few rows, as in generation: making all values would take longer than the product.
    const bool is_packed = is_read_packed(input, bias);
    return (is_packed ? four_bit_linear(converted, current(), added)
                      : at::linear(converted, weight, added))
        .to(input.scalar_type());
  }
  void check(const std::string& name) const override {
    const FourBitTensor read = read_state(name);
    TORCH_CHECK_VALUE(!read.nested || std::isfinite(read.nested->offset), "the quantised weight \"",
                      name, "\": its nested_offset is not finite");
    check_finite(name, weight_.nested ? weight_.nested->differences.absmax : weight_.absmax);
  }

 private:
  int64_t nested_block_size() const {
    return weight_.nested ? weight_.nested->differences.block_size : kNestedBlock;
  }

  // Whether the text of the state may have changed.
  struct Seen {
    Seen() = default;
    explicit Seen(const Tensor& state)
        : storage(state.storage().getWeakStorageImpl()),
          version(state.is_inference() ? -1 : state._version()) {}
    // Nothing counts the changes of an inference tensor.
    bool is_current(const Seen& now) const {
      return now.version >= 0 && version == now.version && storage == now.storage;
    }

    // The weak pointer keeps the address from being used for a new storage.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    int64_t version = -1;
  };

  // Not where gradients are wanted, nor of memory that comes and goes.
  bool is_read_packed(const Tensor& input, const Tensor& bias) const {
    const bool has_gradients = at::GradMode::is_enabled() &&
                               (input.requires_grad() || (bias.defined() && bias.requires_grad()));
    return !has_gradients && storage_owner(weight_.data) == nullptr &&
           internal::is_fused(weight_, input.numel() / std::max<int64_t>(input.size(-1), 1));
  }

  // Parses the stored state, which load_state may have replaced.
  FourBitTensor read_state(const std::string& name) const {
    TensorsByName tensors = by_name(kept(name));
    for (auto& [key, tensor] : tensors) {
      if (is_state(key)) tensor = tensor.clone();  // an operator, which brings it
    }
    FourBitTensor read = four_bit_from_bnb(name, tensors);
    TORCH_CHECK_VALUE(read.sizes == weight_.sizes && read.block_size == weight_.block_size, "\"",
                      name, "\" was quantised with the shape ", at::IntArrayRef(read.sizes),
                      " in blocks of ", read.block_size, ", and the model has ",
                      at::IntArrayRef(weight_.sizes), " in blocks of ", weight_.block_size);
    TORCH_CHECK_VALUE(!read.nested || read.nested->differences.block_size == nested_block_size(),
                      "\"", name, "\" has its scales in blocks of ",
                      read.nested->differences.block_size, ", and the model has them in blocks of ",
                      nested_block_size());
    return read;
  }

  FourBitTensor current() const {
    const absl::MutexLock lock(&mutex_);
    const Seen now(state_);
    if (!seen_.is_current(now)) {
      const FourBitTensor read = read_state("weight");
      if (weight_.nested) offset_ = read.nested->offset;
      seen_ = now;
    }
    FourBitTensor weight = weight_;
    if (weight.nested && offset_) weight.nested->offset = *offset_;
    return weight;
  }

  const FourBitTensor weight_;
  Tensor state_;
  mutable absl::Mutex mutex_;
  mutable Seen seen_ ABSL_GUARDED_BY(mutex_);
  mutable std::optional<float> offset_ ABSL_GUARDED_BY(mutex_);  // as the text has it
};

// The layout that a weight will have once it is quantised; the weight has no values yet.
FourBitTensor without_values(const Tensor& weight, at::ScalarType dtype,
                             const FourBitOptions& options) {
  // The numbers do not depend on values.
  FourBitTensor result = quantize_4bit(at::empty({0}, at::TensorOptions(dtype)), options);
  const int64_t count = weight.numel();
  const int64_t blocks = internal::blocks_of(count, options.block_size);
  result.sizes = weight.sizes().vec();
  result.data = empty_meta({(count + 1) / 2, 1}, at::kByte);
  if (!result.nested) {
    result.absmax = empty_meta({blocks}, at::kFloat);
    return result;
  }
  result.nested->offset = 0;
  BlockwiseTensor& inner = result.nested->differences;
  inner.codes = empty_meta({blocks}, at::kByte);
  inner.absmax = empty_meta({internal::blocks_of(blocks, inner.block_size)}, at::kFloat);
  return result;
}

const QuantizedWeight* find_quantized(const Tensor& weight) {
  return dynamic_cast<const QuantizedWeight*>(find_maker(weight));
}

std::unique_ptr<ValueMaker> unchecked_maker_for(const Tensor& weight,
                                                const BnbQuantizationConfig& config) {
  if (config.load_in_8bit) {
    const at::ScalarType dtype = config.remaining_dtype();
    if (!weight.is_meta()) {
      return std::make_unique<Int8Kept>(quantize_rowwise(weight.to(dtype)), dtype);
    }
    return std::make_unique<Int8Kept>(Int8Weight{.data = empty_meta(weight.sizes(), at::kChar),
                                                 .scb = empty_meta({weight.size(0)}, at::kFloat)},
                                      dtype);
  }
  const FourBitOptions options = {.type = config.quant_type(),
                                  .use_double_quant = config.bnb_4bit_use_double_quant};
  return std::make_unique<FourBitKept>(
      weight.is_meta() ? without_values(weight, config.remaining_dtype(), options)
                       : quantize_4bit(weight.to(config.remaining_dtype()), options),
      config.compute_dtype());
}

// `name`: of the weight, for errors.
std::unique_ptr<ValueMaker> maker_for(const Tensor& weight, const std::string& name,
                                      const BnbQuantizationConfig& config) {
  try {
    return unchecked_maker_for(weight, config);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "cannot quantise \"", name, "\": ", error.what_without_backtrace());
  }
}

// Whether it is to be quantised yet.
bool check_kind(const Tensor& weight, const std::string& name,
                const BnbQuantizationConfig& config) {
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.is_floating_point(), "quantize_weight: \"", name,
                    "\" is not a matrix of floating-point numbers");
  constexpr int64_t kMostColumns = 131072;
  TORCH_CHECK_VALUE(!config.load_in_8bit || weight.size(1) <= kMostColumns, "quantize_weight: \"",
                    name, "\" has ", weight.size(1), " columns, and sums of 8-bit products hold ",
                    kMostColumns);
  TORCH_CHECK_VALUE(!config.load_in_8bit || name.ends_with("weight"), "quantize_weight: \"", name,
                    "\": the name of a weight in 8 bits ends with \"weight\"");
  if (const QuantizedWeight* const kept = find_quantized(weight)) {
    TORCH_CHECK_VALUE(kept->is_as(config), "quantize_weight: \"", name,
                      "\" is quantised already, in another way");
    return false;
  }
  TORCH_CHECK_VALUE(storage_owner(weight) == nullptr, "parameter \"", name,
                    "\" is brought into memory by another mechanism already, such as shards or "
                    "layerwise casting");
  return true;
}

}  // namespace

void check_quantizable_weight(const Tensor& weight, const std::string& name,
                              const BnbQuantizationConfig& config) {
  if (!check_kind(weight, name, config) || weight.is_meta()) return;
  const at::NoGradGuard no_grad;
  // As it is rounded before it is quantised, which may make values infinite.
  const Tensor values = weight.detach().to(config.remaining_dtype());
  if (values.numel() == 0) return;
  const auto [least, greatest] = at::aminmax(values);
  if (std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>())) return;
  // The error of quantising says which value it is.
  maker_for(weight.detach(), name, config);
}

void quantize_weight(const Tensor& weight, const std::string& name,
                     const BnbQuantizationConfig& config) {
  if (!check_kind(weight, name, config)) return;
  const at::NoGradGuard no_grad;
  std::unique_ptr<ValueMaker> maker = maker_for(weight.detach(), name, config);
  weight.set_requires_grad(false);
  make_at_use(weight, name, config.load_in_8bit ? config.remaining_dtype() : config.compute_dtype(),
              std::move(maker));
}

void match_stored_layout(const Tensor& weight, const std::string& name, const FourBitState& state) {
  const auto* const kept = dynamic_cast<const FourBitKept*>(find_maker(weight));
  if (kept == nullptr || kept->has_values()) return;
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(weight.sizes() == at::IntArrayRef(state.sizes), "\"", name,
                    "\" was quantised with the shape ", at::IntArrayRef(state.sizes),
                    " in blocks of ", state.block_size, ", and the model has ", weight.sizes());
  const FourBitOptions options = {
      .type = state.type,
      .use_double_quant = state.nested_block_size.has_value(),
      .block_size = state.block_size,
      .nested_block_size = state.nested_block_size.value_or(kNestedBlock)};
  const at::ScalarType dtype = weight.scalar_type();
  std::unique_ptr<ValueMaker> maker;
  try {
    maker = std::make_unique<FourBitKept>(without_values(weight, state.dtype, options), dtype);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "cannot keep \"", name, "\": ", error.what_without_backtrace());
  }
  internal::rebind(weight, empty_meta(weight.sizes(), dtype));
  make_at_use(weight, name, dtype, std::move(maker));
}

std::optional<QuantizedBits> quantized_bits(const Tensor& weight) {
  const QuantizedWeight* const kept = find_quantized(weight);
  return kept == nullptr ? std::nullopt : std::optional(kept->bits());
}

void check_quantized(const Tensor& weight, const std::string& name) {
  if (const QuantizedWeight* const kept = find_quantized(weight)) kept->check(name);
}

std::optional<Tensor> QuantizedProducts::linear(const Tensor& input, const Tensor& weight,
                                                const Tensor& bias) {
  const QuantizedWeight* const kept = find_quantized(weight);
  // The operator itself reports arguments that do not fit.
  if (kept == nullptr || input.dim() == 0 || !input.is_floating_point() ||
      input.size(-1) != weight.size(1) || input.device() != weight.device()) {
    return std::nullopt;
  }
  return kept->product(input, weight, bias, config_.llm_int8_threshold);
}

}  // namespace accelerate
