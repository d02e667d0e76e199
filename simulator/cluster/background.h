/// Background tasks of one simulated rank, on the rank's own thread: steps run when the rank calls
/// its Runtime, at moments drawn from the seed.
///
/// Each task draws how often a step runs: at one in 2 up to one in 64 occasions. With one seed a
/// task therefore ends at once, with another only in wait().
///
/// A step that throws ends its task, and wait() throws that exception once. A dead rank (see
/// FileFault) runs no further steps. Threads: the rank's thread, which holds the baton.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "accelerate/runtime/runtime.h"
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

  /// Runs a step of each task, or not, as drawn. Does nothing while a step runs or the stack
  /// unwinds.
  void occasion();

 private:
  class Task;
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate::simulator
