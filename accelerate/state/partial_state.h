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

#include <concepts>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/split.h"

namespace accelerate {

/// A scope that some ranks, the first ones, go through before the others enter it. It ends when all
/// ranks have gone through it.
///
///   auto scope = accelerator.main_process_first();
///   Dataset data = load_or_prepare();  // rank 0 prepares, the others find it done
///
/// An exception that leaves the scope on one rank reaches all: the others' constructor, or the end
/// of their scope, throws c10::DistBackendError naming that rank. So no rank waits for one that
/// does not come. How long ranks wait for the first ones is the process group's time-out.
/// Collective at both ends; a null group stands for one rank alone.
/// Differs: HF Accelerate's others hang if the main process throws, and it does not wait at the
/// end.
class OrderedScope {
 public:
  /// `is_first`: whether this rank goes first. `name` is for messages; a literal.
  OrderedScope(ProcessGroupPtr group, bool is_first, const char* name);
  /// Throws if another rank failed, unless this one is failing.
  ~OrderedScope() noexcept(false);
  OrderedScope(const OrderedScope&) = delete;
  OrderedScope& operator=(const OrderedScope&) = delete;

  /// Calls `body` as the rest of the scope.
  template <typename Body>
  auto run(Body&& body) && {
    try {
      return std::invoke(std::forward<Body>(body));
    } catch (...) {
      record_failure();
      throw;
    }
  }

 private:
  // Keeps the text of the exception that is being handled.
  void record_failure();
  // Waits for all ranks; throws if another one failed and this one did not.
  void synchronise(bool failed);

  ProcessGroupPtr group_;
  const bool is_first_;
  const char* const name_;
  const int exceptions_;  // that were under way when the scope began
  std::string failure_ = "an exception";
};

/// A function that runs on some ranks only, and does nothing on the others.
template <typename Function>
class RestrictedFunction {
 public:
  RestrictedFunction(bool runs, Function function) : runs_(runs), function_(std::move(function)) {}

  /// Whether calls run the function on this rank.
  bool runs() const { return runs_; }

  /// The function's result, where it runs; otherwise nothing. A constant RestrictedFunction can be
  /// called unless its function changes itself, as a mutable lambda does.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return call(runs_, function_, std::forward<Args>(args)...);
  }
  template <typename... Args>
    requires std::invocable<const Function&, Args...>
  auto operator()(Args&&... args) const {
    return call(runs_, function_, std::forward<Args>(args)...);
  }

 private:
  template <typename Callee, typename... Args>
  static auto call(bool runs, Callee& function, Args&&... args) {
    using Result = std::invoke_result_t<Callee&, Args...>;
    if constexpr (std::is_void_v<Result>) {
      if (runs) std::invoke(function, std::forward<Args>(args)...);
    } else {
      using Optional = std::optional<std::remove_cvref_t<Result>>;
      return runs ? Optional(std::invoke(function, std::forward<Args>(args)...)) : Optional();
    }
  }

  bool runs_;
  Function function_;
};

/// What PartialState, AcceleratorState and Accelerator let some ranks do before, or without, the
/// others. `Self` is one of these classes; its partial_state() says which rank this is.
template <typename Self>
class ProcessControl {
 public:
  /// Returns when all ranks have called it. Collective.
  void wait_for_everyone() const {
    if (const ProcessGroupPtr& group = rank_state().group()) group->barrier()->wait();
  }

