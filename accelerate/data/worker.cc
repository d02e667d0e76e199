#include "accelerate/data/worker.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

thread_local const WorkerInfo* current_worker = nullptr;

// Scatters neighbouring places over all seeds (the finisher of SplitMix64): generators only take
// 32 bits of a seed, and passes that overlapped in their seeds would draw the same sequences.
uint64_t batch_seed(uint64_t base_seed, int64_t place) {
  uint64_t bits = base_seed + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(place) + 1);
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  return bits ^ bits >> 31;
}

}  // namespace

const WorkerInfo* worker_info() { return current_worker; }

namespace internal {

OrderedWorkers::Shared::Shared(const Options& options, Task task)
    : options(options),
      task(std::move(task)),
      slots(static_cast<size_t>(options.capacity), Slot::kEmpty),
      errors(static_cast<size_t>(options.capacity)) {}

OrderedWorkers::OrderedWorkers(const Options& options, Task task)
    : shared_(std::make_shared<Shared>(options, std::move(task))) {
  threads_.reserve(static_cast<size_t>(options.num_workers));
  try {
    for (int id = 0; id < options.num_workers; ++id) {
      threads_.emplace_back([shared = shared_, id] { shared->work(id); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

OrderedWorkers::~OrderedWorkers() { stop(); }

void OrderedWorkers::stop() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_all();
  for (std::thread& thread : threads_) {
    if (timed_out_) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void OrderedWorkers::Shared::work(int id) {
  const uint64_t seed = options.base_seed + static_cast<uint64_t>(id);
  WorkerInfo info{.id = id,
                  .num_workers = options.num_workers,
                  .seed = seed,
                  .generator = at::detail::createCPUGenerator(seed)};
  current_worker = &info;
  bool started = false;
  for (int64_t i = id;; i += options.num_workers) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return stopping || i < taken + options.capacity; });
      if (stopping) return;
    }
    Slot result = Slot::kFailed;
    std::exception_ptr error;
    try {
      if (!std::exchange(started, true) && options.init) options.init(info);
      info.generator.set_current_seed(
          batch_seed(options.base_seed, options.place ? options.place(i) : i));
      result = task(i, slot_of(i)) ? Slot::kReady : Slot::kEnd;
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard<std::mutex> lock(mutex);
      slots[slot_of(i)] = result;
      errors[slot_of(i)] = error;
    }
    changed.notify_all();
    if (result != Slot::kReady) return;
  }
}

bool OrderedWorkers::wait(size_t* slot) {
  const Options& options = shared_->options;
  const int64_t batch = shared_->taken;  // only this thread changes it
  *slot = shared_->slot_of(batch);
  const Slot& state = shared_->slots[*slot];
  std::unique_lock<std::mutex> lock(shared_->mutex);
  auto made = [&] { return state != Slot::kEmpty; };
  if (options.timeout > absl::ZeroDuration() && options.timeout < absl::InfiniteDuration()) {
    timed_out_ = !shared_->changed.wait_for(lock, absl::ToChronoNanoseconds(options.timeout), made);
    TORCH_CHECK(!timed_out_, "data loader: batch ", batch, " did not come from worker ",
                batch % options.num_workers, " within ", absl::FormatDuration(options.timeout));
  } else {
    shared_->changed.wait(lock, made);
  }
  if (state == Slot::kFailed) std::rethrow_exception(shared_->errors[*slot]);
  return state == Slot::kReady;
}

void OrderedWorkers::release() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->slots[shared_->slot_of(shared_->taken)] = Slot::kEmpty;
    ++shared_->taken;
  }
  shared_->changed.notify_all();
}

}  // namespace internal
}  // namespace accelerate
