/// A recording of a rank's operators: its events, their sums by operator, and Chrome's trace of
/// them.
///
/// Times and memory come in two kinds: "self" is an operator's own, the other includes the
/// operators it called. For devices, self is the work that the operator itself asked for.
/// Units: nanoseconds, bytes; the table writes us, ms, s and b, Kb, Mb, Gb; traces are in
/// microseconds, with the nanoseconds as decimals.
/// Mirrors: torch.profiler.profile.key_averages, torch.autograd.profiler_util.EventList.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/DeviceType.h>

#include "absl/strings/string_view.h"
#include "accelerate/platform/topology.h"

namespace accelerate {

/// One event of a recording.
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

struct KeyAverages {
  /// Groups operators by their input shapes too.
  bool group_by_input_shape = false;
  /// Groups operators by this many functions of their stacks too, from the innermost.
  int64_t group_by_stack_n = 0;
};

struct TableOptions {
  /// "self_cpu_time_total", "cpu_time_total", "cpu_time", "self_device_time_total",
  /// "device_time_total", "device_time", "self_cpu_memory_usage", "cpu_memory_usage",
  /// "self_device_memory_usage", "device_memory_usage", "count" or "flops", the largest first;
  /// "cuda" may stand for "device". Empty: the order in which operators first ran.
  std::string sort_by;
  int64_t row_limit = 100;
  int64_t max_src_column_width = 75;
  int64_t max_name_column_width = 55;
  int64_t max_shapes_column_width = 80;
  std::string header;
  /// Leaves out operators that only ran inside of others.
  bool top_level_events_only = false;
};

/// The totals of one operator's calls.
struct EventAverage {
  std::string key;
  std::vector<std::vector<int64_t>> input_shapes;  ///< if grouped by them
  std::vector<std::string> stack;                  ///< if grouped by it
  int64_t count = 0;
  int64_t self_cpu_time_total = 0;
  int64_t cpu_time_total = 0;
  int64_t self_device_time_total = 0;
  int64_t device_time_total = 0;
  int64_t self_cpu_memory_usage = 0;
  int64_t cpu_memory_usage = 0;
  int64_t self_device_memory_usage = 0;
  int64_t device_memory_usage = 0;
  int64_t flops = 0;
  bool is_device = false;  ///< work of a device, not an operator
  bool is_top_level = false;

  double cpu_time() const { return count == 0 ? 0 : static_cast<double>(cpu_time_total) / count; }
  double device_time() const {
    return count == 0 ? 0 : static_cast<double>(device_time_total) / count;
  }
};

class EventAverages {
 public:
  EventAverages(const std::vector<ProfileEvent>& events, const KeyAverages& grouping);

  const std::vector<EventAverage>& rows() const { return rows_; }
  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }
  size_t size() const { return rows_.size(); }

  /// The whole recording.
  int64_t self_cpu_time_total() const { return self_cpu_time_total_; }
  int64_t self_device_time_total() const { return self_device_time_total_; }

  /// A text with a row per operator. Columns are left out that have nothing but zeros in these
  /// rows: of memory and FLOPs, and of the device where it has done nothing. Errors:
  /// c10::ValueError naming a column to sort by that does not exist.
  std::string table(const TableOptions& options = {}) const;

 private:
  std::vector<EventAverage> rows_;
  int64_t self_cpu_time_total_ = 0;
  int64_t self_device_time_total_ = 0;
};

// ---- Traces in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open.
//
// Categories and arguments are those of Kineto, which other tools read: "cpu_op" with "External
// id", "Sequence number", "Input Dims", ...; "user_annotation", "cpu_instant_event", "kernel".
// Beside them stand "Module Hierarchy", "Call stack" and "flops".
// Format: "Trace Event Format", Google.

/// Facts about an operator that Kineto does not record.
struct TraceNote {
  std::string module;
  std::vector<std::string> stack;
};
/// By the event's number.
using TraceNotes = std::unordered_map<uint64_t, TraceNote>;

/// A trace of events, whose process is the rank. Equal events give equal text.
std::string chrome_trace(const std::vector<ProfileEvent>& events, const Topology& topology);

/// Kineto's trace with the rank for the process's name, the job under "distributedInfo", and notes.
std::string label_kineto_trace(absl::string_view text, const Topology& topology,
                               const TraceNotes& notes);

}  // namespace accelerate
