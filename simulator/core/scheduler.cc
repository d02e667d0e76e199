#include "simulator/core/scheduler.h"

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
      if (hooks_.on_resume) hooks_.on_resume(task);
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
  std::unique_lock<std::mutex> lock(mutex_);
  Task& self = *tasks_[task];
  self.baton.wait(lock, [&self] { return self.has_baton; });
  self.state = State::kRunning;
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

void Scheduler::advance_or_stall() {
  if (progress_timers_ > 0) {
    now_ = timers_.begin()->first;
    while (!timers_.empty() && timers_.begin()->first <= now_) {
      make_ready(timers_.begin()->second, Wake::kDeadline);
    }
    return;
  }
  stall_report_ = hooks_.on_stall ? hooks_.on_stall() : "no task can make progress";
  for (int task = 0; task < num_tasks(); ++task) {
    if (tasks_[task]->state == State::kBlocked) make_ready(task, Wake::kStalled);
  }
  ABSL_CHECK(!ready_.empty()) << "no task is ready, blocked or done";
}

void Scheduler::make_ready(int task, Wake wake) {
  Task& self = *tasks_[task];
  if (self.deadline.at != absl::InfiniteDuration()) {
    timers_.erase({self.deadline.at, task});
    if (self.deadline.counts_as_progress) --progress_timers_;
  }
  self.state = State::kReady;
  self.wake = wake;
  self.describe = nullptr;
  ready_.push_back(task);
}

void Scheduler::yield() {
  if (ready_.empty()) return;  // Nobody else could go.
  const int task = running_;
  if (hooks_.on_suspend) hooks_.on_suspend(task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Task& self = *tasks_[task];
    self.has_baton = false;
    self.deadline = {};
    make_ready(task, Wake::kReady);
    hand_over();
  }
  wait_for_baton(task);
  if (hooks_.on_resume) hooks_.on_resume(task);
}

Wake Scheduler::block(absl::FunctionRef<std::string()> describe, Deadline deadline) {
  const int task = running_;
  Task& self = *tasks_[task];
  if (deadline.at <= now_) return Wake::kDeadline;
  if (hooks_.on_suspend) hooks_.on_suspend(task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    self.has_baton = false;
    self.state = State::kBlocked;
    self.describe = &describe;
    self.deadline = deadline;
    if (deadline.at != absl::InfiniteDuration()) {
      timers_.insert({deadline.at, task});
      if (deadline.counts_as_progress) ++progress_timers_;
    }
    hand_over();
  }
  wait_for_baton(task);
  if (hooks_.on_resume) hooks_.on_resume(task);
  return self.wake;
}

void Scheduler::wake(int task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (tasks_[task]->state == State::kBlocked) make_ready(task, Wake::kReady);
}

void Scheduler::sleep_for(absl::Duration duration) {
  const Deadline until{.at = now_ + duration, .counts_as_progress = true};
  // A wake() meant for something the task waited for earlier must not shorten its sleep.
  while (now_ < until.at) {
    if (block([] { return std::string("sleeping"); }, until) == Wake::kStalled) return;
  }
}

void Scheduler::poll() { sleep_for(absl::Milliseconds(1)); }

std::string Scheduler::describe(int task) const {
  const Task& self = *tasks_[task];
  return self.describe != nullptr ? (*self.describe)() : std::string();
}

}  // namespace accelerate::simulator
