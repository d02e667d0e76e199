/// Runs many tasks as threads of which exactly one works at a time, in an order drawn from a seed.
///
/// The running task holds the baton. It gives the baton up where it blocks, yields or ends, and
/// then the next holder is drawn from the tasks that are ready. Neither the operating system nor
/// the wall clock has an influence on the order.
///
/// Time is virtual. Every task has a clock of its own, which the model of its work moves forward.
/// The scheduler's clock jumps to the next timer or event when no task is ready. A task whose clock
/// is ahead of the scheduler's may go on as long as its interactions with other tasks do not depend
/// on their order; before any other interaction it calls yield(), which runs the other tasks up to
/// the same time.
///
/// When no task is ready and no timer can make one ready, the run is *stalled*: the owner's
/// `on_stall` writes one report, and every blocked task wakes with Wake::kStalled. Tasks that
/// communicate through deterministic channels only reach the same stall for every seed. With
/// Hooks::waits_for_deadlines the time-outs of a cluster pass first: time moves to the earliest
/// deadline, the report is made there, and the tasks of that deadline alone wake with kStalled.
///
/// Cost: a hand-over is one post and one wait of a semaphore, whatever the number of tasks. A task
///       that draws itself goes on without either. Where the system wakes threads on other cores,
///       which costs several times as much, the next thread is bound to the core of the one that
///       is about to sleep, but for the wake-up alone.
/// The scheduler does not depend on LibTorch.
/// Threads: `run` is called by the owner; everything else only by the task that holds the baton.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "simulator/core/random.h"
#include "simulator/core/run_log.h"

namespace accelerate::simulator {

/// Why a blocked task runs again.
enum class Wake {
  kReady,     ///< wake() was called for it; it must check its condition again
  kDeadline,  ///< its deadline came first
  kStalled,   ///< no task can make progress, or not before its deadline; see stall_report()
};

/// The time at which a blocked task gives up.
struct Deadline {
  absl::Duration at = absl::InfiniteDuration();  ///< on the task's clock
  /// True for a task that only waits for time to pass, and for one whose caller asked for a
  /// time-out. False for a default time-out against lost peers: if all other tasks are blocked as
  /// well, the stall is reported at once instead.
  bool counts_as_progress = false;
};

class Scheduler {
 public:
  /// The time of an event that never happens.
  static constexpr int64_t kNever = INT64_MAX;

  struct Hooks {
    /// Called on a task's thread right after it receives the baton, and right before it gives the
    /// baton up.
    std::function<void(int task)> on_resume;
    std::function<void(int task)> on_suspend;
    /// Called once per stall, before any task wakes; its value becomes stall_report().
    std::function<std::string()> on_stall;
    /// Events that happen without a task. The first function returns the time of the next event, or
    /// kNever; the second runs that event and returns the tasks that it wakes. Both are called only
    /// when no task is ready.
    std::function<int64_t()> next_event_ns;
    std::function<std::vector<int>()> run_event;
    /// Whether default deadlines are waited for where nothing else can happen.
    bool waits_for_deadlines = false;
  };

  enum class State { kReady, kRunning, kBlocked, kDone };

  Scheduler(int num_tasks, uint64_t seed, Hooks hooks);
  Scheduler(int num_tasks, uint64_t seed) : Scheduler(num_tasks, seed, Hooks()) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Shows each choice among several ready tasks to a witness, who may make another. Null: none.
  void set_witness(RunWitness* witness) { witness_ = witness; }

  /// Runs `body(task)` on a thread per task and returns when all have ended. `body` must not throw.
  /// Errors: std::system_error, before any task has run, if the machine cannot start the threads.
  void run(const std::function<void(int task)>& body);

  /// Lets any ready task, this one included, run next. If this task's clock is ahead of the
  /// scheduler's, the task goes on when the scheduler's clock has reached the same time.
  void yield();

  /// Gives up the baton until wake(), the deadline or a stall. `describe` names the condition that
  /// the task waits for; it is called only to write a report.
  Wake block(absl::FunctionRef<std::string()> describe, Deadline deadline = {});

  /// Makes a blocked task ready; no effect on one that is not blocked.
  void wake(int task);

  /// Blocks the running task for a duration of virtual time.
  void sleep_for(absl::Duration duration);

  /// For a task that checks a condition in a loop instead of blocking: a millisecond of virtual
  /// time passes, after all ready tasks have run, so that the condition can become true.
  void poll();

  /// The running task's clock; the scheduler's when none runs.
  absl::Duration now() const { return absl::Nanoseconds(now_ns()); }
  int64_t now_ns() const { return running_ < 0 ? now_ns_ : tasks_[running_]->clock_ns; }
  /// A task's clock, in nanoseconds since the start of the run. The task may move it forward, and
  /// other tasks may while it is blocked. Valid as long as the scheduler.
  int64_t* clock_ns(int task) { return &tasks_[task]->clock_ns; }
  /// Moves the running task's clock forward to `ns`; no effect if the clock is past it.
  void advance_to(int64_t ns);
  int num_tasks() const { return static_cast<int>(tasks_.size()); }
  int running() const { return running_; }
  State state(int task) const { return tasks_[task]->state; }
  /// The condition that a blocked task waits for; for reports.
  std::string describe(int task) const;
  /// The report of the latest stall.
  const std::string& stall_report() const { return stall_report_; }

 private:
  struct Task {
    Task() { sem_init(&baton, /*pshared=*/0, /*value=*/0); }
    ~Task() { sem_destroy(&baton); }
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    State state = State::kReady;
    Wake wake = Wake::kReady;
    int64_t clock_ns = 0;
    int64_t deadline_ns = kNever;
    bool deadline_is_progress = false;
    const absl::FunctionRef<std::string()>* describe = nullptr;
    sem_t baton;  // posted when the task receives the baton
    pthread_t thread = {};
    bool is_bound = false;  // while it wakes
    cpu_set_t cpus = {};    // that a bound thread may use otherwise
  };
  struct Start;

  static void* start_task(void* start);
  int draw();
  void hand_over(int task);
  void receive_baton(int task);
  void pass_baton(int task);
  void make_ready(int task, Wake wake);
  bool advance();
  void advance_or_stall();

  const Hooks hooks_;
  DeterministicRandom random_;
  RunWitness* witness_ = nullptr;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::vector<int> ready_;
  // Blocked tasks with a finite deadline, soonest first; ties go by task number.
  std::set<std::pair<int64_t, int>> timers_;
  int progress_timers_ = 0;
  int done_ = 0;
  int running_ = -1;
  int64_t now_ns_ = 0;
  int core_ = -1;           // of the thread that gave the baton last
  int bound_wake_ups_ = 0;  // that are to come
  std::string stall_report_;
};

}  // namespace accelerate::simulator
