/// The chain of engines of a job; see step_engine.h.
///
/// All is local. Threads: the rank's thread.
#pragma once

namespace accelerate {

class AcceleratorState;
class GradientState;

namespace internal {

class StepEngine;
class ZeroEngine;
struct TrainingState;

/// The outermost engine; the first call makes the chain that this kind of job has. All three
/// arguments outlive the chain. Errors: c10::ValueError after the AcceleratorState was reset.
StepEngine& engine_of(TrainingState& training, const AcceleratorState& state,
                      GradientState& gradients);
/// ZeRO's engine, which surrounds all others; the first call adds it. Errors: as engine_of.
ZeroEngine& zero_engine_of(TrainingState& training, const AcceleratorState& state,
                           GradientState& gradients);

}  // namespace internal
}  // namespace accelerate
