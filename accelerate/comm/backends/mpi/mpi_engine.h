/// The engine that drives the MPI operations of this process.
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
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>
#include <mpi.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/backends/mpi/schedules.h"

namespace accelerate::internal {

class MpiWork;

/// The members of a group as MPI knows them, and what they have under way.
/// Threads: everything is read and written under the engine's lock.
struct MpiGroup {
  int rank = 0;
  std::vector<int> members;  ///< their ranks in the job, by their rank in the group
  /// Messages from rank to rank have tags of the caller's, so collectives need a communicator of
  /// their own.
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  std::chrono::milliseconds timeout{};

  /// Collectives run one after the other, as they were called; the first of them is under way.
  std::deque<c10::intrusive_ptr<MpiWork>> queue;
  std::atomic<uint32_t> calls = 0;  ///< collectives so far; read by anybody
  std::shared_ptr<Staging> staging = std::make_shared<Staging>();
  /// Set by the first failure: a rank that has left an operation half done cannot begin another.
  std::exception_ptr failure;

  int size() const { return static_cast<int>(members.size()); }
};

/// An operation of the MPI backend, from its call to its end.
///
/// Errors:  c10::DistBackendError naming the operation and the ranks it waited for, from wait, the
///          future and exception().
/// Threads: any. A waiting thread drives the operation itself; a future is completed by whichever
///          thread drives it to its end, and runs its callbacks there.
class MpiWork final : public c10d::Work {
 public:
  using Clock = std::chrono::steady_clock;
  using Tensors = std::vector<at::Tensor>;

  /// `results` hold the outcome; `kept` has to live as long as the operation as well.
  MpiWork(std::shared_ptr<MpiGroup> group, c10d::OpType op, std::chrono::milliseconds timeout,
          Tensors results, Tensors kept = {});

  Link& link() { return link_; }
  /// The schedule of its messages. Set once, before the engine starts it.
  void set_schedule(Schedule schedule) { schedule_ = std::move(schedule); }
  /// The rank and tag of a message, for errors.
  void set_peer(std::string peer) { peer_ = std::move(peer); }

  bool isCompleted() override;
  bool isSuccess() const override { return done() && !exception_; }
  std::exception_ptr exception() const override { return done() ? exception_ : nullptr; }
  int sourceRank() const override { return link_.opened.empty() ? -1 : link_.opened[0]->source(); }
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  bool done() const { return done_.load(std::memory_order_acquire); }
  Clock::time_point deadline() const { return deadline_; }

 private:
  friend class MpiEngine;

  // As in "recv from 1, tag 3".
  std::string name() const;
  // Completes the future. \pre done().
  void publish();
  void complete(c10::ivalue::Future& future) const;

  const std::shared_ptr<MpiGroup> group_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  const Tensors results_;
  const Tensors kept_;
  std::string peer_;
  Link link_;
  Schedule schedule_;
  std::atomic<bool> done_ = false;
  bool published_ = false;  // under mutex_, as future_
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

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
