/// ClearML, through its Python package clearml.
///
/// init_kwargs are those of clearml.Task.init; project and task are named by CLEARML_PROJECT,
/// CLEARML_TASK or the project's name. A task that is there already, as under an agent, is used and
/// left open. "train_loss" is series "train" of the plot "loss", and so are eval_ and test_; what
/// is logged without a step is a single value. What is no number is dropped, with a warning.
/// Credentials are ClearML's own business: CLEARML_API_* or clearml.conf.
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
