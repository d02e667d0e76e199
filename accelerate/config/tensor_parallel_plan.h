/// How the ranks along tp divide the layers of a model: a plan of names.
///
///   const TensorParallelPlan plan = {
///       {.pattern = "tokens", .style = TensorStyle::kEmbedding},
///       {.pattern = "blocks.*.attention.qkv", .style = TensorStyle::kColumn, .groups = kv_heads},
///       {.pattern = "blocks.*.attention.project", .style = TensorStyle::kRow},
///       {.pattern = "head", .style = TensorStyle::kColumn, .gather_output = true}};
///
/// A model brings its plan (ModelStructure), or an Accelerator has plans among its kwargs_handlers:
/// one for all its models, and one for each class (`model_class`). The plan of the class takes
/// precedence over the plan for all models, and that plan over the model's own. A plan without
/// rules leaves models whole, so that all ranks along tp compute the same.
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
#include "accelerate/base/fields.h"

namespace accelerate {

/// What each rank has of the parameters of a layer, and what the layer computes with it.
enum class TensorStyle {
  /// All of each parameter.
  kReplicate,
  /// Rows of the weight and elements of the bias: each rank computes some of the output features.
  kColumn,
  /// Columns of the weight, for the input features that the rank has, and the whole bias. Ranks sum
  /// their outputs and add the bias once.
  kRow,
  /// Rows of a table, by words of the vocabulary. A Linear layer with the same weight, such as a
  /// tied head, is a column layer whose output is gathered.
  kEmbedding,
};

ACCELERATE_ENUM_TEXTS(TensorStyle, "style of tensor parallelism", "replicate", "column", "row",
                      "embedding")

struct TensorRule {
  /// The whole name of modules or of parameters, as in the model's state dict. `*` stands for any
  /// text without dots. A parameter gets the first rule that matches its name or its module's.
  std::string pattern = {};
  TensorStyle style = TensorStyle::kReplicate;
  /// For a column layer: ranks gather the output, so that each has all of it.
  bool gather_output = false;
  /// For a row layer: its input is whole on all ranks, and each rank takes its part.
  bool split_input = false;
  /// For a whole parameter that each rank uses with its own features, such as the weight of a norm
  /// inside heads: ranks sum its gradients.
  bool partial_gradient = false;
  /// For several weights in one tensor: their lengths along the dim that is cut, or proportions of
  /// the lengths. Ranks divide each block. {1, 1, 1}: queries, keys and values.
  std::vector<int64_t> blocks = {};
  /// In a plan with sequence shards. For an embedding: its output is in shards, because nothing is
  /// added to whole sequences behind it. For a whole parameter, such as a norm's: each rank uses it
  /// with its shard, so ranks sum its gradients.
  bool sequence = false;
  /// The number of groups of features in each block that stay whole, such as heads; 0: features are
  /// cut anywhere. If a column layer of keys or values has fewer groups than ranks, neighbouring
  /// ranks have the same group and sum its gradients.
  int64_t groups = 0;

  bool operator==(const TensorRule&) const = default;
};

struct TensorParallelPlan {
  TensorParallelPlan() = default;
  TensorParallelPlan(std::initializer_list<TensorRule> given) : rules(given) {}

  std::vector<TensorRule> rules = {};
  /// Between divided layers each rank has a shard of every sequence, along the dim before the last:
  /// row layers end with a reduce-scatter, and column layers begin with an all-gather. So norms and
  /// dropout compute and keep shards only. The shards begin at the embedding
  /// (TensorRule::sequence), at the first block() with a row layer (operators/block.h), or where
  /// the model calls shard_sequence (parallel/tensor/sequence_shards.h).
  bool sequence_parallel = false;
  /// The inputs that column layers gather from shards stay in memory for the backward pass.
  /// Otherwise they are dropped after use and gathered again in the backward pass: ranks keep less
  /// and send more.
  bool keep_gathered_inputs = false;
  /// Outputs that the rules would gather, such as logits, stay parts, for parallel_cross_entropy
  /// (parallel/tensor/loss.h).
  bool parallel_loss = false;
  /// The class of the models that the plan is for, as module_class_name() has it ("Lm" for LmImpl);
  /// empty: all models. kwargs_handlers take one plan for each class.
  std::string model_class = {};
};
ACCELERATE_STRUCT(TensorParallelPlan, rules, sequence_parallel, keep_gathered_inputs, parallel_loss,
                  model_class)

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
