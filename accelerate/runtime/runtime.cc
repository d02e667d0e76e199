#include "accelerate/runtime/runtime.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "accelerate/base/enum_text.h"

namespace accelerate {
namespace {
thread_local Runtime* current_runtime = nullptr;

// How soon a step that had nothing to do is asked again.
constexpr auto kPoll = std::chrono::milliseconds(5);

// Linux knows a nice value for each thread; those that it makes begin with its own. Where a loop
// needs every core, this leaves about a tenth of them to what goes on behind it.
void yield_to_training() {
  constexpr int kNice = 10;
  // A process with a higher value keeps it.
  if (::getpriority(PRIO_PROCESS, ::gettid()) < kNice) {
    ::setpriority(PRIO_PROCESS, ::gettid(), kNice);
  }
}

// As in "ranks 0,1,5". Groups are many and a name is part of many keys, so the name of a large
// group has the first and last of its ranks and a hash of all.
std::string name_of(absl::Span<const int> ranks) {
  constexpr size_t kMostInFull = 16;
  if (ranks.size() <= kMostInFull) return absl::StrCat("ranks ", absl::StrJoin(ranks, ","));
  // FNV-1a over whole words. All ranks compute it alike, whatever machine they run on.
  uint64_t hash = 0xCBF29CE484222325u;
  for (int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001B3u;
  return absl::StrCat("ranks ", ranks[0], ",", ranks[1], ",...,", ranks.back(), " (", ranks.size(),
                      " ranks, ", absl::Hex(hash, absl::kZeroPad16), ")");
}

class ThreadTask final : public BackgroundTask {
 public:
  ThreadTask(Runtime& runtime, BackgroundStep step)
      : thread_([this, &runtime, step = std::move(step)] {
          const RuntimeScope scope(runtime);
          yield_to_training();
          try {
            while (!step()) std::this_thread::sleep_for(kPoll);
          } catch (...) {
            error_ = std::current_exception();
          }
          done_.store(true, std::memory_order_release);
        }) {}
  ~ThreadTask() override { join(); }

  bool is_done() override { return done_.load(std::memory_order_acquire); }

  void wait() override {
    join();
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  std::exception_ptr error_;
  std::atomic<bool> done_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

Runtime::Runtime(Topology topology, Environment environment)
    : topology_(topology), environment_(std::move(environment)) {}

Runtime::~Runtime() = default;

Runtime& Runtime::current() {
  TORCH_CHECK(current_runtime != nullptr,
              "no accelerate::Runtime on this thread: start the program with accelerate::run(), "
              "or install one with accelerate::RuntimeScope");
  return *current_runtime;
}

Runtime* Runtime::find_current() { return current_runtime; }

bool Runtime::is_on_first_rank() {
  return current_runtime == nullptr || current_runtime->topology().rank == 0;
}

void tag_memory(const at::Tensor& tensor, MemoryKind kind) {
  if (current_runtime != nullptr) current_runtime->tag_memory(tensor, kind);
}

FreeMemory Runtime::free_memory() const {
  FreeMemory free;
  const std::optional<DeviceMemoryUse> use = device_memory();
  if (use && !device().is_cpu()) {
    free.accelerators.emplace_back(std::max<int>(device().index(), 0), use->capacity - use->in_use);
  }
  return free;
}

std::string Runtime::device_family() const {
  switch (device().type()) {
    case c10::kCUDA:
    case c10::kHIP: return "gpu";
    case c10::kXLA: return "tpu";
    // A vendor's plug-in: "npu", "mlu", ...
    default: return c10::DeviceTypeName(device().type(), /*lower_case=*/true);
  }
}

std::unique_ptr<BackgroundTask> Runtime::start_background(BackgroundStep step,
                                                          BackgroundStart /*start*/) {
  return std::make_unique<ThreadTask>(*this, std::move(step));
}

std::vector<std::string> Runtime::accelerator_families() const {
  std::string family = device_family();
  if (family == "cpu") return {};
  return {std::move(family)};
}

GroupOptions Runtime::resolve_group(const GroupOptions& options) {
  GroupOptions resolved = options;
  std::vector<int>& ranks = resolved.ranks;
  if (ranks.empty()) {
    ranks.resize(topology_.world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const auto check = [&](bool fits, const auto&... why) {
    TORCH_CHECK_VALUE(fits, "new_group", options.axis ? " along " : "",
                      options.axis ? to_string(*options.axis) : "", ": rank ", topology_.rank,
                      " asks for ranks ", absl::StrJoin(ranks, ","), why...);
  };
  check(std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end(),
        ", which must be ascending and distinct");
  check(ranks.front() >= 0 && ranks.back() < topology_.world_size, ", which do not fit a world of ",
        topology_.world_size);
  check(std::ranges::binary_search(ranks, topology_.rank), " and is not among them");
  if (resolved.name.empty()) resolved.name = name_of(ranks);
  // A group made again under an old name must not meet what is left of the old one.
  const int made_before = groups_made_[resolved.name]++;
  if (made_before > 0) absl::StrAppend(&resolved.name, "#", made_before);
  return resolved;
}

RuntimeScope::RuntimeScope(Runtime& runtime)
    : previous_(std::exchange(current_runtime, &runtime)) {}

RuntimeScope::~RuntimeScope() { current_runtime = previous_; }

}  // namespace accelerate
