/// A recording summed up by operator.
///
/// Times and memory come in two kinds: "self" is an operator's own, the other includes the
/// operators it called. Of devices, self is the work that the operator itself asked for.
/// Units: nanoseconds, bytes; the table writes us, ms, s and b, Kb, Mb, Gb.
/// Mirrors: torch.profiler.profile.key_averages, torch.autograd.profiler_util.EventList.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/profiling/event.h"

namespace accelerate {

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

  /// A text with a row per operator; columns without recorded values are left out.
  /// Errors: c10::ValueError naming a column to sort by that does not exist.
  std::string table(const TableOptions& options = {}) const;

 private:
  std::vector<EventAverage> rows_;
  int64_t self_cpu_time_total_ = 0;
  int64_t self_device_time_total_ = 0;
};

}  // namespace accelerate
