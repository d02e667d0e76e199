#include "accelerate/testing/threaded_group.h"

#include <chrono>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "accelerate/comm/backends/backend_registry.h"

namespace accelerate {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size) {
  auto backend =
      make_backend("gloo", {.store = store, .rank = rank, .size = size, .timeout = kTimeout});
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace

void run_ranks(int size,
               const std::function<void(const c10::intrusive_ptr<c10d::ProcessGroup>&)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  // A rank that is done must not look like one that died.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto& group = groups[static_cast<size_t>(rank)];
      group = make_group(store, rank, size);
      body(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace accelerate
