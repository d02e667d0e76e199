/// Tracks with Trackio: into its local database, which `trackio show` reads.
///
///   accelerator.init_trackers("my_project", config, {{"trackio", {{"name", "first"}}}});
///   // trackio show --project my_project
///
/// Every rank has a run; with the init_kwarg {"main_process_only", true}, rank 0 alone. Not in a
/// simulation, as the database is a file of SQLite's own making. See local_run.h for the arguments
/// of `init_trackers` and for what is written.
/// Threads: as any tracker.
/// Mirrors: accelerate tracking.py, TrackioTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/trackio/trackio_run.h"

namespace accelerate::trackers {

class TrackioTracker final : public GeneralTracker {
 public:
  /// Errors: see local_run.h.
  explicit TrackioTracker(const TrackerSetup& setup);
  /// With a run of another kind.
  explicit TrackioTracker(std::unique_ptr<TrackioRun> run);

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
  const std::unique_ptr<TrackioRun> run_;
};

}  // namespace accelerate::trackers
