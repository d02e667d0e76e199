/// ClearML, through its Python package clearml.
///
/// init_kwargs are those of clearml.Task.init; project and task are named by CLEARML_PROJECT,
/// CLEARML_TASK or the project's name. A task that is there already, as under an agent, is used and
/// left open. "train_loss" is series "train" of the plot "loss", and so are eval_ and test_; what
/// is logged without a step is a single value. What is no number is dropped, with a warning.
/// Credentials are ClearML's own business: CLEARML_API_* or clearml.conf.
/// Errors:  std::runtime_error naming clearml: its package is not installed, or what it raised.
///          Training goes on without it. See trackers/bridge/bridge_process.h.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, ClearMLTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

class ClearMlTracker : public GeneralTracker {
 public:
  explicit ClearMlTracker(const TrackerSetup& setup);
  ClearMlTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void flush() override { package_->flush(); }
  void finish() override;

 private:
  const std::string project_;
  const TrackerDict init_kwargs_;
  const TrackerServices& services_;
  const std::unique_ptr<PythonPackage> package_;
};

}  // namespace accelerate::trackers
