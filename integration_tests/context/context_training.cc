#include "integration_tests/context/context_training.h"

#include <memory>

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/mesh/device_mesh.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

TokenShare train_rank_in_context(const ContextTraining& training) {
  AcceleratorOptions given;
  if (training.sizes) given.parallelism_config = ParallelismConfig(*training.sizes);
  training.change(given);
  Accelerator accelerator(given);
  lm::Lm made(training.config, training.lm);
  fill_by_formula(*made);
  const std::shared_ptr<torch::optim::Optimizer> sgd = std::make_shared<torch::optim::SGD>(
      made->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
  const DataShare share = accelerator.state().data_share();
  const int64_t own = training.rows / share.count;
  const int64_t length = training.config.sequence_length;
  TokenShare outcome;
  for (int step = 0; step < training.steps; ++step) {
    auto [inputs, targets] = formula_batch(step, training.rows, length);
    if (training.ignore) training.ignore(targets);
    const auto part = [&](const at::Tensor& all) {
      return all.narrow(0, share.index * own, own).to(accelerator.device());
    };
    const at::Tensor tokens = part(inputs), labels = part(targets);
    const at::Tensor positions = at::arange(length, tokens.options());
    {
      const auto scope = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 0},
                                                            {}, training.order);
      const at::Tensor logits = model(tokens, positions).flatten(0, 1);
      const at::Tensor flat = labels.flatten();
      const auto count = (flat != -100).sum().item<int64_t>();
      const at::Tensor sum = torch::cross_entropy_loss(logits, flat, {}, at::Reduction::Sum);
      outcome.losses.push_back(sum.item<double>());
      outcome.tokens.push_back(static_cast<double>(count));
      if (training.ignore) {
        accelerator.backward_tokens(sum, count);
      } else {
        accelerator.backward(sum / count);
      }
    }
    const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 1.0);
    outcome.norms.push_back(norm.item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  return outcome;
}

TokenOutcome train_in_context(const ContextTraining& training) {
  simulator::Cluster cluster(training.cluster);
  return train_on_every_rank(cluster, [&] { return train_rank_in_context(training); });
}

}  // namespace accelerate
