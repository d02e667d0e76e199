/// Tracks with Weights & Biases: runs in folders that `wandb sync` uploads.
///
///   accelerator.init_trackers("my_project", config, {{"wandb", {{"name", "first"}}}});
///   // wandb sync wandb/offline-run-*
///
/// Every rank has a run; with the init_kwarg {"main_process_only", true}, rank 0 alone. See
/// run_settings.h for the arguments of `init_trackers`, and offline_run.h for what is written.
/// `log` takes `commit`, as W&B's does.
/// Threads: as any tracker.
/// Mirrors: accelerate tracking.py, WandBTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/wandb/run.h"

namespace accelerate::trackers {

class WandbTracker final : public GeneralTracker {
 public:
  /// Errors: see run_settings.h.
  explicit WandbTracker(const TrackerSetup& setup);
  /// With a run of another kind.
  explicit WandbTracker(std::unique_ptr<Run> run);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void flush() override;
  void finish() override;

 private:
  const std::unique_ptr<Run> run_;
};

}  // namespace accelerate::trackers
