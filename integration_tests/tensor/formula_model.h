/// The language model of the examples with weights and text that any program can compute, so that
/// its training can be compared with other libraries'.
///
/// Element i of the parameter NAME is base + (u - 1/2) * scale, computed in double and rounded
/// once, where u = (splitmix64(fnv1a64(NAME) + i) >> 40) / 2^24. Weights of norms have base 1, all
/// else 0; the scales are the formula's. Byte i of the text is text[i % its length]; step s has the
/// bytes from s * rows * (length + 1) on, row after row.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/step/train_batch.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

struct Formula {
  std::string text =
      "It was the best of times, it was the worst of times, it was the age of wisdom, it was the "
      "age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the "
      "season of Light, it was the season of Darkness, it was the spring of hope, it was the "
      "winter of despair. ";
  double matrix_scale = 1.0 / 16;  ///< of tensors with several dims
  double bias_scale = 1.0 / 64;    ///< of vectors whose name ends with "bias"
  double norm_scale = 1.0 / 8;     ///< of other vectors
};

/// The values of the parameter of that name. Local.
at::Tensor formula_values(const Formula& formula, const std::string& name, at::IntArrayRef shape);

/// Gives all parameters of a module the values of the formula. Local.
void fill_by_formula(torch::nn::Module& module, const Formula& formula = {});

/// The inputs and the labels of one step: int64 [rows, length] each.
std::pair<at::Tensor, at::Tensor> formula_batch(int step, int64_t rows, int64_t length,
                                                const Formula& formula = {});

/// What a plan has besides its rules, and the program beside it.
struct PlanModes {
  bool sequence_shards = false;
  bool parallel_loss = false;
  bool keeps_gathered_inputs = false;
};

/// Gives the Accelerator the model's own plan with these modes.
std::function<void(AcceleratorOptions&)> with_modes(const PlanModes& modes,
                                                    const lm::Config& config);

/// A training of it.
struct FormulaTraining {
  lm::Config config = {};
  lm::LmOptions lm = {};
  /// Absent: one process.
  std::optional<ParallelismOptions> sizes = std::nullopt;
  std::string cluster = "1x1:h100";
  int steps = 10;
  int64_t rows = 8;  ///< of a step, over all shares of the data
  /// Changes what the Accelerator is made with.
  std::function<void(AcceleratorOptions&)> change = [](AcceleratorOptions&) {};
  /// Whether the loss is computed of parts of the logits where the plan leaves them cut.
  bool parallel_loss = false;
  /// Whether gradients are clipped by their norm, which is told then.
  bool clips = true;
  /// Into how many backward passes each share's rows of a step are divided; the options accumulate
  /// as many.
  int micro_steps = 1;
  /// Each backward pass, with the forward pass before it, is a window of micro-batches, in which
  /// ranks along cp have some tokens of each row; absent: one of whole rows.
  std::optional<TrainBatchOptions> window = std::nullopt;
  /// To what each element of the gradients is limited before they are clipped by their norm; 0: to
  /// nothing.
  double clip_value = 0;
  Formula formula = {};
  uint64_t seed = 0;  ///< of the cluster
};

struct FormulaOutcome {
  std::vector<double> losses;  ///< of all rows of each step, before it
  std::vector<double> norms;   ///< of each step's gradients, before they are clipped by it
  double bytes = 0;            ///< that all ranks sent together
  int64_t elements = 0;        ///< of the first rank's parameters
  /// How many collectives there were, by verb and by the bytes of the whole result.
  std::map<std::pair<std::string, int64_t>, int64_t> collectives;
};

/// SGD with a learning rate of 0.1 and momentum 0.9, on gradients that are clipped to norm 1. On
/// one rank of a job, whatever runs it: the losses are those of its rows, and nothing is told of
/// bytes and collectives. Collective.
FormulaOutcome train_rank_by_formula(const FormulaTraining& training);

/// The same on a cluster.
FormulaOutcome train_by_formula(const FormulaTraining& training);

}  // namespace accelerate
