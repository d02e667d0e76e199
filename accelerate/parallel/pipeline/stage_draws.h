/// Random numbers of a pipeline's forward passes, as of dropout: those of a stage and a micro-batch
/// are the same in whatever order the schedule has them.
///
/// In each window the rank's default generators, the common stream, go on by one number. The
/// forward pass of a stage on a micro-batch draws from streams that are derived from the common
/// state then. A recomputation (operators/checkpoint.h) draws what its forward pass drew. Ranks
/// whose streams were in the same state before a window are so behind it, whatever their stages
/// draw, and checkpoints need no other state. Threads: the rank's thread.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/random.h"

namespace accelerate {

class StageDraws {
 public:
  /// A window begins.
  StageDraws();

  /// Runs `body` with the streams of a stage and a micro-batch.
  void run(int stage, int micro_batch, absl::FunctionRef<void()> body) const;

 private:
  const NamedGenerators generators_;
  std::map<std::string, at::Tensor> common_;  // their states
};

}  // namespace accelerate
