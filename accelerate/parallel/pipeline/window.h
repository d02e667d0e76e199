/// A window of micro-batches on one rank of a pipeline: its actions in the order of a schedule,
/// with the messages between them.
///
/// What a stage gives to one on the same rank stays where it is. A backward pass begins with the
/// gradient that the next stage sends, and its own input's gradient goes to the stage before. A
/// schedule without backward passes keeps nothing for them.
/// Collective over the ranks of the pipeline, which run the same schedule.
/// Threads: the rank's thread.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/random.h"
#include "accelerate/parallel/pipeline/stage_messages.h"
#include "accelerate/pipeline/schedule.h"

namespace accelerate {

/// What a rank computes of a window.
struct StageWork {
  /// The first stage's input.
  std::function<at::Tensor(int micro_batch)> input;
  std::function<at::Tensor(int stage, int micro_batch, at::Tensor x)> forward;
  /// With what the last stage's backward pass begins, of its output. It is called in schedules
  /// without backward passes, too.
  std::function<at::Tensor(const at::Tensor& output, int micro_batch)> loss;
  /// A backward pass from `root`, which is a loss where `gradient` is undefined, or its first half.
  /// `is_last`: the last action of the rank's window that adds to gradients.
  std::function<void(const pipeline::Action& action, const at::Tensor& root,
                     const at::Tensor& gradient, bool is_last)>
      backward;
  /// The second half of a backward pass.
  std::function<void(const pipeline::Action& action)> late_gradients;
};

/// Runs the rank's part of the window.
/// \pre check_schedule (accelerate/pipeline/check.h) passes the schedule.
/// `messages`: null for a pipeline of one rank.
/// Errors: those of the functions, of WindowMessages::send and of the groups.
void run_window(const pipeline::Schedule& schedule, int rank, WindowMessages* messages,
                const StageWork& work);

/// Random numbers of a pipeline's forward passes, as of dropout: those of a stage and a micro-batch
/// are the same in whatever order the schedule has them.
///
/// In each window the rank's default generators, the common stream, go on by one number. The
/// forward pass of a stage on a micro-batch draws from streams that are derived from the common
/// state then. A recomputation (operators/checkpoint.h) draws what its forward pass drew. Ranks
/// whose streams were in the same state before a window are so behind it, whatever their stages
/// draw, and checkpoints need no other state. Threads: the rank's thread.
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
