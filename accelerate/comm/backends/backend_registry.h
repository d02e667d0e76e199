/// Collective backends by name. Each registers itself from its own source file, so that linking a
/// backend is all it takes to make its name known, and nothing else names it.
/// Threads: registration happens before main; look-ups are read only.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate {

/// What every backend is made from. Ranks are ranks within the group.
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

}  // namespace accelerate
