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

#include "accelerate/accelerator.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/megatron_engine.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {

/// The tiny model with experts, as integration_tests/experts has it.
lm::Config tiny_model(lm::Blocks blocks, bool has_experts = false);

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

/// Losses and norms of so many steps, which are the same on all ranks.
FormulaOutcome train_by_engine(const std::string& cluster, const lm::Config& config,
                               const MegatronLMPlugin& plugin, const Formula& formula, int steps);

}  // namespace accelerate
