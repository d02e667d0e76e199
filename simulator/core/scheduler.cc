#include "simulator/core/scheduler.h"

#include <algorithm>
#include <thread>

#include "absl/log/absl_check.h"

namespace accelerate::simulator {

Scheduler::Scheduler(int num_tasks, uint64_t seed, Hooks hooks)
    : hooks_(std::move(hooks)), random_(seed) {
  ABSL_CHECK_GT(num_tasks, 0);
  tasks_.reserve(num_tasks);
  for (int task = 0; task < num_tasks; ++task) tasks_.push_back(std::make_unique<Task>());
}

Scheduler::~Scheduler() = default;

void Scheduler::run(const std::function<void(int task)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(tasks_.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = 0;
    for (int task = 0; task < num_tasks(); ++task) {
      tasks_[task]->state = State::kReady;
      ready_.push_back(task);
    }
  }
  for (int task = 0; task < num_tasks(); ++task) {
    threads.emplace_back([this, task, &body] {
      wait_for_baton(task);
      body(task);
      if (hooks_.on_suspend) hooks_.on_suspend(task);
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_[task]->state = State::kDone;
      tasks_[task]->has_baton = false;
      ++done_;
      hand_over();
    });
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    hand_over();
    all_done_.wait(lock, [this] { return done_ == num_tasks(); });
  }
  for (std::thread& thread : threads) thread.join();
}

void Scheduler::wait_for_baton(int task) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Task& self = *tasks_[task];
    self.baton.wait(lock, [&self] { return self.has_baton; });
    self.state = State::kRunning;
  }
  if (hooks_.on_resume) hooks_.on_resume(task);
}

// `leave` says, with the mutex held, what becomes of the task.
void Scheduler::give_up_baton(int task, absl::FunctionRef<void()> leave) {
  if (hooks_.on_suspend) hooks_.on_suspend(task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_[task]->has_baton = false;
    leave();
    hand_over();
  }
  wait_for_baton(task);
}

// Called with the mutex held by the task that gives the baton up.
void Scheduler::hand_over() {
  running_ = -1;
  if (done_ == num_tasks()) {
    all_done_.notify_one();
    return;
  }
  if (ready_.empty()) advance_or_stall();
  const size_t drawn = random_.below(ready_.size());
  running_ = ready_[drawn];
  ready_[drawn] = ready_.back();
  ready_.pop_back();
  tasks_[running_]->has_baton = true;
  tasks_[running_]->baton.notify_one();
}

// Moves time forward to the next event or timer. Returns false if there is none.
bool Scheduler::advance() {
  const int64_t event_ns = hooks_.next_event_ns ? hooks_.next_event_ns() : kNever;
  if (event_ns == kNever && progress_timers_ == 0) return false;
  const int64_t timer_ns = timers_.empty() ? kNever : timers_.begin()->first;
  if (event_ns <= timer_ns) {
    now_ns_ = std::max(now_ns_, event_ns);
    for (int task : hooks_.run_event()) {
      if (tasks_[task]->state == State::kBlocked) make_ready(task, Wake::kReady);
    }
    return true;
  }
  now_ns_ = std::max(now_ns_, timer_ns);
  while (!timers_.empty() && timers_.begin()->first <= now_ns_) {
    const int task = timers_.begin()->second;
    int64_t& clock_ns = tasks_[task]->clock_ns;
    clock_ns = std::max(clock_ns, timers_.begin()->first);
    make_ready(task, Wake::kDeadline);
  }
  return true;
}

void Scheduler::advance_or_stall() {
  while (ready_.empty() && advance()) {
  }
  if (!ready_.empty()) return;
  stall_report_ = hooks_.on_stall ? hooks_.on_stall() : "no task can make progress";
  for (int task = 0; task < num_tasks(); ++task) {
    if (tasks_[task]->state != State::kBlocked) continue;
    tasks_[task]->clock_ns = std::max(tasks_[task]->clock_ns, now_ns_);
    make_ready(task, Wake::kStalled);
  }
  ABSL_CHECK(!ready_.empty()) << "no task is ready, blocked or done";
}

void Scheduler::make_ready(int task, Wake wake) {
  Task& self = *tasks_[task];
  if (self.deadline_ns != kNever) {
    timers_.erase({self.deadline_ns, task});
    if (self.deadline_is_progress) --progress_timers_;
    self.deadline_ns = kNever;
  }
  self.state = State::kReady;
  self.wake = wake;
  self.describe = nullptr;
  ready_.push_back(task);
}

void Scheduler::yield() {
  const int task = running_;
  if (tasks_[task]->clock_ns > now_ns_) {
    sleep_for(absl::ZeroDuration());
    return;
  }
  if (ready_.empty()) return;  // No other task can run.
  give_up_baton(task, [&] { make_ready(task, Wake::kReady); });
}

Wake Scheduler::block(absl::FunctionRef<std::string()> describe, Deadline deadline) {
  const int task = running_;
  Task& self = *tasks_[task];
  const int64_t deadline_ns = absl::ToInt64Nanoseconds(deadline.at);
  if (deadline_ns <= now_ns_ && deadline_ns <= self.clock_ns) return Wake::kDeadline;
  give_up_baton(task, [&] {
    self.state = State::kBlocked;
    self.describe = &describe;
    self.deadline_ns = deadline_ns;
    self.deadline_is_progress = deadline.counts_as_progress;
    if (deadline_ns == kNever) return;
    timers_.insert({deadline_ns, task});
    if (deadline.counts_as_progress) ++progress_timers_;
  });
  return self.wake;
}

void Scheduler::wake(int task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (tasks_[task]->state == State::kBlocked) make_ready(task, Wake::kReady);
}

void Scheduler::sleep_for(absl::Duration duration) {
  const Deadline until{.at = now() + duration, .counts_as_progress = true};
  // A late wake() for an earlier condition must not shorten the sleep.
  while (block([] { return std::string("sleeping"); }, until) == Wake::kReady) {
  }
}

void Scheduler::advance_to(int64_t ns) {
  int64_t& clock_ns = tasks_[running_]->clock_ns;
  clock_ns = std::max(clock_ns, ns);
}

void Scheduler::poll() { sleep_for(absl::Milliseconds(1)); }

std::string Scheduler::describe(int task) const {
  const Task& self = *tasks_[task];
  return self.describe != nullptr ? (*self.describe)() : std::string();
}

}  // namespace accelerate::simulator
