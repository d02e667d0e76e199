/// Comet, through its Python package comet_ml (3.41 or later).
///
/// init_kwargs are those of comet_ml.start. Numbers are metrics, texts are others, dictionaries are
/// metrics by name; the rest is dropped. The API key is Comet's own business: COMET_API_KEY or
/// .comet.config.
/// Errors, threads: see trackers/bridge/package_tracker.h.
/// Mirrors: accelerate tracking.py, CometMLTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/package_tracker.h"

namespace accelerate::trackers {

class CometMlTracker : public PackageTracker {
 public:
  explicit CometMlTracker(const TrackerSetup& setup,
                          std::unique_ptr<PythonPackage> package = nullptr);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void finish() override;

 private:
  // Of the experiment.
  void call(const std::string& method, PythonList args, PythonDict kwargs = {});
  void set_step(const TrackerStep& step);
};

}  // namespace accelerate::trackers
