/// A mixture of experts: a layer of many perceptrons, of which a router chooses a few for each
/// token.
///
///     MixtureOfExperts mixture({.hidden = 128, .intermediate = 176, .router = {.experts = 8}});
///     y = mixture(x);
///     loss = loss + mixture->take_router_loss();
///
/// An expert is down(silu(gate x) * up x). A shared expert, if there is one, is added for all
/// tokens. In a job with ep_size (ParallelismOptions) each rank along ep keeps a part of the
/// experts: its tokens travel to the ranks of their experts and back (dispatch and combine), while
/// the rank computes the shared expert. What is learned is what one process with all experts and
/// tokens learns, but that each rank balances and drops what it has itself.
///
/// Names of parameters: router.weight [experts, hidden]; experts.gate and experts.up, [experts,
/// intermediate, hidden], and experts.down [experts, hidden, intermediate], all experts behind each
/// other; shared.gate.weight, shared.up.weight and shared.down.weight, and shared_gate.weight,
/// where there are such. weight_names.h has the names of other libraries' files.
///
/// Sequences of which ranks along tp have parts (parallel/tensor/sequence_shards.h) are put
/// together for the router and the experts, so that these ranks have the same tokens.
///
/// forward is collective over the ranks along ep, with and without tokens, and so is its backward
/// pass. It reads on the host how many tokens go where, once, unless a fixed rule says it.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/experts/routing.h"

namespace accelerate {

struct MixtureOptions {
  int64_t hidden = 0;        ///< the size of a token's vector
  int64_t intermediate = 0;  ///< the size inside of an expert
  RouterOptions router = {};
  int64_t shared_intermediate = 0;  ///< the same of a shared expert; 0: there is none
  /// Whether the shared expert's result is multiplied by sigmoid(shared_gate x).
  bool gates_shared = false;
  /// Whether ranks along tp, if there are several, have a part each of the inside of every expert.
  /// Otherwise each has all of it, and they compute the same. Alike in all mixtures of a model.
  bool divides_along_tp = true;
};

/// The router's weight alone. Not a Linear layer, so that what computes such layers in 8 bits or
/// quantises them leaves it as it is.
class ExpertRouterImpl : public torch::nn::Module {
 public:
  ExpertRouterImpl(int64_t hidden, int64_t experts);
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(ExpertRouter);

/// The experts that a rank has.
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(int64_t hidden, int64_t intermediate, int64_t experts);
  /// Computes in the dtype of the rows. `counts`: how many rows each expert has, one behind the
  /// other. Shapes: [rows, hidden], as the result.
  at::Tensor forward(const at::Tensor& rows, const std::vector<int64_t>& counts);
  int64_t count() const { return gate_.size(0); }
  /// From now on the ranks of the group have a part each of the experts' inside, and the same rows.
  /// Local.
  void divide_inside(ProcessGroupPtr group) { inside_ = std::move(group); }

 private:
  at::Tensor gate_, up_, down_;
  ProcessGroupPtr inside_;
};
TORCH_MODULE(Experts);

/// The expert for all tokens.
class SharedExpertImpl : public torch::nn::Module {
 public:
  SharedExpertImpl(int64_t hidden, int64_t intermediate);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear gate_, up_, down_;
};
TORCH_MODULE(SharedExpert);

class MixtureOfExpertsImpl : public torch::nn::Module {
 public:
  /// Weights are drawn as those of Linear layers.
  /// Errors: c10::ValueError naming the option that is out of range.
  explicit MixtureOfExpertsImpl(const MixtureOptions& options);

  /// Shapes: [..., hidden], as the result.
  at::Tensor forward(const at::Tensor& input);

  /// The router's losses of the last forward pass, for the training's loss, which also has to
  /// depend on the model's outputs; undefined without such losses, and when they were taken. With
  /// several passes before a backward pass take each one's.
  ///
  /// A block that is computed again in its backward pass returns them as one of its results, since
  /// only what it returns has gradients.
  at::Tensor take_router_loss();

  /// How many of this rank's choices each expert has taken in the last forward pass, and how many
  /// it has dropped.
  const std::vector<int64_t>& taken() const { return taken_; }
  const std::vector<int64_t>& dropped() const { return dropped_; }

  const MixtureOptions& options() const { return options_; }
  const Experts& experts() const { return experts_; }

  /// From now on this rank's experts are a part of all, which the ranks of the group have together
  /// in their order, and of each expert's inside a part that the ranks of `inside` have together;
  /// null for one rank. Local.
  void divide(ProcessGroupPtr group, ProcessGroupPtr inside = nullptr) {
    group_ = std::move(group);
    experts_->divide_inside(std::move(inside));
  }

 private:
  at::Tensor shared_part(const at::Tensor& x);
  // How many rows each rank's router, in the order of ranks, has for each of this rank's experts.
  // Sets what is taken and dropped.
  std::vector<int64_t> count_rows(const Routed& routed, int64_t capacity);

  const MixtureOptions options_;
  ProcessGroupPtr group_;
  ExpertRouter router_;
  Experts experts_;
  SharedExpert shared_{nullptr};
  torch::nn::Linear shared_gate_{nullptr};
  at::Tensor router_loss_;
  std::vector<int64_t> taken_, dropped_;
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace accelerate
