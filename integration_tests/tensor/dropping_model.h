/// A small model with dropout where transformers have some, which brings its plan of tensor
/// parallelism, and one rank's part of its training: what random numbers, checkpoints and scalers
/// are tested with.
///
/// Names of parameters: tokens.weight, also of the head; blocks.N.norm.weight and bias;
/// blocks.N.gate_up.weight and bias, two layers in one; with heads of keys blocks.N.keys.weight and
/// bias; blocks.N.down.weight and bias; norm.weight and bias.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/prepared_model.h"

namespace accelerate {

struct DroppingOptions {
  double dropout = 0.5;
  bool recomputes = false;       ///< whether blocks are computed again in backward passes
  bool sequence_shards = false;  ///< of the model's own plan
  /// By how many heads of a layer of its own a block's eight heads are multiplied, as many
  /// neighbouring ones by one as queries share keys; 0: by none. It divides eight.
  int64_t key_heads = 0;
  /// Whether ranks along tp draw the parts of what one device would draw for whole tensors, in
  /// place of numbers of their own.
  bool draws_as_one_device = false;
  bool adam = true;  ///< AdamW; else SGD with momentum
};

class DroppingImpl : public torch::nn::Module, public ModelStructure {
 public:
  using Masks = std::map<std::string, torch::Tensor>;

  /// With the values of fill_by_formula.
  explicit DroppingImpl(const DroppingOptions& options = {});

  /// Words, int64 [rows, length], to logits [rows, length, vocabulary].
  torch::Tensor forward(const torch::Tensor& words);
  std::optional<TensorParallelPlan> tensor_parallel_plan() const override;

  /// Where the last pass did not drop: "embedded" and "residual N" [rows, length, width], "heads N"
  /// [rows, length, heads, size of a head], of which the rank may have parts; on the host.
  const Masks& masks() const { return *masks_; }

 private:
  const DroppingOptions options_;
  const std::shared_ptr<Masks> masks_ = std::make_shared<Masks>();
  torch::nn::Embedding tokens_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
};

/// One rank's part of a training of it.
class DroppingJob {
 public:
  /// `sizes`: of the mesh; absent: none. Collective.
  explicit DroppingJob(const std::optional<ParallelismOptions>& sizes,
                       const DroppingOptions& options = {}, AcceleratorOptions given = {});

  /// The logits of words on the device, int64 [rows, length]. Collective.
  torch::Tensor forward(const torch::Tensor& words);
  /// The loss of the rank's rows of this step, without its graph, after a backward pass.
  /// Collective.
  torch::Tensor backward(int step);
  /// The same, and the optimizer's step. Collective.
  torch::Tensor train(int step);

  const ModelState& state() const;

  Accelerator accelerator;
  const std::shared_ptr<DroppingImpl> module;
  std::shared_ptr<torch::optim::AdamW> adam;  ///< null with SGD
  std::optional<PreparedModel<DroppingImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;

 private:
  const bool draws_as_one_device_;
};

}  // namespace accelerate
