/// A model's description of its structure, for sharding, tensor parallelism and device maps. A
/// model without this description is divided by the options alone.
///
///     class LmImpl : public torch::nn::Module, public accelerate::ModelStructure {
///       std::string input_embeddings() const override { return "tokens"; }
///       ...
///
/// Modules are named by their dotted path from the model, "" is the model.
/// Threads: constant functions of the model.
/// Mirrors: of transformers' models the attributes _no_split_modules and base_model_prefix and the
///          functions get_input_embeddings and get_output_embeddings; the attribute tp_plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/config/tensor_parallel_plan.h"

namespace accelerate {

class ModelStructure {
 public:
  virtual ~ModelStructure() = default;

  /// The classes whose modules stay in one piece, as module_class_name() has them: a transformer's
  /// blocks.
  virtual std::vector<std::string> no_split_modules() const { return {}; }
  /// The child that is the model without its head; "": the model itself. Its last child that is a
  /// norm belongs to the end of the forward pass.
  virtual std::string base_model_prefix() const { return ""; }
  /// The first and the last module with a "weight" of the vocabulary's size; absent: none. They are
  /// tied where their weights are one tensor.
  virtual std::optional<std::string> input_embeddings() const { return std::nullopt; }
  virtual std::optional<std::string> output_embeddings() const { return std::nullopt; }
  /// The sizes of the hidden states: one, or one for each stage of the model. ZeRO's sizes that are
  /// "auto" follow the largest.
  virtual std::vector<int64_t> hidden_sizes() const { return {}; }
  /// The types of the layers, as a Transformers model's configuration has them in "layer_types":
  /// "full_attention", "sliding_attention", "linear_attention"; empty: each token attends to all
  /// that the calls of scaled_dot_product_attention say.
  virtual std::vector<std::string> layer_types() const { return {}; }
  /// How ranks along tp divide the model's layers; absent: the Accelerator must have a plan for it.
  virtual std::optional<TensorParallelPlan> tensor_parallel_plan() const { return std::nullopt; }
};

}  // namespace accelerate
