/// Work behind one simulated rank's own, on the rank's own thread: steps run when the rank asks its
/// Runtime for something, at moments drawn from the seed.
///
/// Each task draws how often it gets its turn: at every second occasion up to one in 64. So with
/// one seed it is done at once, with another only when somebody waits for it.
///
/// A step that throws ends its task, and wait() throws that once. Of a rank that is dead (see
/// FileFault) no step runs any more.
/// Threads: the rank's, holding the baton.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "accelerate/platform/background_task.h"
#include "simulator/core/random.h"
#include "simulator/core/scheduler.h"

namespace accelerate::simulator {

class Background {
 public:
  /// `check_alive` throws when the rank is dead; `scheduler` throws when the run is over.
  struct Surroundings {
    std::function<void()> check_alive;
    std::function<Scheduler&()> scheduler;
  };
  Background(uint64_t seed, int rank, Surroundings surroundings);
  ~Background();

  std::unique_ptr<BackgroundTask> start(BackgroundStep step);

  /// An occasion: runs a step or not. Nothing while a step runs or the stack unwinds.
  void occasion();

 private:
  class Task;
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate::simulator
