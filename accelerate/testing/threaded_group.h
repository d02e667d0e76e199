/// A process group whose ranks are threads of one process, for unit tests of collectives.
///
///     run_ranks(3, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) { ... });
///
/// It knows all-gather and broadcast of CPU tensors.
/// Errors: what a rank's body throws ends the process, for the others wait for it.
/// Threads: one per rank.
#pragma once

#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate {

/// Where the ranks meet.
struct Meeting {
  explicit Meeting(int size) : barrier(size), tensors(static_cast<size_t>(size)) {}

  std::barrier<> barrier;
  std::vector<at::Tensor> tensors;
};

class ThreadedGroup : public c10d::ProcessGroup {
 public:
  ThreadedGroup(Meeting& meeting, int rank)
      : c10d::ProcessGroup(rank, static_cast<int>(meeting.tensors.size())), meeting_(meeting) {}

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return meet(input, [&] { output.copy_(at::cat(meeting_.tensors)); });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return meet(tensors[0], [&] {
      if (getRank() == options.rootRank) return;
      tensors[0].copy_(meeting_.tensors[static_cast<size_t>(options.rootRank)]);
    });
  }

 private:
  struct Done : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };

  // All ranks show their tensors, look at the others', and go on together.
  template <typename Look>
  c10::intrusive_ptr<c10d::Work> meet(const at::Tensor& own, const Look& look) {
    meeting_.tensors[static_cast<size_t>(getRank())] = own;
    meeting_.barrier.arrive_and_wait();
    look();
    meeting_.barrier.arrive_and_wait();
    return c10::make_intrusive<Done>();
  }

  Meeting& meeting_;
};

/// Runs `body` once per rank, at the same time.
inline void run_ranks(
    int size, const std::function<void(const c10::intrusive_ptr<c10d::ProcessGroup>&)>& body) {
  Meeting meeting(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { body(c10::make_intrusive<ThreadedGroup>(meeting, rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace accelerate
