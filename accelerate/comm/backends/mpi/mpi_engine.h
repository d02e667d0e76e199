/// What drives the MPI operations of this process.
///
/// An operation is a schedule of messages (schedules.h). The caller's thread starts it, so that a
/// small one has sent all it has to send before the call returns; the thread that waits for it
/// drives it to its end. So no thread hands work to another, which alone would cost 11 us. The
/// engine's own thread drives operations without a waiting thread, and sleeps otherwise.
///
/// MPI is entered by one thread at a time, under one lock: MPI_THREAD_SERIALIZED, which spares
/// every call MPI's own locks. A program that calls MPI itself, from other threads, initialises it
/// with MPI_THREAD_MULTIPLE before the first group is made.
///
/// This is state of the process, because MPI is: it can be initialised once, and a process is one
/// rank of MPI_COMM_WORLD. There is none in a simulation.
///
/// Errors:  c10::DistBackendError. An operation that fails or runs into its time-out fails its
///          group: all its pending operations end, and all later ones throw. A process that ends
///          with an error does not wait for the others in MPI_Finalize; mpirun then ends them.
/// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <c10/util/intrusive_ptr.h>

#include "accelerate/comm/backends/mpi/mpi_group.h"
#include "accelerate/comm/backends/mpi/mpi_work.h"

namespace accelerate::internal {

class MpiEngine {
 public:
  using WorkPtr = c10::intrusive_ptr<MpiWork>;
  using Clock = MpiWork::Clock;

  /// Initialises MPI with the first call, which all ranks of the job make.
  static MpiEngine& get();

  /// This process among those that mpirun or srun started together.
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Rank 0's `text`, of less than a page, on every rank of the job. Collective.
  /// Errors: c10::DistBackendError after `timeout`.
  std::string publish(const std::string& text, std::chrono::milliseconds timeout);

  /// Collective over `members`, ranks of the job, all of whom have called already or are about to:
  /// no other rank is waited for.
  std::shared_ptr<MpiGroup> make_group(std::vector<int> members, std::chrono::milliseconds timeout);
  /// Local.
  void free_group(MpiGroup& group);

  /// Begins a collective when those of the group before it have ended; a message at once.
  /// Errors: the group's failure.
  void start(const WorkPtr& work, bool collective);

  /// Drives all operations that can go on. Returns whether any did.
  bool poll();

  /// Returns when the work has ended, be it by an error.
  void wait(MpiWork& work, Clock::time_point deadline);

  /// Ends everything that the group has under way. The first failure counts.
  void fail(MpiGroup& group, std::exception_ptr failure);

 private:
  using Works = std::vector<WorkPtr>;

  MpiEngine();
  void run();
  void shut_down(int status);
  static void at_exit(int status, void* engine);

  // All of these \pre mutex_ is held; works that end are added to `ended`, to be published later.
  void begin(const WorkPtr& work, Works& ended);
  bool advance_all(Works& ended);
  // Returns whether the work went on.
  bool advance(const WorkPtr& work, Works& ended);
  void end(const WorkPtr& work, Works& ended);
  void fail(MpiGroup& group, const std::exception_ptr& failure, Works& ended);
  std::exception_ptr late(MpiWork& work) const;

  int rank_ = 0;
  int size_ = 1;
  bool finalizes_ = false;
  const pid_t process_ = getpid();
  int max_tag_ = 0;

  std::mutex mutex_;
  Works active_;     // under way
  Works abandoned_;  // failed; MPI may still write to their memory

  std::atomic<int> waiters_ = 0;
  std::atomic<bool> asleep_ = false;  // the thread, until there is something to drive
  std::atomic<bool> stopping_ = false;
  std::condition_variable woken_;
  std::thread thread_;
};

}  // namespace accelerate::internal
