// The chain of engines of a job; see step_engine.h.
#include <memory>
#include <utility>

#include "accelerate/base/enums.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/step/lomo_engine.h"
#include "accelerate/step/loop_engine.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"
#include "accelerate/step/xla_engine.h"
#include "accelerate/step/zero_engine.h"

namespace accelerate::internal {

StepEngine& TrainingStep::engine() const {
  const DistributedType type = state_.distributed_type();
  if (training_.engine != nullptr) return *training_.engine;
  const StepJob job{.device = state_.device(), .gradients = gradients_, .training = training_};
  std::shared_ptr<StepEngine> engine = std::make_shared<LoopEngine>(job);
  engine = std::make_shared<LomoEngine>(job, std::move(engine));
  if (type == DistributedType::kXla) engine = std::make_shared<XlaEngine>(job, std::move(engine));
  training_.engine = std::move(engine);
  return *training_.engine;
}

ZeroEngine& TrainingStep::zero_engine() const {
  if (auto* zero = find_engine<ZeroEngine>(&engine())) return *zero;
  const StepJob job{.device = state_.device(), .gradients = gradients_, .training = training_};
  auto zero = std::make_shared<ZeroEngine>(job, training_.engine);
  training_.engine = zero;
  return *zero;
}

}  // namespace accelerate::internal
