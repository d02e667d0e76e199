/// Threads that prepare a loader's batches ahead of the loop.
///
/// Worker i mod n makes batch i, whatever the threads' timing, and batches are returned in order;
/// at most `capacity` batches are ahead. Before each batch its worker's generator is seeded with
/// the base seed and the batch's place, so a dataset's random numbers depend neither on the number
/// of workers nor on where a loop was interrupted and resumed.
/// Errors: an exception of making a batch is thrown when that batch is taken.
/// Mirrors: torch.utils.data's worker processes and get_worker_info.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Generator.h>

#include "absl/time/time.h"

namespace accelerate {

/// The worker on whose thread a dataset is read.
struct WorkerInfo {
  int id = 0;
  int num_workers = 1;
  /// The pass's base seed + id.
  uint64_t seed = 0;
  /// The generator of the batch that is being made, for random augmentation: LibTorch's default
  /// generator is shared by all threads. While the worker is initialised it is seeded with `seed`.
  at::Generator generator;
};

/// The worker that runs this thread; null on other threads. Valid while the dataset is read.
const WorkerInfo* worker_info();

namespace internal {

class OrderedWorkers {
 public:
  struct Options {
    int num_workers = 1;
    /// Batches ahead of the consumer. At least 1.
    int64_t capacity = 1;
    uint64_t base_seed = 0;
    /// The place of batch i, which no other batch of this base seed has; asked by the worker before
    /// it makes the batch. Empty: i.
    std::function<int64_t(int64_t i)> place;
    /// The consumer's time-out for a batch; zero or infinite: none.
    absl::Duration timeout;
    std::function<void(const WorkerInfo&)> init;
  };

  /// Makes batch i into slot i mod capacity and returns true, or false if there is none. It owns
  /// all it uses, because a hanging worker outlives this object after a time-out.
  using Task = std::function<bool(int64_t i, size_t slot)>;

  /// Starts the threads, which begin with batch 0.
  OrderedWorkers(const Options& options, Task task);
  /// Waits for the batches being made, and ends the threads. After a time-out it does not wait.
  ~OrderedWorkers();
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  /// Waits for the next batch and calls take(slot), or returns false at the end. There are no
  /// batches after one that failed.
  /// Errors: those of making the batch; c10::Error after the time-out.
  template <typename Take>
  bool next(Take&& take) {
    size_t slot = 0;
    if (!wait(&slot)) return false;
    take(slot);
    release();
    return true;
  }

 private:
  enum class Slot { kEmpty, kReady, kEnd, kFailed };

  // The state that the threads share with this object; they may outlive it.
  struct Shared {
    Shared(const Options& options, Task task);
    void work(int id);
    size_t slot_of(int64_t i) const { return static_cast<size_t>(i % options.capacity); }

    const Options options;
    const Task task;
    std::mutex mutex;
    std::condition_variable changed;
    bool stopping = false;
    int64_t taken = 0;
    std::vector<Slot> slots;
    std::vector<std::exception_ptr> errors;
  };

  void stop();
  bool wait(size_t* slot);
  void release();

  std::shared_ptr<Shared> shared_;
  bool timed_out_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace internal
}  // namespace accelerate
