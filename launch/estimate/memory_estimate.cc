#include "launch/estimate/memory_estimate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "accelerate/base/number_text.h"
#include "accelerate/checkpoint/formats/safetensors_header.h"

namespace accelerate::launch::estimate {
namespace {

constexpr double kFloat32Bytes = 4;

double bytes_in_float32(const ArchitectureTensor& tensor) {
  const bool is_floating_point = tensor.dtype[0] == 'F' || tensor.dtype == "BF16";
  return tensor.elements *
         (is_floating_point ? kFloat32Bytes : safetensors_dtype_size(tensor.dtype));
}

bool is_trained_in(const std::string& dtype) { return dtype != "int8" && dtype != "int4"; }

// The module that the tensor is a part of: the outermost that is never divided, or its own; what
// sits at the root is a layer by itself.
std::string layer_of(const std::string& tensor, const std::set<std::string>& no_split) {
  for (size_t dot = tensor.find('.'); dot != tensor.npos; dot = tensor.find('.', dot + 1)) {
    if (const std::string module = tensor.substr(0, dot); no_split.contains(module)) return module;
  }
  return tensor.substr(0, tensor.rfind('.'));
}

}  // namespace

const std::vector<std::string>& estimate_dtypes() {
  static const std::vector<std::string>& kDtypes =
      *new std::vector<std::string>{"float32", "float16", "bfloat16", "int8", "int4"};
  return kDtypes;
}

ModelSize model_size(const Architecture& architecture) {
  const std::set<std::string> no_split(architecture.no_split.begin(), architecture.no_split.end());
  ModelSize size;
  std::map<std::string, double> layers;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    const double bytes = bytes_in_float32(tensor);
    size.total += bytes;
    layers[layer_of(tensor.name, no_split)] += bytes;
  }
  for (const auto& [name, bytes] : layers) size.largest_layer = std::max(size.largest_layer, bytes);
  if (no_split.contains("")) size.largest_layer = size.total;
  return size;
}

double size_in(const std::string& dtype, double size_in_float32) {
  if (dtype == "float16" || dtype == "bfloat16") return size_in_float32 / 2;
  if (dtype == "int8") return size_in_float32 / 4;
  if (dtype == "int4") return size_in_float32 / 8;
  return size_in_float32;
}

double TrainingUsage::maximum() const { return std::max({model, gradients, optimizer, step}); }

std::optional<TrainingUsage> training_usage(const std::string& dtype, double total) {
  if (!is_trained_in(dtype)) return std::nullopt;
  if (dtype == "float32") {
    return TrainingUsage{
        .model = total, .gradients = total, .optimizer = 2 * total, .step = 4 * total};
  }
  return TrainingUsage{
      .model = total, .gradients = 1.5 * total, .optimizer = 2 * total, .step = 2 * total};
}

std::optional<double> divided_training(const std::string& dtype, const ModelSize& size,
                                       const Division& division) {
  if (!is_trained_in(dtype)) return std::nullopt;
  const double whole = size_in(dtype, size.total) / static_cast<double>(division.tp_size);
  const double layer = size_in(dtype, size.largest_layer) / static_cast<double>(division.tp_size);
  const double part = whole / static_cast<double>(division.dp_shard_size);
  const int stage = division.dp_shard_size > 1 ? division.zero_stage : 0;
  const double optimizer = 2 * (stage >= 1 ? part : whole);
  const double gradients = stage >= 2 ? part : whole;
  if (stage < 3) return whole + gradients + optimizer;
  return part + gradients + optimizer + 2 * layer;
}

std::optional<double> activation_bytes(const std::string& dtype, const TransformerShape& shape,
                                       const ActivationOptions& options) {
  if (!is_trained_in(dtype)) return std::nullopt;
  const double element = size_in(dtype, kFloat32Bytes);
  const double s = static_cast<double>(options.sequence_length);
  const double b = static_cast<double>(options.batch_size);
  const double h = static_cast<double>(shape.hidden_size);
  const double a = static_cast<double>(shape.num_attention_heads);
  const double t = static_cast<double>(options.tp_size);
  const double layers = static_cast<double>(shape.num_hidden_layers);
  const double input = s * b * h * element;
  // Inputs of the two norms and of both blocks, and the two dropout masks of a byte an element.
  const double replicated = 4 * input + 2 * s * b * h;
  // Query, key, value, the projection's input, and three widths of 4 but one in the MLP.
  const double divided = 12 * input;
  const double scores = options.keeps_attention_scores ? a * s * s * b * (2 * element + 1) : 0;
  const double layer = replicated + (divided + scores) / t;
  return options.activation_checkpointing ? layers * input + layer : layers * layer;
}

std::string bytes_text(double bytes) {
  const bool is_whole = bytes < 1024 && bytes == std::floor(bytes);
  return is_whole ? byte_text(static_cast<int64_t>(bytes)) : byte_text(bytes);
}

}  // namespace accelerate::launch::estimate
