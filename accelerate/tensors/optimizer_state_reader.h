/// Reads an optimizer's state while training goes on, as an asynchronous save does.
#pragma once

namespace accelerate {

class OptimizerStateReader {
 public:
  virtual ~OptimizerStateReader() = default;

  /// Returns when it has read all, for the state is about to change. Throws nothing. By the rank's
  /// thread.
  virtual void finish() noexcept = 0;
};

}  // namespace accelerate
