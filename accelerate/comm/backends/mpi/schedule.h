/// A collective as a coroutine: it starts transfers, waits for them with co_await, and computes in
/// between. Nothing blocks: any thread may drive a schedule at any time.
///
///   Schedule ping(Transfers to, Transfers from, char* byte) {
///     to.send(byte, 1, 1);
///     co_await to;
///     from.receive(byte, 1, 1);
///     co_await from;
///   }
///
/// A schedule may co_await another one. What a coroutine refers to has to outlive it.
/// Errors:  what the coroutine throws comes out of advance().
/// Threads: one at a time.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "accelerate/comm/backends/mpi/transfers.h"

namespace accelerate::internal {

class Schedule {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  Schedule() = default;
  Schedule(Schedule&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Schedule& operator=(Schedule&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Schedule() {
    if (handle_) handle_.destroy();
  }

  /// Whether it can go on: what it waits for has arrived. Errors: those of the transfers.
  bool ready() const;

  /// Goes on to its next wait. Returns whether it has come to its end. \pre ready().
  bool advance();

  /// What it waits for; null before the first and after the last wait.
  Transfers* awaited() const;

  // What lets another schedule wait for this one.
  bool await_ready() const { return false; }
  Handle await_suspend(Handle parent) const;
  void await_resume() const;

 private:
  explicit Schedule(Handle handle) : handle_(handle) {}

  Handle handle_;
};

struct Schedule::promise_type {
  struct AwaitTransfers {
    Transfers& transfers;
    bool await_ready() const { return transfers.done(); }
    void await_suspend(Handle self) const {
      self.promise().root->awaited = &transfers;
      self.promise().root->innermost = self;
    }
    void await_resume() const {}
  };
  struct ReturnToParent {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle self) const noexcept {
      if (self.promise().parent) return self.promise().parent;
      return std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  Schedule get_return_object() { return Schedule(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() const noexcept { return {}; }
  ReturnToParent final_suspend() const noexcept { return {}; }
  void return_void() {}
  void unhandled_exception() { error = std::current_exception(); }
  AwaitTransfers await_transform(Transfers& transfers) { return {transfers}; }
  const Schedule& await_transform(const Schedule& schedule) { return schedule; }

  promise_type* root = this;  // the outermost schedule
  Handle parent;
  std::exception_ptr error;
  // Used in the root only:
  Transfers* awaited = nullptr;
  Handle innermost;
};

inline Transfers* Schedule::awaited() const {
  return handle_ ? handle_.promise().awaited : nullptr;
}

inline bool Schedule::ready() const {
  Transfers* awaited = handle_.promise().awaited;
  return awaited == nullptr || awaited->done();
}

inline bool Schedule::advance() {
  promise_type& promise = handle_.promise();
  const bool begun = std::exchange(promise.awaited, nullptr) != nullptr;
  (begun ? promise.innermost : handle_).resume();
  if (promise.error) std::rethrow_exception(promise.error);
  return handle_.done();
}

inline Schedule::Handle Schedule::await_suspend(Handle parent) const {
  handle_.promise().parent = parent;
  handle_.promise().root = parent.promise().root;
  return handle_;
}

inline void Schedule::await_resume() const {
  if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
}

}  // namespace accelerate::internal
