/// Training of the example's language model with experts, by the formula of
/// integration_tests/tensor/formula_model.h: an expert's weights have the name that they would have
/// as a layer of their own, "blocks.0.mlp.experts.3.gate.weight".
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
#include <torch/optim/optimizer.h>

#include "absl/time/time.h"
#include "accelerate/accelerator.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/experts/mixture.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

/// Llama's "tiny", each perceptron as 4 experts of half its size, of which each token has 2.
lm::Config tiny_experts(int64_t layers = -1);

/// Gives all parameters the values of the formula. Local; before the model is prepared.
void fill_experts_by_formula(lm::LmImpl& net, const Formula& formula);

/// The mixtures of a model, in the order of its blocks.
std::vector<std::shared_ptr<MixtureOfExpertsImpl>> mixtures_of_blocks(lm::LmImpl& net);

struct ExpertTraining {
  lm::Config config = tiny_experts();
  RouterOptions router = {};
  /// Absent: one process.
  std::optional<ParallelismOptions> sizes = std::nullopt;
  std::string cluster = "1x1:h100";
  int steps = 10;
  int64_t rows = 8;  ///< of a step, over all shares of the data
  /// Into how many backward passes each share's rows of a step are divided.
  int micro_steps = 1;
  /// A factor of the loss of the logits, beside which that of the routers stays as it is.
  double loss_factor = 1;
  bool computes_again = false;  ///< blocks, in the backward pass
  bool clips = true;
  std::function<void(AcceleratorOptions&)> change = [](AcceleratorOptions&) {};
  /// Changes the model before it is prepared.
  std::function<void(lm::LmImpl&)> change_model = [](lm::LmImpl&) {};
  /// What trains the parameters; absent: SGD with a learning rate of 0.1 and momentum 0.9.
  std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer = {};
  /// Called on each rank with the model's state at the end of each step's gradients, before they
  /// are clipped, and when all steps are done (-1).
  std::function<void(const ModelState& state, int step)> look = {};
  Formula formula = {};
  uint64_t seed = 0;  ///< of the cluster
  simulator::Numerics numerics = simulator::Numerics::kReal;
};

struct ExpertOutcome {
  std::vector<double> losses;    ///< of all rows of each step, before it
  std::vector<double> balances;  ///< the routers' losses
  std::vector<double> norms;     ///< of each step's gradients, before they are clipped by it
  /// What the first rank's experts took and dropped in the first pass, by layer.
  std::vector<std::vector<int64_t>> taken, dropped;
  int64_t elements = 0;  ///< of the first rank's parameters
  /// How many bytes all ranks sent together, by axis; "" for groups that are along none.
  std::map<std::string, double> bytes;
  absl::Duration elapsed;  ///< of virtual time
};

/// A forward and a backward pass of whole sequences, int64 [rows, length], in whatever layout the
/// model is: a rank takes the tokens that are its own. The losses of its logits, without the factor
/// by which that of the backward pass is multiplied, and of its routers, 0 without any. Collective.
std::pair<double, double> run_pass(Accelerator& accelerator, PreparedModel<lm::LmImpl>& model,
                                   const at::Tensor& inputs, const at::Tensor& labels,
                                   double loss_factor = 1);

/// On one rank of a job, whatever runs it: the losses are those of its rows, and nothing is told of
/// bytes and time. Collective.
ExpertOutcome train_rank_with_experts(const ExpertTraining& training);

/// The same on a cluster, with the means over its ranks; expects that all have the same norms, bit
/// by bit.
ExpertOutcome train_experts(const ExpertTraining& training);

}  // namespace accelerate
