/// Scopes in which code of a thread finds a value: an address, a flag.
///
///     struct MetricValues : internal::ThreadScope<MetricValues, bool> {
///       MetricValues() : ThreadScope(true) {}
///     };
///
/// Each kind of scope has values of its own. Scopes nest; the innermost one's value counts.
/// Threads: a scope acts on its own thread.
#pragma once

#include <utility>

namespace accelerate::internal {

template <typename Kind, typename T>
class ThreadScope {
 public:
  explicit ThreadScope(T value) : outer_(std::exchange(current_, value)) {}
  ~ThreadScope() { current_ = outer_; }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

  /// That of the innermost scope that lives on this thread; T() without one.
  static T current() { return current_; }

 private:
  static inline thread_local T current_ = T();
  const T outer_;
};

}  // namespace accelerate::internal
