#include "simulator/cluster/background.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/cleanup/cleanup.h"

namespace accelerate::simulator {
namespace {

// Distinct from the random streams of ranks and of faults.
constexpr uint64_t kBackgroundStreams = uint64_t{1} << 41;

// After this many steps without an end, a waiting task counts as blocked: it is stalled if all
// other ranks are.
constexpr int kMaxAttempts = 10'000;
// The pause between the first attempts is a millisecond, later a second.
constexpr int kQuickAttempts = 1'000;

}  // namespace

struct Background::Shared {
  Surroundings surroundings;
  DeterministicRandom random;
  std::vector<Task*> tasks;  // unfinished tasks, oldest first
  bool in_step = false;
};

class Background::Task final : public BackgroundTask {
 public:
  Task(std::shared_ptr<Shared> shared, BackgroundStep step)
      : shared_(std::move(shared)),
        step_(std::move(step)),
        one_in_(uint64_t{2} << shared_->random.below(6)) {
    shared_->tasks.push_back(this);
  }

  ~Task() override {
    try {
      finish();
    } catch (...) {
      // The rank is dead or stalled, and a destructor cannot report an error.
    }
    end();
  }

  bool is_done() override {
    if (is_done_ || shared_->in_step) return is_done_;
    shared_->surroundings.check_alive();
    step();
    shared_->surroundings.check_alive();
    // A caller that polls until the task is done must not keep other ranks from running.
    if (!is_done_) shared_->surroundings.scheduler().poll();
    return is_done_;
  }

  void wait() override {
    finish();
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  // Draws whether the task runs a step now.
  bool is_next() { return shared_->random.below(one_in_) == 0; }

  void step() {
    shared_->in_step = true;
    const absl::Cleanup stepped = [this] { shared_->in_step = false; };
    try {
      if (step_()) end();
    } catch (...) {
      error_ = std::current_exception();
      end();
    }
  }

 private:
  void finish() {
    TORCH_CHECK(is_done_ || !shared_->in_step, "a background step waits for a background task");
    for (int attempts = 0; !is_done_; ++attempts) {
      shared_->surroundings.check_alive();
      step();
      shared_->surroundings.check_alive();
      if (is_done_) return;
      Scheduler& scheduler = shared_->surroundings.scheduler();
      const absl::Duration pause =
          attempts < kQuickAttempts ? absl::Milliseconds(1) : absl::Seconds(1);
      if (attempts < kMaxAttempts) {
        scheduler.sleep_for(pause);
        continue;
      }
      auto describe = [] { return std::string("in a background task that is not done"); };
      if (scheduler.block(describe, {.at = scheduler.now() + pause}) != Wake::kStalled) continue;
      shared_->surroundings.check_alive();
      end();
      throw c10::DistBackendError(scheduler.stall_report());
    }
  }

  void end() {
    is_done_ = true;
    std::erase(shared_->tasks, this);
  }

  const std::shared_ptr<Shared> shared_;
  const BackgroundStep step_;
  const uint64_t one_in_;
  bool is_done_ = false;
  std::exception_ptr error_;
};

Background::Background(uint64_t seed, int rank, Surroundings surroundings)
    : shared_(std::make_shared<Shared>(
          Shared{.surroundings = std::move(surroundings),
                 .random = DeterministicRandom::stream(seed, kBackgroundStreams + rank)})) {}

Background::~Background() = default;

std::unique_ptr<BackgroundTask> Background::start(BackgroundStep step) {
  return std::make_unique<Task>(shared_, std::move(step));
}

void Background::occasion() {
  if (shared_->in_step || shared_->tasks.empty() || std::uncaught_exceptions() > 0) return;
  // A step may end tasks.
  const std::vector<Task*> tasks = shared_->tasks;
  for (Task* task : tasks) {
    if (std::find(shared_->tasks.begin(), shared_->tasks.end(), task) == shared_->tasks.end()) {
      continue;
    }
    if (task->is_next()) task->step();
  }
}

}  // namespace accelerate::simulator
