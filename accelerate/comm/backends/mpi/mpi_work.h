/// An operation of the MPI backend, from its call to its end.
///
/// Errors:  c10::DistBackendError naming the operation and the ranks it waited for, from wait, the
///          future and exception().
/// Threads: any. A waiting thread drives the operation itself; a future is completed by whichever
///          thread drives it to its end, and runs its callbacks there.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/backends/mpi/mpi_group.h"
#include "accelerate/comm/backends/mpi/schedule.h"

namespace accelerate::internal {

class MpiWork final : public c10d::Work {
 public:
  using Clock = std::chrono::steady_clock;
  using Tensors = std::vector<at::Tensor>;

  /// `results` hold the outcome; `kept` has to live as long as the operation as well.
  MpiWork(std::shared_ptr<MpiGroup> group, c10d::OpType op, std::chrono::milliseconds timeout,
          Tensors results, Tensors kept = {});

  Link& link() { return link_; }
  /// What it does. Set once, before the engine starts it.
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
  std::chrono::milliseconds timeout() const { return timeout_; }

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

}  // namespace accelerate::internal
