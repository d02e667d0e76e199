/// A tracker that is written in Python: a class with the methods of the peer's GeneralTracker.
///
///   Accelerator accelerator({.log_with = {python_tracker(
///       "neptune", {.module = "trackers/neptune_tracker.py", .class_name = "NeptuneTracker"})}});
///
/// The class is called with the project's name, the logging_dir if it requires one, and the
/// init_kwargs; then come its `start`, `store_init_configuration(values)`,
/// `log(values, step=..., **kwargs)`, `log_images` and `log_table(table_name, columns=...,
/// data=..., step=..., **kwargs)` likewise, and `finish`. It needs those that are called, and
/// `start` and `finish` if it likes.
///
/// A program that knows of none has the tracker "python" if the variable ACCELERATE_PYTHON_TRACKER
/// names one: MODULE:CLASS or FILE.py:CLASS.
/// Errors:  std::runtime_error of a call naming the tracker: the module or class is not there, or
///          what it raised. See trackers/bridge/bridge_process.h.
/// Threads: as any tracker's; the class is in a process of its own.
/// Mirrors: accelerate tracking.py, GeneralTracker, for classes of users.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/package_tracker.h"

namespace accelerate::trackers {

struct PythonTrackerOptions {
  /// As `import` takes it, or the path of a file whose name ends in ".py".
  std::string module;
  std::string class_name;
  bool requires_logging_directory = false;
  bool main_process_only = true;
};

/// For `log_with` or register_tracker_class.
TrackerClass python_tracker(std::string name, const PythonTrackerOptions& options);

class PythonTracker : public PackageTracker {
 public:
  /// `name`: the tracker's, for messages.
  PythonTracker(const std::string& name, const TrackerSetup& setup, PythonTrackerOptions options);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void finish() override;

 private:
  const PythonTrackerOptions options_;
  const std::string class_path_;
  const std::string object_;  // the path of what the class made
  const std::string logging_dir_;
};

}  // namespace accelerate::trackers
