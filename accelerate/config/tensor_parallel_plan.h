/// How the ranks along tp divide the layers of a model: a plan of names.
///
///   const TensorParallelPlan plan = {
///       {.pattern = "tokens", .style = TensorStyle::kEmbedding},
///       {.pattern = "blocks.*.attention.qkv", .style = TensorStyle::kColumn, .groups = kv_heads},
///       {.pattern = "blocks.*.attention.project", .style = TensorStyle::kRow},
///       {.pattern = "head", .style = TensorStyle::kColumn, .gather_output = true}};
///
/// A model brings its plan (ModelStructure), or an Accelerator has one among its kwargs_handlers,
/// for all its models or for those of a class (`model_class`). That of the class goes before the
/// one for all, and both before the model's own. A plan without rules leaves models whole, so that
/// ranks along tp compute the same.
/// Errors:  a model is refused when it is prepared; see parallel/tensor/plan_layout.h.
/// Threads: values.
/// Mirrors: of transformers' models the attribute tp_plan.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// What each rank has of the parameters of a layer, and what the layer computes with it.
enum class TensorStyle {
  /// All of them.
  kReplicate,
  /// Rows of the weight and elements of the bias: each rank computes some of the output features.
  kColumn,
  /// Columns of the weight, which follow the input features that the rank has. The ranks' outputs
  /// are summed, and the bias, which all have, is added once.
  kRow,
  /// Rows of a table, by words of the vocabulary. A Linear layer with the same weight, as a tied
  /// head, is a column layer whose output is gathered.
  kEmbedding,
};

template <>
struct EnumTable<TensorStyle> {
  static constexpr char kName[] = "style of tensor parallelism";
  static constexpr const char* kTexts[] = {"replicate", "column", "row", "embedding"};
};

struct TensorRule {
  /// A name of modules or of parameters, whole, as in the model's state dict. `*` stands for any
  /// text without dots. The first rule that matches a parameter or its module is the parameter's.
  std::string pattern = {};
  TensorStyle style = TensorStyle::kReplicate;
  /// For a column layer: ranks put their outputs together, so that all have the whole output.
  bool gather_output = false;
  /// For a row layer: its input is whole on all ranks, and each takes its part.
  bool split_input = false;
  /// For a parameter that ranks have alike and use with features of their own, as the weight of a
  /// norm inside heads: their gradients are parts of a sum.
  bool partial_gradient = false;
  /// For a weight that is several weights one after another: their lengths along the dim that is
  /// cut, or the proportion of these. Each is cut alike. {1, 1, 1}: queries, keys and values.
  std::vector<int64_t> blocks = {};
  /// Where the plan has sequence shards: of an embedding, whether nothing is added to its output
  /// before the first shard is used, so that ranks get shards of it; of a parameter that ranks have
  /// alike, as a norm's, whether it is used with shards, so that its gradients are parts of a sum.
  bool sequence = false;
  /// How many groups of features, as heads, each block consists of, which stay whole; 0: features
  /// are cut anywhere. Where a column layer has fewer groups than ranks, as keys and values of
  /// their own have, several neighbours have each, and sum its gradients.
  int64_t groups = 0;

  bool operator==(const TensorRule&) const = default;
};

struct TensorParallelPlan {
  TensorParallelPlan() = default;
  TensorParallelPlan(std::initializer_list<TensorRule> given) : rules(given) {}

  std::vector<TensorRule> rules = {};
  /// Between the layers that are divided each rank has a part of every sequence, along the dim
  /// before the last: row layers leave it there, and column layers put the parts together. So norms
  /// and dropout compute and keep parts, and as much is sent. Where the embedding does not begin
  /// with parts, the first block (operators/block.h) that has a row layer does, or the model calls
  /// shard_sequence (parallel/tensor/sequence_shards.h).
  bool sequence_parallel = false;
  /// What column layers put together of shards stays in memory for the backward pass. Otherwise it
  /// is dropped when the layers have used it, and the backward pass puts it together again: ranks
  /// keep less and send more.
  bool keep_gathered_inputs = false;
  /// Layers whose outputs ranks would put together, as the logits, leave each rank its part, for
  /// parallel_cross_entropy (parallel/tensor/model_loss.h).
  bool parallel_loss = false;
  /// Among kwargs_handlers, which take several plans then: the class of the models that the plan is
  /// for, as module_class_name() has it ("Lm" for LmImpl). Empty: of all models.
  std::string model_class = {};

  bool operator==(const TensorParallelPlan&) const = default;
};

/// By the name of the class of models that they are for.
using TensorParallelPlans = std::map<std::string, TensorParallelPlan>;

/// Makes a plan of a dictionary in transformers' words (base/tp_plan.h): "colwise", "rowwise",
/// "colwise_rep" ("colwise_gather_output"), "rowwise_rep" ("rowwise_split_input"),
/// "embedding_rowwise", "packed_colwise" and "packed_rowwise" (two weights in one), "replicate",
/// "replicated_with_grad_allreduce", and "sequence_parallel", with which the plan has sequence
/// shards. A "rowwise" table of words is an embedding. Rules keep the order of the entries.
/// Errors: c10::ValueError naming the entry, for another word.
TensorParallelPlan tensor_parallel_plan(
    const std::vector<std::pair<std::string, std::string>>& tp_plan);

}  // namespace accelerate
