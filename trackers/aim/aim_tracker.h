/// Aim, through its Python package aim: a repository in the logging_dir.
///
/// init_kwargs are those of aim.Run. Every value is tracked under its name, whatever it is. Of
/// log_images, `kwargs` is a dictionary {"aim_image": of aim.Image, "track": of Run.track}.
/// Errors, threads: see trackers/bridge/package_tracker.h.
/// Mirrors: accelerate tracking.py, AimTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/package_tracker.h"

namespace accelerate::trackers {

class AimTracker : public PackageTracker {
 public:
  explicit AimTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package = nullptr);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void finish() override;

 private:
  void track(PythonValue value, const std::string& name, const TrackerStep& step,
             const TrackerDict& kwargs);

  const std::string repository_;
};

}  // namespace accelerate::trackers
