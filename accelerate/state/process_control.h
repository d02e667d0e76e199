/// Letting some ranks go first, and letting only some ranks run a function.
///
/// Mirrors: accelerate state.py, PartialState.main_process_first, on_main_process and their like.
/// Threads: the rank's thread.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerate/comm/operations.h"

namespace accelerate {

/// A scope that some ranks, the first ones, go through before the others enter it. It ends when all
/// ranks have gone through it.
///
///   auto scope = accelerator.main_process_first();
///   Dataset data = load_or_prepare();  // rank 0 prepares, the others find it done
///
/// An exception that leaves the scope on one rank reaches all: the others' constructor, or the end
/// of their scope, throws c10::DistBackendError naming that rank. So no rank waits for one that
/// does not come. How long ranks wait for the first ones is the process group's time-out.
/// Collective at both ends; a null group stands for one rank alone.
/// Differs: HF Accelerate's others hang if the main process throws, and it does not wait at the
/// end.
class OrderedScope {
 public:
  /// `is_first`: whether this rank goes first. `name` is for messages; a literal.
  OrderedScope(ProcessGroupPtr group, bool is_first, const char* name);
  /// Throws if another rank failed, unless this one is failing.
  ~OrderedScope() noexcept(false);
  OrderedScope(const OrderedScope&) = delete;
  OrderedScope& operator=(const OrderedScope&) = delete;

  /// Calls `body` as the rest of the scope.
  template <typename Body>
  auto run(Body&& body) && {
    try {
      return std::invoke(std::forward<Body>(body));
    } catch (...) {
      note_failure();
      throw;
    }
  }

 private:
  // Keeps the text of the exception that is being handled.
  void note_failure();
  // Waits for all ranks; throws if another one failed and this one did not.
  void synchronise(bool failed);

  ProcessGroupPtr group_;
  const bool is_first_;
  const char* const name_;
  const int exceptions_;  // that were under way when the scope began
  std::string failure_ = "an exception";
};

/// A function that runs on some ranks only, and does nothing on the others.
template <typename Function>
class RestrictedFunction {
 public:
  RestrictedFunction(bool runs, Function function) : runs_(runs), function_(std::move(function)) {}

  /// Whether calls run the function on this rank.
  bool runs() const { return runs_; }

  /// What the function returns, where it runs; otherwise nothing.
  template <typename... Args>
  auto operator()(Args&&... args) {
    using Result = std::invoke_result_t<Function&, Args...>;
    if constexpr (std::is_void_v<Result>) {
      if (runs_) std::invoke(function_, std::forward<Args>(args)...);
    } else {
      using Optional = std::optional<std::remove_cvref_t<Result>>;
      return runs_ ? Optional(std::invoke(function_, std::forward<Args>(args)...)) : Optional();
    }
  }

 private:
  bool runs_;
  Function function_;
};

}  // namespace accelerate
