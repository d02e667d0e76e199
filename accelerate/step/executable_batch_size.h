/// Tries a function with smaller and smaller batches until they fit into memory.
///
///   auto train = find_executable_batch_size(
///       [&](int64_t batch_size, int epochs) { ... return accuracy; },
///       {.starting_batch_size = 256, .group = accelerator.state().group()});
///   double accuracy = train(/*epochs=*/3);   // the batch size comes first, and from here
///
/// Each try begins with as much memory as the first: what the function made is gone, so models and
/// optimizers that are to be made anew belong into it, and what it keeps outside of itself (a
/// prepared model, optimizer state) is the caller's to release or restore.
///
/// With a group, ranks try the same batch size: they tell each other after each try, and if one had
/// too little memory, all try again, and what the others returned is dropped. This works where a
/// rank that fails leaves nobody waiting:
///   - the function has no collectives: measure one step of the bare module, forward, backward and
///     optimizer, and train with the batch size that comes out; or
///   - all ranks run out of memory at the same place, as equal models with equal batches do. After
///     an error in a backward pass a data-parallel model must be prepared anew.
/// A rank that runs out of memory alone while the others are in a collective cannot be helped by
/// agreeing afterwards: they do not get to the agreement. That ends in the backend's error, named
/// by the simulator at once and found by others at their time-out. Other errors of one rank are
/// thrown on that rank without telling the others.
///
/// Errors: what the function throws, unless should_reduce_batch_size (memory.h) says that less work
///         might help; c10::Error when nothing is left to try, and when ranks' batch sizes differ;
///         c10::ValueError for a reduce function that does not reduce.
/// Collective: local, or as the group, each call and each try of it.
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

#include "accelerate/comm/operations.h"
#include "accelerate/state/memory.h"

namespace accelerate {

struct FindExecutableBatchSizeOptions {
  /// Samples, as the function understands them: usually per rank.
  int64_t starting_batch_size = 128;
  /// Gets the batch size that was too large and returns the next one, a smaller one; the last is 1.
  /// Empty: nine tenths, rounded down.
  std::function<int64_t(int64_t batch_size)> reduce_batch_size_fn = {};
  /// Ranks that must use the same batch size; null: this rank alone.
  ProcessGroupPtr group = {};
};

namespace internal {

// Which batch size to try next.
class BatchSizeSearch {
 public:
  explicit BatchSizeSearch(FindExecutableBatchSizeOptions options);

  int64_t batch_size() const { return batch_size_; }
  // Releases memory. Errors: c10::Error when there is none.
  int64_t begin_try();
  // Whether the try's result stands; throws `failure` where smaller batches do not help. Otherwise
  // the next try is with fewer.
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

// Only a function that is not overloaded and no template says what it takes.
template <typename Function>
concept HasSignature = requires(Function& function) { std::function{function}; };

}  // namespace internal

/// A function whose first parameter is an integer, the batch size. Of functions that are overloaded
/// or templates that shows when they are called.
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
    static_assert(!std::is_reference_v<Result>, "return a value: tries do not outlive themselves");
    while (true) {
      const int64_t batch_size = search_.begin_try();
      std::exception_ptr failure;
      if constexpr (std::is_void_v<Result>) {
        try {
          std::invoke(function_, batch_size, arguments...);
        } catch (...) {
          failure = std::current_exception();
        }
        if (search_.end_try(std::move(failure))) return;
      } else {
        std::optional<Result> result;
        try {
          result.emplace(std::invoke(function_, batch_size, arguments...));
        } catch (...) {
          failure = std::current_exception();
        }
        if (search_.end_try(std::move(failure))) return *std::move(result);
      }
    }
  }

  /// What the next call starts with: after one that returned, the batch size that fits.
  int64_t batch_size() const { return search_.batch_size(); }

 private:
  Function function_;
  internal::BatchSizeSearch search_;
};

/// See the top of this file. Local; what it returns is collective over the group, if there is one.
template <typename Function>
  requires TakesBatchSize<std::decay_t<Function>>
ExecutableBatchSize<std::decay_t<Function>> find_executable_batch_size(
    Function&& function, FindExecutableBatchSizeOptions options = {}) {
  return {std::forward<Function>(function), std::move(options)};
}

}  // namespace accelerate
