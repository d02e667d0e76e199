/// The Runtime of an ordinary process: one rank, real time, real files, real backends.
///
/// The rendezvous of a job's ranks is a c10d TCPStore that rank 0 serves at MASTER_ADDR:MASTER_PORT
/// (or on the listening socket that the launcher handed it). Ranks that mpirun started, and that
/// were told no address, learn rank 0's by MPI if the backend "mpi" is linked in.
///
/// Where there are several ranks, groups are under watch (accelerate/comm/watch/watched_backend.h):
/// the error of a failed operation names the ranks, and in debug mode (ACCELERATE_DEBUG_MODE)
/// operations are compared before they run. A helper thread of the rank waits for other ranks'
/// questions. A handler of std::terminate reports errors that nothing catches, on any thread, and
/// then calls the one before.
#pragma once

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/runtime/device_choice.h"
#include "accelerate/runtime/host.h"
#include "accelerate/runtime/runtime.h"

namespace c10d {
struct TCPStoreOptions;
}  // namespace c10d

namespace accelerate {

class JobWatch;

/// How long an operation of real ranks may last before one of them says why:
/// ACCELERATE_WATCH_SECONDS; 30 s where unset, a year for 0. Errors: c10::ValueError for a text
/// that is not a whole number.
absl::Duration watch_patience(const Environment& environment);

class RealRuntime final : public Runtime {
 public:
  /// Reads place and device from the environment, and writes the place back in torchrun's terms.
  /// Makes the device the current one of this thread. Local.
  /// Errors: InvalidArgument naming the contradictory or missing variables; FailedPrecondition for
  ///         GPUs that need variables which are not set.
  static absl::StatusOr<std::unique_ptr<RealRuntime>> from_environment(Environment environment);

  ~RealRuntime() override;

  c10::Device device() const override { return device_; }
  /// Empties the cache of the device's allocator, and returns free pages of the heap to the system.
  std::optional<DeviceMemoryUse> device_memory() const override;
  void synchronize_device() override;
  void empty_device_cache() override;
  FreeMemory free_memory() const override;
  std::vector<std::string> accelerator_families() const override;
  bool sees_machine() const override { return true; }
  std::string cpu_backend() const override { return default_backend("cpu"); }
  bool owns_process() const override { return true; }
  absl::Time now() override { return absl::Now(); }
  void sleep_for(absl::Duration duration) override { absl::SleepFor(duration); }
  uint64_t random_bits() override;
  FileSystem& files() override { return files_; }
  void write_console(ConsoleStream stream, std::string_view text) override {
    host::write_console(stream, text);
  }
  bool is_terminal(ConsoleStream stream) const override { return host::is_terminal(stream); }
  c10::intrusive_ptr<c10d::Store> store() override;
  c10::intrusive_ptr<c10d::ProcessGroup> new_group(const GroupOptions& options) override;

  /// Leaves the job in order: rank 0, which serves the store, waits until all ranks came here.
  /// Collective; a no-op when the store was never used.
  /// Errors: c10::Error on rank 0 naming the ranks that did not come in five minutes, or those that
  ///         failed meanwhile.
  void leave();

  /// Leaves it after a failure, `what`: ranks that wait for this one learn of it, and rank 0 stays
  /// a moment so that they can. The process must end next. Local; throws nothing.
  void leave_failed(const std::string& what);

 private:
  // Null if the rank is alone.
  const std::shared_ptr<JobWatch>& watch();
  void stop_watch();
  RealRuntime(Topology topology, Environment environment, c10::Device device, std::string host,
              uint16_t port);

  HostFiles files_;
  const c10::Device device_;
  // Makes the store where rank 0 chooses the address.
  c10::intrusive_ptr<c10d::Store> rendezvous(c10d::TCPStoreOptions options);

  std::string master_addr_;
  uint16_t master_port_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<JobWatch> watch_;
  // How long rank 0 waits for the others' end: as long as any operation may wait for its peers.
  std::chrono::milliseconds leave_patience_ = std::chrono::minutes(5);
};

}  // namespace accelerate
