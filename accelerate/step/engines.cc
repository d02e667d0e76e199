#include "accelerate/step/engines.h"

#include <memory>
#include <utility>

#include "accelerate/base/enums.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/lomo_engine.h"
#include "accelerate/step/loop_engine.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/xla_engine.h"
#include "accelerate/step/zero_engine.h"

namespace accelerate::internal {
namespace {

std::shared_ptr<StepEngine> chain_of(DistributedType type, const StepJob& job) {
  std::shared_ptr<StepEngine> engine = std::make_shared<LoopEngine>(job);
  engine = std::make_shared<LomoEngine>(job, std::move(engine));
  if (type == DistributedType::kXla) engine = std::make_shared<XlaEngine>(job, std::move(engine));
  return engine;
}

StepJob job_of(TrainingState& training, const AcceleratorState& state, GradientState& gradients) {
  return {.device = state.device(), .gradients = gradients, .training = training};
}

}  // namespace

StepEngine& engine_of(TrainingState& training, const AcceleratorState& state,
                      GradientState& gradients) {
  const DistributedType type = state.distributed_type();
  if (training.engine == nullptr) {
    training.engine = chain_of(type, job_of(training, state, gradients));
  }
  return *training.engine;
}

ZeroEngine& zero_engine_of(TrainingState& training, const AcceleratorState& state,
                           GradientState& gradients) {
  StepEngine& engine = engine_of(training, state, gradients);
  if (auto* zero = find_engine<ZeroEngine>(&engine)) return *zero;
  auto zero = std::make_shared<ZeroEngine>(job_of(training, state, gradients), training.engine);
  training.engine = zero;
  return *zero;
}

}  // namespace accelerate::internal
