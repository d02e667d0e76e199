/// Collective backends by name, and what they may offer besides. Each registers itself from its own
/// source file, so that a program knows the backends with which it is linked. Which those are is
/// said in accelerate/process/BUILD, and for CMake in tools/cmake/libraries.cmake.
/// Threads: registration happens before main; look-ups are read only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate {

/// The arguments of every backend's factory. Ranks are ranks within the group.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout;
  /// All members share one machine, so the loopback interface reaches them all.
  bool single_node = true;
};

/// A backend whose operations can be interrupted from outside. A blocked rank then learns of
/// another rank's failure at once; otherwise it waits until its own time-out.
class Interruptible {
 public:
  virtual ~Interruptible() = default;
  /// All pending and later operations of the backend fail.
  /// Threads: any.
  virtual void interrupt() = 0;
};

/// A connection between the members of a group of its own, on which each publishes a hash of calls
/// that it is about to make; equal calls have equal hashes.
///
/// Errors: c10::DistBackendError if a member is gone or late, or after interrupt.
/// Threads: `enter` is called by one thread at a time, `compare_all` and `interrupt` by any.
class CallComparer {
 public:
  virtual ~CallComparer() = default;

  struct Entry {
    uint64_t round = 0;  ///< number of the call, for `compare_all`
    /// False if a member that has reached this call already published another hash.
    bool agrees = true;
  };
  /// Publishes this member's next hash. Where two members' hashes differ, at least the later one
  /// learns it here, before its operation begins.
  virtual Entry enter(uint64_t hash, std::chrono::milliseconds timeout) = 0;

  /// Waits until all members have reached the call. Returns whether all hashes are equal.
  virtual bool compare_all(uint64_t round, std::chrono::milliseconds timeout) = 0;

  /// Ends all waits; later calls throw.
  virtual void interrupt() = 0;
};

using BackendFactory =
    std::function<c10::intrusive_ptr<c10d::Backend>(const BackendOptions& options)>;

/// Makes `factory` known under `name`. The value only serves static initialisation.
bool register_backend(std::string name, BackendFactory factory);

/// Collective over the group. Errors: c10::ValueError listing the known names for an unknown one;
/// what the backend throws if a member does not join.
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const BackendOptions& options);

/// Known names, sorted.
std::vector<std::string> backend_names();

/// A user's choice of backends by device: "gloo", or "cpu:gloo,cuda:nccl".
struct DeviceBackend {
  c10::DeviceType device;
  std::string backend;

  bool operator==(const DeviceBackend&) const = default;
};

/// The backends that a rank on `device` needs: first the one for the device's tensors, then one for
/// CPU tensors, with which ranks exchange what the library itself needs. A bare name is the
/// device's backend. Without a choice for the CPU, the device's backend is used if it carries CPU
/// tensors ("gloo", "mpi"), else "gloo". Entries for other devices are ignored, so that one choice
/// serves machines with and without them.
/// Errors: c10::ValueError for text that is not such a list, a device named twice, and a list
///         without the rank's device.
std::vector<DeviceBackend> backends_by_device(const std::string& choice, c10::DeviceType device);

/// Rendezvous without a known address: some launchers, as MPI's, give ranks a way to exchange data
/// before any connection exists. A backend registers such a way from its own source file.
/// Returns rank 0's `text` on every rank. Collective over the job.
/// Errors: c10::DistBackendError if rank 0 is late or belongs to another job.
using RendezvousExchange = std::function<std::string(
    const std::string& text, int rank, int world_size, std::chrono::milliseconds timeout)>;

/// `launcher` is the Topology::source of the ranks that can use it. The returned value only serves
/// static initialisation.
bool register_rendezvous(std::string launcher, RendezvousExchange publish);

/// Null if the launcher has none.
const RendezvousExchange* find_rendezvous(const std::string& launcher);

}  // namespace accelerate
