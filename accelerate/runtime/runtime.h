/// The one door between a rank and the world outside it.
///
/// Time, randomness, environment, files, console, rendezvous store and process groups are asked of
/// a Runtime and of nothing else. There is one Runtime per process in production (RealRuntime) and
/// one per rank in a simulation; the library cannot tell which it has. There is no other
/// process-wide state: whatever "all instances share" is shared through a Runtime (see `shared`).
///
/// Threads: a Runtime belongs to its rank's thread. A helper thread of that rank may read it after
///          installing it with a RuntimeScope; `shared` and `environment` are not synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/time/time.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/topology.h"

namespace accelerate {

/// The arguments of a new process group.
struct GroupOptions {
  /// Global ranks of the members, ascending; empty means all ranks of the job.
  std::vector<int> ranks;
  /// The same on every member. Empty: derived from the ranks. A name may be used again, by all
  /// members alike.
  std::string name;
  /// How long an operation may wait for its peers.
  absl::Duration timeout = absl::Minutes(30);
  /// Name of a registered backend ("gloo", ...); empty lets the Runtime choose.
  std::string backend;
  /// The axis of the mesh that the members stand along, the first of the axes that have the same
  /// members; the same on every member. Reports count what the group sends to this axis. Absent:
  /// the group belongs to no axis, like that of all ranks of the job, or to several axes at once.
  std::optional<MeshAxis> axis = std::nullopt;
};

enum class ConsoleStream { kOut, kErr };

/// Bytes that a new object could take.
struct FreeMemory {
  /// By index, of devices of the kind that the rank computes on. Those that do not answer are left
  /// out.
  std::vector<std::pair<int, int64_t>> accelerators;
  /// The host's; absent if it is not counted.
  std::optional<int64_t> host;
};

/// Something that a device did, or will have done by `end`.
struct DeviceWork {
  std::string name;
  c10::Device device;
  int64_t stream = 0;
  absl::Time start;
  absl::Time end;
  /// Whether the operator that this thread runs asked for it; a collective begins by itself.
  bool from_operator = true;
};

/// Bytes of a device's memory.
struct DeviceMemoryUse {
  int64_t in_use = 0;
  int64_t peak = 0;
  int64_t capacity = 0;
};

/// What a device has or lacks beyond its family.
enum class DeviceTrait : uint8_t {
  kFp8Products,  ///< it multiplies matrices in fp8 itself
  kRocm,         ///< a GPU of AMD's, which programs use as one of CUDA
  kFirstGaudi,   ///< a Gaudi of the first generation, which has no fp16
};

/// What the memory of a tensor is for, where its use does not tell.
enum class MemoryKind : uint8_t {
  kParameter,          ///< a parameter, or the rank's shard of one
  kGatheredParameter,  ///< the copy of a whole parameter, made for one use
  kGradient,           ///< of a parameter, or of a shard
  kReductionBuffer,    ///< what gradients are reduced in
  kBuffer,             ///< a module's buffer
};

/// Work of a rank that goes on behind its training loop.
///
/// A step is called again and again until it returns true. Where nothing is to be done yet, as
/// while another rank's part is missing, it returns false at once instead of waiting. In production
/// steps run on a thread of their own, of a lower priority (nice 10) than training; in a simulation
/// on the rank's thread, at moments drawn from the seed: whenever it asks its Runtime for
/// something. So a step may use the Runtime's files(), store() and now(), and nothing else of the
/// rank's: no process group, no random numbers. A step tells others of files that earlier steps
/// wrote, because a simulated disk takes its time between steps.
///
/// A transfer between a file and memory is a task of one step that is to begin at once
/// (BackgroundStart::kAtOnce): its time passes beside what the rank does until wait(). Until then
/// the memory is the task's.
class BackgroundTask {
 public:
  /// Waits for the end; an exception that was not asked for is lost.
  virtual ~BackgroundTask() = default;

