/// Computes the layers of a model of which ranks along tp have parts, in forward passes.
///
///   - A Linear layer with a column weight gets its input as it is; in the backward pass ranks sum
///     the input's gradients, once for all column layers of one input. Its output is features of
///     which the rank has a part, unless it is gathered.
///   - A Linear layer with a row weight gets such features; ranks sum its outputs, and the bias is
///     added once.
///   - A table of words looks up those that the rank has, and ranks sum what they found.
///   - What other operators make of features is features as well (feature_flow.h).
/// With sequence shards a row layer, and an embedding whose rule says so, leave each rank a part of
/// the sequences, and column layers put the parts together, once for all of one input and, unless
/// the plan keeps the whole, once more in the backward pass.
/// The rank's part of a product is left to the next handlers, such as fp8's.
///
/// Errors:  c10::ValueError naming the rank, the operator and the parameter: for an operator with a
///          cut parameter that is none of these layers; one that needs all features, or makes of
///          them something in which they cannot be found; a trainable parameter that ranks have
///          alike and use with features of their own, unless its rule says so, and what else they
///          have alike and want a gradient of; inputs that do not fit a layer's part.
/// Collective over the ranks along tp: layers, and the backward passes of columns.
/// Threads: those of the model's passes.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/feature_flow.h"
#include "accelerate/parallel/tensor/operator_facts.h"
#include "accelerate/parallel/tensor/tensor_mark.h"

namespace accelerate {

class TensorHandler final : public OperatorHandler {
 public:
  using Parameters = std::vector<std::pair<at::Tensor, std::shared_ptr<const LayerParameter>>>;

  /// `group`: the ranks along tp. `rank`: this one in the job, for messages. The parameters outlive
  /// the handler. `keeps_gathered_inputs`: see TensorParallelPlan.
  TensorHandler(ProcessGroupPtr group, int rank, Parameters parameters,
                bool keeps_gathered_inputs = false);

  const ProcessGroupPtr& group() const { return group_; }
  const Parameters& parameters() const { return parameters_; }
  /// Whether the backward pass gathers inputs of column layers again.
  bool gathers_again() const { return has_sequence_shards_ && !keeps_gathered_inputs_; }

  /// Before a pass: parameters that were given other data have their marks.
  void mark_parameters() const;

  void call(const OperatorCall& call) override;

  /// See sequence_shards.h.
  at::Tensor shard_sequence(const at::Tensor& whole) const;
  at::Tensor whole_sequence(const at::Tensor& part) const;
  /// A part of features as a caller of the model gets it; see managed_parts.h.
  at::Tensor cut_output_of(const at::Tensor& part) const;
  /// The whole of a part of sequences, for the caller of the model, who computes the same with it
  /// on all ranks. Collective, and nothing is sent backward.
  at::Tensor whole_sequences_of(const at::Tensor& part) const;
  /// Parts of whole sequences, where the module leaves parts of them.
  at::Tensor block_input(const torch::nn::Module& module, at::Tensor input) override;
  void forget(const at::Tensor& input) override;

 private:
  // An argument with a mark.
  struct Operand {
    at::Tensor tensor;
    TensorMark* mark = nullptr;
    size_t argument = 0;
  };
  struct Operands {
    std::optional<Operand> cut, whole, part;
    bool empty() const { return !cut && !whole && !part; }
  };
  static Operands operands_of(const OperatorCall& call);

  // The result of a layer that the plan divides; absent for other operators.
  std::optional<at::Tensor> layer(const OperatorCall& call) const;
  at::Tensor column(const LinearProduct& product, const LayerParameter& parameter) const;
  at::Tensor row(const LinearProduct& product, const LayerParameter& parameter) const;
  void check_row_input(const at::Tensor& input, const LayerParameter& parameter) const;
  at::Tensor embedding(const OperatorCall& call, const LayerParameter& parameter) const;
  at::Tensor entered(const at::Tensor& input) const;
  at::Tensor gathered(const at::Tensor& part, TensorMark& mark) const;
  at::Tensor summed(at::Tensor output, const LayerParameter& parameter) const;
  void check_sequences(const at::Tensor& whole) const;
  bool adds_gathered_bias(const OperatorCall& call, const Operand& bias) const;

  void pass_parameter(const OperatorCall& call, const OperatorFacts& facts,
                      const Operand& parameter) const;
  void check_is_whole(const OperatorCall& call, const Operand& parameter) const;
  void pass_part(const OperatorCall& call, const OperatorFacts& facts,
                 const Operands& operands) const;
  using Flows = std::vector<FeatureFlow>;
  Flows other_flows(const OperatorCall& call, const OperatorFacts& facts, const FeatureFlow& flow,
                    const Operand& part) const;
  bool meets_whole_sequences(const OperatorCall& call, const Operand& part) const;
  void mark_base(const OperatorCall& call, const at::Tensor& view, const TensorMark& mark) const;
  void check_uses_part(const OperatorCall& call, const FeatureFlow& flow,
                       const Operands& operands) const;
  void check_keeps_order(const OperatorCall& call, const FeatureFlow& flow,
                         const Operand& part) const;
  void check_gradients(const OperatorCall& call, const Operand& part) const;
  // "rank 1: "
  std::string on_this_rank() const;
  // "dim -1 of features, of which each rank along tp has 64 of 128, made with "up.weight""
  std::string text_of(const Operand& part) const;

  const ProcessGroupPtr group_;
  const int rank_;
  const Parameters parameters_;
  const bool keeps_gathered_inputs_;
  bool has_sequence_shards_ = false;
  std::vector<TensorMarkPtr> marks_;  // by parameter
};

}  // namespace accelerate
