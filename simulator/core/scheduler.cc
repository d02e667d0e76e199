#include "simulator/core/scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// The stacks of all threads together take so much of the address space, but each is at least a
// mebibyte. A process's usual size is not exceeded.
constexpr size_t kAllStacksBytes = size_t{16} << 30;
constexpr size_t kSmallestStackBytes = size_t{1} << 20;

// After so many bound wake-ups the system chooses the core again. So the threads leave a core on
// which other programs run for one that is idle.
constexpr int kBoundWakeUps = 63;

// Binds a thread to one core. Returns whether it did; `before` are the CPUs that it could use.
bool bind(pthread_t thread, int core, cpu_set_t& before) {
  if (pthread_getaffinity_np(thread, sizeof(before), &before) != 0) return false;
  if (!CPU_ISSET(core, &before)) return false;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(core, &cpus);
  return pthread_setaffinity_np(thread, sizeof(cpus), &cpus) == 0;
}

void set_stack_size(pthread_attr_t& attributes, int num_threads) {
  size_t usual = 0;
  pthread_attr_getstacksize(&attributes, &usual);
  const size_t share = std::max(kAllStacksBytes / num_threads, kSmallestStackBytes);
  pthread_attr_setstacksize(&attributes, std::min(usual, share));
}

}  // namespace

Scheduler::Scheduler(int num_tasks, uint64_t seed, Hooks hooks)
    : hooks_(std::move(hooks)), random_(seed) {
  ABSL_CHECK_GT(num_tasks, 0);
  tasks_.reserve(num_tasks);
  for (int task = 0; task < num_tasks; ++task) tasks_.push_back(std::make_unique<Task>());
}

// What a task's thread is told. It lives until all threads have been joined.
struct Scheduler::Start {
  Scheduler* scheduler;
  const std::function<void(int task)>* body;
  int task;
  const bool* given_up;  // true: not all threads could be started
};

void* Scheduler::start_task(void* start) {
  const auto& [self, body, task, given_up] = *static_cast<const Start*>(start);
  self->receive_baton(task);
  if (*given_up) return nullptr;
  if (self->hooks_.on_resume) self->hooks_.on_resume(task);
  (*body)(task);
  if (self->hooks_.on_suspend) self->hooks_.on_suspend(task);
  self->tasks_[task]->state = State::kDone;
  ++self->done_;
  if (self->done_ < self->num_tasks()) self->hand_over(self->draw());
  return nullptr;
}

void Scheduler::run(const std::function<void(int task)>& body) {
  done_ = 0;
  for (int task = 0; task < num_tasks(); ++task) {
    tasks_[task]->state = State::kReady;
    ready_.push_back(task);
  }
  bool given_up = false;
  std::vector<Start> starts;
  for (int task = 0; task < num_tasks(); ++task) starts.push_back({this, &body, task, &given_up});
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  set_stack_size(attributes, num_tasks());
  int started = 0;
  int error = 0;
  while (started < num_tasks() && error == 0) {
    error = pthread_create(&tasks_[started]->thread, &attributes, start_task, &starts[started]);
    if (error == 0) ++started;
  }
  pthread_attr_destroy(&attributes);
  if (error == 0) {
    hand_over(draw());
  } else {
    given_up = true;
  }
  for (int task = 0; task < started; ++task) {
    if (given_up) sem_post(&tasks_[task]->baton);
    pthread_join(tasks_[task]->thread, nullptr);
  }
  running_ = -1;
  if (error == 0) return;
  ready_.clear();
  throw std::system_error(error, std::generic_category(),
                          absl::StrCat("only ", started, " of ", num_tasks(),
                                       " threads of the simulation could be started; ulimit -u "
                                       "limits threads, and ulimit -v the memory of their stacks"));
}

void Scheduler::hand_over(int task) {
  Task& next = *tasks_[task];
  core_ = sched_getcpu();
  next.is_bound = bound_wake_ups_ > 0 && bind(next.thread, core_, next.cpus);
  sem_post(&next.baton);
}

void Scheduler::receive_baton(int task) {
  Task& self = *tasks_[task];
  while (sem_wait(&self.baton) != 0) ABSL_CHECK_EQ(errno, EINTR);
  if (self.is_bound) {
    // New threads inherit the CPUs of the task that starts them.
    sched_setaffinity(0, sizeof(self.cpus), &self.cpus);
    --bound_wake_ups_;
  } else if (sched_getcpu() != core_) {
    bound_wake_ups_ = kBoundWakeUps;
  }
}

// The caller has recorded what becomes of its task. After the post another task runs, so nothing
// but the own semaphore is touched.
void Scheduler::pass_baton(int task) {
  if (hooks_.on_suspend) hooks_.on_suspend(task);
  const int next = draw();
  if (next != task) {
    hand_over(next);
    receive_baton(task);
  }
  if (hooks_.on_resume) hooks_.on_resume(task);
}

// Draws the next holder of the baton.
int Scheduler::draw() {
  running_ = -1;
  if (ready_.empty()) advance_or_stall();
  size_t drawn = random_.below(ready_.size());
  if (witness_ != nullptr && ready_.size() > 1) {
    drawn = witness_->choose_task(ready_, drawn, now_ns_);
  }
  running_ = ready_[drawn];
  ready_[drawn] = ready_.back();
  ready_.pop_back();
  tasks_[running_]->state = State::kRunning;
  return running_;
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
  const bool waits = hooks_.waits_for_deadlines && !timers_.empty();
  if (waits) now_ns_ = std::max(now_ns_, timers_.begin()->first);
  stall_report_ = hooks_.on_stall ? hooks_.on_stall() : "no task can make progress";
  for (int task = 0; task < num_tasks(); ++task) {
    if (tasks_[task]->state != State::kBlocked) continue;
    if (waits && tasks_[task]->deadline_ns > now_ns_) continue;
    const int64_t woken_ns = waits ? tasks_[task]->deadline_ns : now_ns_;
    tasks_[task]->clock_ns = std::max(tasks_[task]->clock_ns, woken_ns);
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
  make_ready(task, Wake::kReady);
  pass_baton(task);
}

Wake Scheduler::block(absl::FunctionRef<std::string()> describe, Deadline deadline) {
  const int task = running_;
  Task& self = *tasks_[task];
  const int64_t deadline_ns = absl::ToInt64Nanoseconds(deadline.at);
  if (deadline_ns <= now_ns_ && deadline_ns <= self.clock_ns) return Wake::kDeadline;
  self.state = State::kBlocked;
  self.describe = &describe;
  self.deadline_ns = deadline_ns;
  self.deadline_is_progress = deadline.counts_as_progress;
  if (deadline_ns != kNever) {
    timers_.insert({deadline_ns, task});
    if (deadline.counts_as_progress) ++progress_timers_;
  }
  pass_baton(task);
  return self.wake;
}

void Scheduler::wake(int task) {
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