  /// Whether the last step was done, or threw. Does not wait.
  virtual bool is_done() = 0;

  /// Returns when it is done. Throws what a step threw, once.
  virtual void wait() = 0;
};

/// One step of a background task. Returns whether the task is done.
using BackgroundStep = std::function<bool()>;

/// When the first step of a task runs.
enum class BackgroundStart : uint8_t {
  kLater,   ///< as all others
  kAtOnce,  ///< in a simulation before start_background returns, unless another task's step runs
};

class Runtime {
 public:
  Runtime(Topology topology, Environment environment);
  virtual ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The Runtime installed on this thread. Errors: c10::Error saying how to get one.
  static Runtime& current();
  /// The same, or null where none is installed.
  static Runtime* find_current();
  /// Whether the current one is rank 0's, or there is none.
  static bool is_on_first_rank();

  const Topology& topology() const { return topology_; }
  Environment& environment() { return environment_; }
  const Environment& environment() const { return environment_; }

  /// The device this rank computes on.
  virtual c10::Device device() const = 0;

  /// The kind of device, where the device type does not say: "gpu", "npu", "hpu", "xpu", "mlu",
  /// "sdaa", "musa", "neuron", "tpu" or "cpu". Decides the DistributedType.
  virtual std::string device_family() const;

  /// The kinds of accelerator this rank could compute on, best first, by the names of
  /// device_family(); the rank may compute on the CPU all the same.
  virtual std::vector<std::string> accelerator_families() const;

  /// The model of the rank's device, as in "h100"; empty if unknown.
  virtual std::string device_name() const { return ""; }

  /// Whether the rank's device has the trait; absent: the device itself, or the machine, is to be
  /// asked. Local; any thread of the rank.
  virtual std::optional<bool> device_has(DeviceTrait trait) const { return std::nullopt; }

  /// Whether what the machine has besides `files()` is there for the rank: its network, programs,
  /// libraries, drivers and kernel.
  virtual bool sees_machine() const { return false; }

  /// The backend of the job's group where the rank computes on the CPU although it has another
  /// device; empty: the one that new_group chooses serves both.
  virtual std::string cpu_backend() const { return ""; }

  /// Whether this rank has its process to itself, so that what belongs to the process, like the
  /// CPUs it runs on and what LibTorch keeps once per process, is the rank's to change.
  virtual bool owns_process() const { return false; }

  /// The use of the device's memory; absent if it is not counted.
  virtual std::optional<DeviceMemoryUse> device_memory() const { return std::nullopt; }

  /// Asked for anew at each call. The default knows what device_memory() tells.
  virtual FreeMemory free_memory() const;

  /// Gives unused memory back that an allocator of the device keeps for reuse. Does nothing where
  /// no allocator does so, as on a simulated device.
  virtual void empty_device_cache() {}

  /// Tells `observer` of all work that this rank gives to its device from now on, when it gives it;
  /// null ends that. A Runtime whose device has a profiler of its own tells nothing.
  virtual void observe_device(std::function<void(const DeviceWork&)> observer) {}

  /// Says what the tensor's memory is for from now on, until it is freed. A Runtime that counts
  /// memory by kind goes by it, the default takes no notice. Local; any thread of the rank.
  virtual void tag_memory(const at::Tensor& tensor, MemoryKind kind) {}

  /// Returns when the device has done all work given to it.
  virtual void synchronize_device() {}

  /// Says that these tensors are replicas: each rank of the group, but for those of these numbers
  /// in it (`without`), has tensors of the same names, and by now of the same values. A Runtime
  /// that can tell that they differ throws c10::Error naming the first that does, the first element
  /// in which it does, and the ranks; the default believes it. Local: ranks call it in the same
  /// order, each at its own time; `what` names the tensors as a whole. Returns whether the Runtime
  /// compares them.
  virtual bool check_replicas(const std::string& what,
                              const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                              const std::vector<int>& without,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    return false;
  }