  /// While it lives rank 0 has been alone first; see OrderedScope. Collective, as is its end.
  [[nodiscard]] OrderedScope main_process_first() const {
    return OrderedScope(rank_state().group(), rank_state().is_main_process(), "main_process_first");
  }
  /// The same with each node's first rank.
  [[nodiscard]] OrderedScope local_main_process_first() const {
    return OrderedScope(rank_state().group(), rank_state().is_local_main_process(),
                        "local_main_process_first");
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

  /// The function for one rank, and nothing for the others; see RestrictedFunction. In a job of
  /// one rank the function always runs. Local.
  template <typename Function>
  auto on_main_process(Function function) const {
    return restricted(rank_state().is_main_process(), std::move(function));
  }
  template <typename Function>
  auto on_local_main_process(Function function) const {
    return restricted(rank_state().is_local_main_process(), std::move(function));
  }
  template <typename Function>
  auto on_last_process(Function function) const {
    return restricted(rank_state().is_last_process(), std::move(function));
  }
  template <typename Function>
  auto on_process(Function function, int process_index) const {
    return restricted(rank_state().process_index() == process_index, std::move(function));
  }
  template <typename Function>
  auto on_local_process(Function function, int local_process_index) const {
    return restricted(rank_state().local_process_index() == local_process_index,
                      std::move(function));
  }

  /// This rank's contiguous share of what all ranks have: see split.h. Local.
  template <typename Inputs>
  auto split_between_processes(Inputs inputs, bool apply_padding = false) const {
    return accelerate::split_between_processes(rank_state().process_index(),
                                               rank_state().num_processes(), std::move(inputs),
                                               apply_padding);
  }

  /// Writes the arguments and a newline to stdout, once per node. Local.
  template <typename... Values>
  void print(const Values&... values) const {
    if (!rank_state().is_local_main_process()) return;
    std::ostringstream line;
    (line << ... << values) << '\n';
    rank_state().runtime().write_console(ConsoleStream::kOut, line.str());
  }

 private:
  const auto& rank_state() const { return static_cast<const Self&>(*this).partial_state(); }
  template <typename Function>
  auto restricted(bool runs, Function function) const {
    return RestrictedFunction<Function>(runs || !rank_state().use_distributed(),
                                        std::move(function));
  }
};

struct PartialStateOptions {
  /// Compute on the CPU whatever the Runtime offers.
  bool cpu = false;
  std::optional<InitProcessGroupKwargs> init;
};

class PartialState : public ProcessControl<PartialState> {
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
  /// The launcher that started the ranks, as in Topology::source: "torchrun", "Open MPI", "plain",
  /// ...
  const std::string& launcher() const { return topology().source; }
  int process_index() const { return topology().rank; }
  int local_process_index() const { return topology().local_rank; }
  int num_processes() const { return topology().world_size; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  bool use_distributed() const { return num_processes() > 1; }
  /// Whether there are several ranks, on accelerators other than TPUs.
  bool multi_device() const;

  /// The group of all ranks. Null in a job of one rank.
  /// Errors: c10::ValueError once the group is destroyed.
  const ProcessGroupPtr& group() const {
    const Record& now = record();
    TORCH_CHECK_VALUE(!now.group_destroyed,
                      "the process group was destroyed; after that ranks cannot talk any more");
    return now.group;
  }

  /// For further groups like that of all ranks: with its backend and its time-out.
  GroupOptions group_options() const;

  /// The device on which a rank by itself would compute: the first kind there is.
  c10::Device default_device() const { return runtime_.device(); }

  /// Makes the rank's device the thread's current one of its kind.
  void set_device() const;

  /// Lets go of the group: the job's, unless another is given. A forked process does not own the
  /// job's group and keeps it. Every member does it, when all operations have ended. Local.
  void destroy_process_group(ProcessGroupPtr group = nullptr);

 private:
  // The part of the state that a reset forgets.
  struct Record {
    c10::Device device;
    DistributedType distributed_type;
    InitProcessGroupKwargs init;
    bool debug = false;
    bool fork_launched = false;
    GroupOptions group_options = {};
    std::string backend = {};
    ProcessGroupPtr group = {};
    bool group_destroyed = false;
  };

  friend class ProcessControl<PartialState>;
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
  const PartialState& partial_state() const { return *this; }

  Runtime& runtime_;
  std::optional<Record> record_;
};

}  // namespace accelerate
