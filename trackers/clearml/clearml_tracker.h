/// Tracks with ClearML's Python package clearml.
///
/// init_kwargs are those of clearml.Task.init; CLEARML_PROJECT and CLEARML_TASK, else the project's
/// name, name project and task. A task that already exists, for example under an agent, is used and
/// left open. "train_loss" is the series "train" of the plot "loss"; eval_ and test_ likewise.
/// Values without a step are single values. Values that are not numbers are dropped with a warning.
/// ClearML reads its credentials itself: CLEARML_API_* or clearml.conf.
/// Errors, threads: see trackers/bridge/package_tracker.h.
/// Mirrors: accelerate tracking.py, ClearMLTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/package_tracker.h"

namespace accelerate::trackers {

class ClearMlTracker : public PackageTracker {
 public:
  explicit ClearMlTracker(const TrackerSetup& setup,
                          std::unique_ptr<PythonPackage> package = nullptr);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void finish() override;
};

}  // namespace accelerate::trackers