  // What the rank's program has come to, for a Runtime that counts it and may let something go
  // wrong there: sleep, throw, or end the program. The defaults take no notice. Local.

  /// An optimizer of the job has made a step, skipped or not.
  virtual void record_step() {}
  /// A checkpoint of the whole state is about to be saved, or loaded.
  virtual void record_save() {}
  virtual void record_load() {}
  /// A loader is about to give the rank a batch. Returns whether it may: if not, its pass ends as
  /// if there were no more data.
  virtual bool record_batch() { return true; }

  /// When the rank will be ended from outside, if that was announced: by a scheduler of jobs, or a
  /// machine that is taken back.
  virtual std::optional<absl::Time> termination() { return std::nullopt; }

  /// Wall time; virtual time in a simulation.
  virtual absl::Time now() = 0;
  virtual void sleep_for(absl::Duration duration) = 0;

  /// 64 fresh random bits. In a simulation they follow from the seed and the rank.
  virtual uint64_t random_bits() = 0;

  /// The disk.
  virtual FileSystem& files() = 0;

  /// Begins work behind the rank's own; see BackgroundTask. The Runtime outlives the result.
  virtual std::unique_ptr<BackgroundTask> start_background(
      BackgroundStep step, BackgroundStart start = BackgroundStart::kLater);

  /// Writes text at once, unbuffered by the library.
  virtual void write_console(ConsoleStream stream, std::string_view text) = 0;
  /// Whether a person watches the stream, so that redrawing a line makes sense.
  virtual bool is_terminal(ConsoleStream stream) const = 0;

  /// The job's key-value store. The first call connects. Collective only in that rank 0 serves it.
  /// Errors: c10::Error naming the address when rank 0 cannot be reached.
  virtual c10::intrusive_ptr<c10d::Store> store() = 0;

  /// Makes a process group. Collective over its members; others need not call.
  /// Errors: c10::ValueError for a bad rank list, an unknown backend, or when this rank is not
  ///         a member; c10::DistBackendError when a member does not come.
  virtual c10::intrusive_ptr<c10d::ProcessGroup> new_group(const GroupOptions& options) = 0;

  /// The T that everything on this Runtime shares; made by `make` on first use.
  template <typename T, typename Make>
  T& shared(Make&& make) {
    std::shared_ptr<void>& slot = shared_[std::type_index(typeid(T))];
    if (!slot) slot = std::shared_ptr<T>(make());
    return *static_cast<T*>(slot.get());
  }
  /// The shared T if there is one, else nullptr.
  template <typename T>
  T* find_shared() const {
    auto found = shared_.find(std::type_index(typeid(T)));
    return found == shared_.end() ? nullptr : static_cast<T*>(found->second.get());
  }
  /// Forgets the shared T, so that the next `shared` makes it anew.
  template <typename T>
  void reset_shared() {
    shared_.erase(std::type_index(typeid(T)));
  }
  /// Forgets everything shared. Derived classes call it before what it depends on goes.
  void clear_shared() { shared_.clear(); }

 protected:
  /// `options.ranks` made explicit and checked, and `options.name` filled in.
  GroupOptions resolve_group(const GroupOptions& options);

 private:
  const Topology topology_;
  Environment environment_;
  std::map<std::type_index, std::shared_ptr<void>> shared_;
  std::map<std::string, int> groups_made_;  // by name
};

/// Runtime::tag_memory of the current Runtime; nothing on threads without one.
void tag_memory(const at::Tensor& tensor, MemoryKind kind);

/// Installs a Runtime as the current one of this thread for a scope. Scopes nest.
class RuntimeScope {
 public:
  explicit RuntimeScope(Runtime& runtime);
  ~RuntimeScope();
  RuntimeScope(const RuntimeScope&) = delete;
  RuntimeScope& operator=(const RuntimeScope&) = delete;

 private:
  Runtime* previous_;
};

}  // namespace accelerate
