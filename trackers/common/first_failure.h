/// Runs steps that do not depend on each other, and throws the first failure after all of them.
///
///   FirstFailure failure;
///   for (AppendFile& file : files) failure.attempt([&] { file.flush(); });
///   failure.rethrow();
///
/// Threads: one.
#pragma once

#include <exception>

namespace accelerate::trackers {

class FirstFailure {
 public:
  template <typename Step>
  void attempt(const Step& step) {
    try {
      step();
    } catch (...) {
      if (!first_) first_ = std::current_exception();
    }
  }
  /// Throws what the first failed step threw, if any did.
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

}  // namespace accelerate::trackers
