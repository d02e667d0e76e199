/// Threads that prepare a loader's batches ahead of the loop.
///
/// Batch i is made by worker i mod n, whatever the threads' timing, and handed out in order; at
/// most `capacity` batches are made and not yet taken. Before each batch its worker's generator is
/// seeded anew, with the base seed and the batch's place: so what a dataset draws from it depends
/// neither on the number of workers nor on where a loop was left and gone on with.
/// Errors: what making a batch throws waits for its turn and is thrown where the batch is taken.
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

/// Of the worker on whose thread a dataset is read.
struct WorkerInfo {
  int id = 0;
  int num_workers = 1;
  /// The pass's base seed + id.
  uint64_t seed = 0;
  /// Of the batch that is being made. Random augmentation draws from here: LibTorch's default
  /// generator is shared by all threads. While the worker is initialised it is seeded with `seed`.
  at::Generator generator;
};

/// The worker's whose thread this is; null on other threads. Valid while the dataset is read.
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
    /// How long the consumer waits for a batch; zero or infinite: for ever.
    absl::Duration timeout;
    std::function<void(const WorkerInfo&)> init;
  };

  /// Makes batch i into slot i mod capacity and returns true, or false if there is none. It owns
  /// all it uses: a worker that hangs is left behind after a time-out.
  using Task = std::function<bool(int64_t i, size_t slot)>;

  /// Starts the threads, which begin with batch 0.
  OrderedWorkers(const Options& options, Task task);
  /// Waits for the batches being made, and ends the threads. After a time-out it does not wait.
  ~OrderedWorkers();
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  /// Waits for the next batch and calls take(slot), or returns false at the end. Batches after one
  /// that failed are not given.
  /// Errors: as said above; c10::Error after the time-out.
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

  // What the threads share with this object, and outlive it with.
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
