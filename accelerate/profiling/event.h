/// One event of a recording.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

namespace accelerate {

struct ProfileEvent {
  enum class Kind {
    kOperator,
    kBackward,    ///< a node of the backward pass
    kAnnotation,  ///< a named scope, such as a step
    kMemory,      ///< memory was allocated or freed
    kDevice,      ///< work of a device: a kernel, a copy, a collective
  };

  std::string name;
  Kind kind = Kind::kOperator;
  /// The device of kDevice and kMemory events; otherwise the CPU.
  c10::DeviceType device_type = c10::DeviceType::CPU;
  int device_index = 0;
  /// A thread of the process; of kDevice the stream.
  uint64_t thread = 0;
  /// Since an epoch that is the same for all ranks. A simulation's are virtual.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// The enclosing event on the same thread; of kDevice the operator that launched it.
  /// An index into the events, less than this one's.
  std::optional<size_t> parent = std::nullopt;
  /// Number of the event in the trace; 0 if it has none.
  uint64_t id = 0;
  /// The number shared by a forward operator and its node of the backward pass; -1: none.
  int64_t sequence_nr = -1;
  /// One per argument, empty for arguments that are not tensors. None unless shapes are recorded.
  std::vector<std::vector<int64_t>> shapes = {};
  std::vector<std::string> types = {};
  uint64_t flops = 0;
  /// For kMemory, the bytes allocated, negative if freed.
  int64_t bytes = 0;
  /// Name of the module whose parameter an operator uses, in forward and backward pass; or empty.
  std::string module = {};
  /// The user's functions, innermost first.
  std::vector<std::string> stack = {};

  int64_t duration_ns() const { return end_ns - start_ns; }
};

}  // namespace accelerate
