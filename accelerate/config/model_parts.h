/// A model's forward pass by parts, for the stages of a pipeline.
///
///     class LmImpl : public torch::nn::Module, public accelerate::ModelParts {
///       std::vector<ModelPart> parts() const override;
///       torch::Tensor forward_parts(size_t begin, size_t end, torch::Tensor x) override;
///       ...
///
/// The result of one part is the input of the next one, and all parts together give what forward
/// gives, bit by bit. No other value goes from part to part: what several need, as the rotation of
/// positions, each computes by itself. Losses that parts compute beside their results are handed
/// over apart (take_router_loss).
/// Threads: that of the forward pass.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace accelerate {

struct ModelPart {
  /// As "blocks.3": what plans and errors call it.
  std::string name = {};
  /// The modules and parameters that it uses, by their dotted paths; empty: the module `name`.
  /// Several parts may use a parameter, as a table of words that is tied to the head.
  std::vector<std::string> uses = {};
};

class ModelParts {
 public:
  virtual ~ModelParts() = default;

  /// In the order of the forward pass. Each of the model's parameters is used by some of them.
  virtual std::vector<ModelPart> parts() const = 0;
  /// The parts [begin, end) of the forward pass. Other parts' parameters may have no rows then.
  virtual at::Tensor forward_parts(size_t begin, size_t end, at::Tensor x) = 0;
  /// The same on a rank that has some tokens of each sequence, as along cp or sp. `positions` are
  /// the numbers of these in their sequences, int64 [tokens], which all parts are given alike.
  /// Errors: c10::ValueError of a model that does not override this.
  virtual at::Tensor forward_parts_at(size_t /*begin*/, size_t /*end*/, at::Tensor x,
                                      const at::Tensor& /*positions*/) {
    TORCH_CHECK_VALUE(false,
                      "pipeline: the parts of the model are given positions of tokens, but it does "
                      "not override ModelParts::forward_parts_at");
    return x;
  }
  /// The losses of routers of experts in the last forward pass of the model or of some of its
  /// parts, to be added to its loss, 0-dim; undefined without any, and when they were taken.
  /// Accelerator::train_batch takes them behind each stage's pass, and adds them to the loss whose
  /// gradients it computes.
  virtual at::Tensor take_router_loss() { return {}; }
};

}  // namespace accelerate
