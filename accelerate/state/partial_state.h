/// Where this rank is and how it reaches the others: everything an Accelerator needs that does not
/// depend on how it trains, and the means to let some ranks do what others do not.
///
/// All users of one Runtime share one PartialState. PartialState::get() serves
/// programs that need process control and no training.
///
/// Errors:  whatever is asked between reset() and the next get() is a c10::ValueError that says so.
/// Mirrors: accelerate state.py, PartialState.
/// Threads: belongs to its rank's thread.
#pragma once

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/process_control.h"
#include "accelerate/tensors/split.h"

namespace accelerate {

struct PartialStateOptions {
  /// Compute on the CPU whatever the Runtime offers.
  bool cpu = false;
  std::optional<InitProcessGroupKwargs> init;
};

class PartialState {
 public:
  /// The Runtime's shared state, made on the first call and on the first after a reset. Collective
  /// then, local otherwise. References to it stay good as long as the Runtime.
  /// Errors: c10::ValueError naming the option in which `options` contradict the first call's.
  static PartialState& get(Runtime& runtime = Runtime::current(),
                           const PartialStateOptions& options = {});

  /// The shared state, or null before it is made and after reset(). Local.
  static PartialState* find(const Runtime& runtime = Runtime::current());

  /// Forgets where the rank is and lets go of the process group, so that the next get() begins
  /// anew. Every rank does it. Local.
  static void reset(Runtime& runtime = Runtime::current());

  PartialState(const PartialState&) = delete;
  PartialState& operator=(const PartialState&) = delete;

  // ---- Where the rank is. Local.

  Runtime& runtime() const { return runtime_; }
  bool initialized() const { return record_.has_value(); }
  c10::Device device() const { return record().device; }
  /// It follows from Runtime::device_family().
  DistributedType distributed_type() const { return record().distributed_type; }
  /// Name of the process group's backend ("gloo", "sim", ...); empty where there is no group.
  const std::string& backend() const { return record().backend; }
  /// Whether collectives are verified before they run: ACCELERATE_DEBUG_MODE.
  bool debug() const { return record().debug; }
  /// Whether the launcher forked this process from one that it shares a group with: FORK_LAUNCHED,
  /// as it was at the last get().
  bool fork_launched() const { return record().fork_launched; }
  /// Who started the ranks, as in Topology::source: "torchrun", "Open MPI", "plain", ...
  const std::string& launcher() const { return topology().source; }
  int process_index() const { return topology().rank; }
  int local_process_index() const { return topology().local_rank; }
  int num_processes() const { return topology().world_size; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  bool use_distributed() const { return num_processes() > 1; }

  /// All ranks. Null where there is one rank only.
  /// Errors: c10::ValueError once the group is destroyed.
  const ProcessGroupPtr& group() const {
    const Record& now = record();
    TORCH_CHECK_VALUE(!now.group_destroyed,
                      "the process group was destroyed; after that ranks cannot talk any more");
    return now.group;
  }

  /// The device on which a rank by itself would compute: the first kind there is.
  c10::Device default_device() const { return runtime_.device(); }

  /// Makes the rank's device the thread's current one of its kind.
  void set_device() const;

  /// Lets go of the group: the job's, unless another is given. A forked process does not own the
  /// job's group and keeps it. Every member does it, when all operations have ended. Local.
  void destroy_process_group(ProcessGroupPtr group = nullptr);

  // ---- Some ranks before, or without, others.

  /// Returns when all ranks have called it. Collective.
  void wait_for_everyone() const;

  /// While it lives rank 0 has been alone first; see OrderedScope. Collective, as is its end.
  [[nodiscard]] OrderedScope main_process_first() const {
    return OrderedScope(group(), is_main_process(), "main_process_first");
  }
  /// The same with each node's first rank.
  [[nodiscard]] OrderedScope local_main_process_first() const {
    return OrderedScope(group(), is_local_main_process(), "local_main_process_first");
  }

  /// Runs `body` in such a scope and returns what it does. Other ranks' error then has the text of
  /// the exception that leaves it. Collective.
  template <typename Body>
  auto main_process_first(Body&& body) const {
    return main_process_first().run(std::forward<Body>(body));
  }
  template <typename Body>
  auto local_main_process_first(Body&& body) const {
    return local_main_process_first().run(std::forward<Body>(body));
  }

  /// The function for one rank, and nothing for the others; see RestrictedFunction. Where there is
  /// one rank only it always runs. Local.
  template <typename Function>
  auto on_main_process(Function function) const {
    return restricted(is_main_process(), std::move(function));
  }
  template <typename Function>
  auto on_local_main_process(Function function) const {
    return restricted(is_local_main_process(), std::move(function));
  }
  template <typename Function>
  auto on_last_process(Function function) const {
    return restricted(is_last_process(), std::move(function));
  }
  template <typename Function>
  auto on_process(Function function, int process_index) const {
    return restricted(this->process_index() == process_index, std::move(function));
  }
  template <typename Function>
  auto on_local_process(Function function, int local_process_index) const {
    return restricted(this->local_process_index() == local_process_index, std::move(function));
  }

  /// This rank's contiguous share of what all ranks have: see split.h. Local.
  template <typename Inputs>
  auto split_between_processes(Inputs inputs, bool apply_padding = false) const {
    return accelerate::split_between_processes(process_index(), num_processes(), std::move(inputs),
                                               apply_padding);
  }

  /// Writes the arguments and a newline to stdout, once per node. Local.
  template <typename... Values>
  void print(const Values&... values) const {
    if (!is_local_main_process()) return;
    std::ostringstream line;
    (line << ... << values) << '\n';
    runtime_.write_console(ConsoleStream::kOut, line.str());
  }

 private:
  // What a reset forgets.
  struct Record {
    c10::Device device;
    DistributedType distributed_type;
    InitProcessGroupKwargs init;
    bool debug = false;
    bool fork_launched = false;
    std::string backend = {};
    ProcessGroupPtr group = {};
    bool group_destroyed = false;
  };

  explicit PartialState(Runtime& runtime) : runtime_(runtime) {}
  static Record make_record(Runtime& runtime, const PartialStateOptions& options);
  void check_agrees(const PartialStateOptions& options) const;
  const Record& record() const {
    TORCH_CHECK_VALUE(record_,
                      "the state of this rank was reset; PartialState::get() or a new Accelerator "
                      "must initialise it before it is asked");
    return *record_;
  }
  const Topology& topology() const {
    record();
    return runtime_.topology();
  }
  template <typename Function>
  auto restricted(bool runs, Function function) const {
    return RestrictedFunction<Function>(runs || !use_distributed(), std::move(function));
  }

  Runtime& runtime_;
  std::optional<Record> record_;
};

}  // namespace accelerate
