/// Training of the example's language model by a MegatronEngine, by the formula of
/// integration_tests/tensor/formula_model.h.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include "accelerate/accelerator.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/megatron/dummy_objects.h"
#include "accelerate/megatron/optimizer.h"
#include "accelerate/megatron/preparation.h"
#include "accelerate/megatron_engine.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {

/// The tiny model with experts, as integration_tests/experts has it.
lm::Config tiny_model(lm::Blocks blocks, bool has_experts = false);

/// Llama's "tiny" with so many layers.
inline constexpr int64_t kSmallLayers = 2;
lm::Config small_model();

/// Four micro-batches, 10 iterations of a constant rate of 0.1, and what Megatron-LM needs to know
/// of the model.
MegatronLMPlugin plugin_of_formula(int64_t layers, const MegatronLMPlugin& degrees);

/// A rank's engine, with SGD and momentum 0.9.
class EngineJob {
 public:
  /// `rows`: of a step, over all shares of the data. Collective.
  EngineJob(const lm::Config& config, const MegatronLMPlugin& plugin, const Formula& formula,
            int64_t rows = 8);

  Accelerator& accelerator() { return *accelerator_; }
  MegatronEngine<lm::LmImpl>& engine() { return *engine_; }
  /// This share's rows of a step: "text", int64 [rows, length + 1].
  MegatronBatch batch(int step) const;
  /// The whole model's tensors, on rank 0 alone.
  NamedTensors whole() const;

 private:
  lm::Config config_;
  Formula formula_;
  int64_t rows_;
  std::optional<Accelerator> accelerator_;
  std::optional<MegatronEngine<lm::LmImpl>> engine_;
};

/// Runs `body` on every rank of a cluster.
void run_engines(const std::string& cluster, const std::shared_ptr<simulator::SimDisk>& disk,
                 const lm::Config& config, const MegatronLMPlugin& plugin, const Formula& formula,
                 const std::function<void(EngineJob& job, int rank)>& body);

/// The same with an engine of a `Net`, whose micro-batches have two rows: body(engine, module,
/// rank).
template <typename Net, typename Body>
void run_engine_of(const std::string& cluster, const MegatronLMPlugin& plugin, const Body& body) {
  simulator::Cluster(cluster).run_on_every_rank([&](simulator::Rank& rank) {
    const Net net;
    const torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    Accelerator accelerator({.megatron_lm_plugin = plugin});
    set_prepared_args(*accelerator.megatron_lm_plugin(),
                      {.optimizer = megatron_optimizer_facts(sgd),
                       .scheduler = MegatronLMDummyScheduler{},
                       .batch_sizes = {2}},
                      accelerator.num_processes());
    MegatronEngine engine(accelerator, net.ptr());
    body(engine, *net, rank.index());
  });
}

/// Losses and norms of so many steps, which are the same on all ranks.
FormulaOutcome train_by_engine(const std::string& cluster, const lm::Config& config,
                               const MegatronLMPlugin& plugin, const Formula& formula, int steps);

}  // namespace accelerate
