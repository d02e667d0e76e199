/// Trackers that are written in Python: classes with the methods of HF Accelerate's GeneralTracker.
///
///   Accelerator accelerator({.log_with = {python_tracker(
///       "neptune", {.module = "trackers/neptune_tracker.py", .class_name = "NeptuneTracker"})}});
///
/// The class is constructed with the project's name, the logging_dir if it requires one, and the
/// init_kwargs. Then `start`, `store_init_configuration(values)`, `log(values, step=...,
/// **kwargs)`, `log_images` likewise, `log_table(table_name, columns=..., data=..., step=...,
/// **kwargs)` and `finish` are called. `start` and `finish` are optional; the class needs the other
/// methods that the program calls.
///
/// Every program also has the tracker "python" if the variable ACCELERATE_PYTHON_TRACKER names a
/// class: MODULE:CLASS or FILE.py:CLASS.
/// Errors: std::runtime_error of a call naming the tracker: the module or class does not exist, or
///         the raised exception. See trackers/bridge/python_package.h.
/// Threads: as any tracker's; the class runs in a process of its own.
/// Mirrors: accelerate tracking.py, GeneralTracker, for classes of users.
#pragma once

#include <string>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

struct PythonTrackerOptions {
  /// A module's name as in `import`, or the path of a file that ends with ".py".
  std::string module;
  std::string class_name;
  bool requires_logging_directory = false;
  bool main_process_only = true;
};

/// For `log_with` or register_tracker_class.
TrackerClass python_tracker(std::string name, const PythonTrackerOptions& options);

}  // namespace accelerate::trackers
