/// SwanLab, through its Python package swanlab.
///
/// init_kwargs are those of swanlab.init. What is logged is passed on as it is. Every rank has one;
/// with the init_kwarg {"main_process_only", true}, rank 0 alone.
/// The API key is SwanLab's own business: SWANLAB_API_KEY or `swanlab login`.
/// Errors, threads: see trackers/bridge/package_tracker.h.
/// Mirrors: accelerate tracking.py, SwanLabTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/package_tracker.h"

namespace accelerate::trackers {

class SwanLabTracker : public PackageTracker {
 public:
  explicit SwanLabTracker(const TrackerSetup& setup,
                          std::unique_ptr<PythonPackage> package = nullptr);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void finish() override;

 private:
  void log_python(PythonDict values, const TrackerStep& step);
};

}  // namespace accelerate::trackers
