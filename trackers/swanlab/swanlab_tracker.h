/// SwanLab, through its Python package swanlab.
///
/// init_kwargs are those of swanlab.init. What is logged is passed on as it is. Every rank has one;
/// with the init_kwarg {"main_process_only", true}, rank 0 alone.
/// The API key is SwanLab's own business: SWANLAB_API_KEY or `swanlab login`.
/// Errors:  std::runtime_error naming swanlab: its package is not installed, or what it raised.
///          Training goes on without it. See trackers/bridge/bridge_process.h.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, SwanLabTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

class SwanLabTracker : public GeneralTracker {
 public:
  explicit SwanLabTracker(const TrackerSetup& setup);
  SwanLabTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void flush() override { package_->flush(); }
  void finish() override;

 private:
  void log_python(PythonDict values, const TrackerStep& step);

  const std::string project_;
  const TrackerDict init_kwargs_;
  const std::unique_ptr<PythonPackage> package_;
};

}  // namespace accelerate::trackers
