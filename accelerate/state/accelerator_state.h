/// PartialState, and the settings that all Accelerators of a Runtime share. The first Accelerator
/// makes it; other code may only read it.
///
/// Errors:  c10::ValueError for calls before the first Accelerator, and between reset() and the
/// next
///          one.
/// Mirrors: accelerate state.py, AcceleratorState.
/// Threads: belongs to its rank's thread.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "accelerate/base/enums.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

struct AcceleratorStateOptions {
  /// Absent: ACCELERATE_MIXED_PRECISION, or the precision of an earlier Accelerator, or none.
  std::optional<PrecisionType> mixed_precision = std::nullopt;
  /// Compute on the CPU even if the Runtime has accelerators.
  bool cpu = false;
  std::optional<InitProcessGroupKwargs> init = std::nullopt;
};

class AcceleratorState {
 public:
  /// The Runtime's state. Local. Errors: c10::ValueError before the first Accelerator.
  static AcceleratorState& get(Runtime& runtime = Runtime::current());

  /// Forgets the settings and, with `reset_partial_state`, the rank's place in the job. Every rank
  /// calls it. Local.
  static void reset(Runtime& runtime = Runtime::current(), bool reset_partial_state = false);

  AcceleratorState(const AcceleratorState&) = delete;
  AcceleratorState& operator=(const AcceleratorState&) = delete;

  bool initialized() const { return record_.has_value(); }

  /// How often the state was made. When it changes, other state that Accelerators share is reset.
  int generation() const { return generation_; }

  /// What models compute in.
  PrecisionType mixed_precision() const { return record().mixed_precision; }

  /// The rank's place in the job; the most used parts are repeated below.
  PartialState& partial_state() const {
    record();
    return partial_state_;
  }
  Runtime& runtime() const { return partial_state_.runtime(); }
  c10::Device device() const { return partial_state().device(); }
  DistributedType distributed_type() const { return partial_state().distributed_type(); }
  const std::string& backend() const { return partial_state().backend(); }
  bool debug() const { return partial_state().debug(); }
  bool fork_launched() const { return partial_state().fork_launched(); }
  int process_index() const { return partial_state().process_index(); }
  int local_process_index() const { return partial_state().local_process_index(); }
  int num_processes() const { return partial_state().num_processes(); }
  bool is_main_process() const { return partial_state().is_main_process(); }
  bool is_local_main_process() const { return partial_state().is_local_main_process(); }
  bool is_last_process() const { return partial_state().is_last_process(); }
  bool use_distributed() const { return partial_state().use_distributed(); }
  const ProcessGroupPtr& group() const { return partial_state().group(); }

  void wait_for_everyone() const { partial_state().wait_for_everyone(); }
  [[nodiscard]] OrderedScope main_process_first() const {
    return partial_state().main_process_first();
  }
  [[nodiscard]] OrderedScope local_main_process_first() const {
    return partial_state().local_main_process_first();
  }
  template <typename Inputs>
  auto split_between_processes(Inputs inputs, bool apply_padding = false) const {
    return partial_state().split_between_processes(std::move(inputs), apply_padding);
  }
  void destroy_process_group(ProcessGroupPtr group = nullptr) {
    partial_state().destroy_process_group(std::move(group));
  }
  template <typename... Values>
  void print(const Values&... values) const {
    partial_state().print(values...);
  }

  /// Several lines for people: the rank's place in the job and the settings.
  std::string to_string() const;

 private:
  friend class Accelerator;

  // Makes the state, or checks that the options agree with it. Collective where it makes the
  // process group. Errors: c10::ValueError naming the option that contradicts an earlier
  // Accelerator's.
  static AcceleratorState& initialize(Runtime& runtime, const AcceleratorStateOptions& options);

  struct Record {
    PrecisionType mixed_precision = PrecisionType::kNo;
  };

  explicit AcceleratorState(PartialState& partial_state) : partial_state_(partial_state) {}
  const Record& record() const;

  PartialState& partial_state_;
  std::optional<Record> record_;
  int generation_ = 0;
};

/// The value of ACCELERATE_MIXED_PRECISION; absent if it is unset or empty. Local.
/// Errors: c10::ValueError for an unknown precision.
std::optional<PrecisionType> mixed_precision_from_env(const Environment& environment);

}  // namespace accelerate
