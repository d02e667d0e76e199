/// Where this rank is and how it reaches the others: everything an Accelerator needs that does not
/// depend on how it trains. All users of one Runtime share one PartialState.
///
/// Mirrors: accelerate state.py, PartialState and what AcceleratorState adds of device and backend.
/// Threads: belongs to its rank's thread.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/config/enums.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct PartialStateOptions {
  /// Compute on the CPU whatever the Runtime offers.
  bool cpu = false;
  std::optional<InitProcessGroupKwargs> init;
};

class PartialState {
 public:
  /// The Runtime's shared state, made on the first call. Collective then, local afterwards.
  /// Errors: c10::ValueError naming the option in which `options` contradict the first call's.
  static PartialState& get(Runtime& runtime, const PartialStateOptions& options = {});

  Runtime& runtime() const { return runtime_; }
  c10::Device device() const { return device_; }
  /// It follows from Runtime::device_family().
  DistributedType distributed_type() const { return distributed_type_; }
  int process_index() const { return topology().rank; }
  int local_process_index() const { return topology().local_rank; }
  int num_processes() const { return topology().world_size; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  bool use_distributed() const { return num_processes() > 1; }

  /// All ranks. Null where there is one rank only.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }

  /// Returns when all ranks have called it. Collective.
  void wait_for_everyone() const;

 private:
  PartialState(Runtime& runtime, const PartialStateOptions& options);
  void check_agrees(const PartialStateOptions& options) const;
  const Topology& topology() const { return runtime_.topology(); }

  Runtime& runtime_;
  const c10::Device device_;
  const DistributedType distributed_type_;
  const InitProcessGroupKwargs init_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace accelerate
