#include "integration_tests/tensor/activations.h"

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

// By all blocks, the embedding and the head.
int64_t kept_by_a_pass(const FormulaTraining& training) {
  int64_t bytes = 0;
  simulator::Cluster cluster(training.cluster);
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    AcceleratorOptions given;
    if (training.sizes) given.parallelism_config = ParallelismConfig(*training.sizes);
    training.change(given);
    Accelerator accelerator(given);
    lm::Lm made(training.config, training.lm);
    auto model = accelerator.prepare_model(made.ptr());
    const at::Tensor tokens =
        formula_batch(/*step=*/0, training.rows, training.config.sequence_length)
            .first.to(accelerator.device());
    const int64_t before = rank.device()->memory().in_use();
    const at::Tensor logits = model(tokens);
    if (rank.index() == 0) bytes = rank.device()->memory().in_use() - before;
    accelerator.backward(logits.sum());
  });
  return bytes;
}

}  // namespace

int64_t activations_of_a_block(FormulaTraining training) {
  const int64_t all = kept_by_a_pass(training);
  --training.config.layers;
  return all - kept_by_a_pass(training);
}

}  // namespace accelerate
