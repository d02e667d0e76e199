/// Tries a function with smaller and smaller batches until they fit into memory.
///
///   auto train = find_executable_batch_size(
///       [&](int64_t batch_size, int epochs) { ... return accuracy; },
///       {.starting_batch_size = 256, .group = accelerator.state().group()});
///   double accuracy = train(/*epochs=*/3);   // the search passes the batch size
///
/// Each try starts with as much memory as the first: objects that the function made are destroyed.
/// Models and optimizers that each try needs anew should be made in the function; the caller
/// releases or restores what the function keeps elsewhere (a prepared model, optimizer state).
///
/// With a group, ranks try the same batch size: they exchange the outcome of each try, and if one
/// rank had too little memory, all try again, and the other ranks' results are dropped. This works
/// where a rank that fails leaves no other rank waiting:
///   - the function has no collectives: measure one step of the bare module, forward, backward and
///     optimizer, and train with the batch size that was found; or
///   - all ranks run out of memory at the same place, as equal models with equal batches do. After
///     an error in a backward pass a data-parallel model must be prepared anew.
/// If a rank runs out of memory alone while the others are in a collective, they do not reach the
/// exchange, and the backend reports the error: the simulator at once, real backends after their
/// time-out. Other errors of one rank are thrown on that rank only.
///
/// Errors: the function's exceptions, except those for which should_reduce_batch_size (memory.h)
///         holds; c10::Error when no batch size is left, and when ranks' batch sizes differ;
///         c10::ValueError for a reduce function that does not reduce.
/// Collective: each call and each try, over the group; local without one.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/memory.py, find_executable_batch_size.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "accelerate/comm/process_group.h"
#include "accelerate/state/memory.h"

namespace accelerate {

struct FindExecutableBatchSizeOptions {
  /// In samples, usually per rank.
  int64_t starting_batch_size = 128;
  /// Returns the batch size to try after one that was too large; it must be smaller, and the last
  /// one is 1. Empty: nine tenths, rounded down.
  std::function<int64_t(int64_t batch_size)> reduce_batch_size_fn = {};
  /// The ranks that must use the same batch size; null: this rank alone.
  ProcessGroupPtr group = {};
};

namespace internal {

// Which batch size to try next.
class BatchSizeSearch {
 public:
  explicit BatchSizeSearch(FindExecutableBatchSizeOptions options);

  int64_t batch_size() const { return batch_size_; }
  // Releases memory. Errors: c10::Error when no batch size is left.
  int64_t begin_try();
  // Whether the try's result stands; otherwise the next try has a smaller batch size. Throws
  // `failure` where smaller batches do not help.
  bool end_try(std::exception_ptr failure);

 private:
  void reduce();

  const FindExecutableBatchSizeOptions options_;
  int64_t batch_size_;
  std::string last_error_;  // on this rank
};

template <typename Signature>
constexpr bool kFirstIsInteger = false;
template <typename Result, typename First, typename... Rest>
constexpr bool kFirstIsInteger<std::function<Result(First, Rest...)>> =
    std::integral<std::remove_cvref_t<First>> && !std::same_as<std::remove_cvref_t<First>, bool>;

// The parameters of overloaded functions and templates are not known.
template <typename Function>
concept HasSignature = requires(Function& function) { std::function{function}; };

}  // namespace internal

/// A function whose first parameter is an integer, the batch size. Overloaded functions and
/// templates are checked when they are called.
template <typename Function>
concept TakesBatchSize =
    !internal::HasSignature<Function> ||
    internal::kFirstIsInteger<decltype(std::function{std::declval<Function&>()})>;

/// What find_executable_batch_size returns: the function without its first parameter. It remembers
/// the batch size, so that the next call starts with the one that worked.
template <typename Function>
class ExecutableBatchSize {
 public:
  ExecutableBatchSize(Function function, FindExecutableBatchSizeOptions options)
      : function_(std::move(function)), search_(std::move(options)) {}

  /// function(batch size, arguments...) with the largest batch size tried that fits. Every try gets
  /// the same arguments, as lvalues.
  template <typename... Arguments>
    requires std::invocable<Function&, int64_t, std::remove_reference_t<Arguments>&...>
  auto operator()(Arguments&&... arguments) {
    using Result = std::invoke_result_t<Function&, int64_t, std::remove_reference_t<Arguments>&...>;
    static_assert(!std::is_reference_v<Result>,
                  "return a value: objects of a try are destroyed with it");
    while (true) {
      const int64_t batch_size = search_.begin_try();
      std::exception_ptr failure;
      std::optional<std::conditional_t<std::is_void_v<Result>, std::monostate, Result>> result;
      try {
        if constexpr (std::is_void_v<Result>) {
          std::invoke(function_, batch_size, arguments...);
          result.emplace();
        } else {
          result.emplace(std::invoke(function_, batch_size, arguments...));
        }
      } catch (...) {
        failure = std::current_exception();
      }
      if (search_.end_try(std::move(failure))) return static_cast<Result>(*std::move(result));
    }
  }

  /// The batch size with which the next call starts; after a call, the one that fits.
  int64_t batch_size() const { return search_.batch_size(); }

 private:
  Function function_;
  internal::BatchSizeSearch search_;
};

/// See the top of this file. Local; the returned function is collective over the group, if any.
template <typename Function>
  requires TakesBatchSize<std::decay_t<Function>>
ExecutableBatchSize<std::decay_t<Function>> find_executable_batch_size(
    Function&& function, FindExecutableBatchSizeOptions options = {}) {
  return {std::forward<Function>(function), std::move(options)};
}

}  // namespace accelerate
