/// Keeps runs in Trackio's local files, which `trackio show` reads.
///
///   accelerator.init_trackers("my_project", config, {{"trackio", {{"name", "first"}}}});
///   // trackio show --project my_project
///
///   DIR/PROJECT.db                           metrics and configurations of all runs of a project
///   DIR/media/PROJECT/RUN/STEP/HASH.png      images
///
/// DIR is TRACKIO_DIR, else HF_HOME/trackio, else XDG_CACHE_HOME/huggingface/trackio, else
/// ~/.cache/huggingface/trackio. Every rank has a run; with the init_kwarg
/// {"main_process_only", true}, rank 0 alone. Tensors of up to 32 elements are lists, larger ones
/// histograms. Values are buffered until `flush`, which is one transaction; rows of a failed
/// transaction are written by the next one, up to 64 MiB. Several processes may write to one
/// project at the same time. Not available in a simulation, since SQLite opens the file itself.
///
/// init_kwargs: `name`, `group`, `config` and `resume` ("never", "allow" or "must"). Other
/// arguments
///          of `trackio.init` have no effect, and a warning says so.
/// Differs: the configuration is written at the start and again whenever it changes; a resumed
/// run's
///          configuration is extended. The machine's own metrics are not logged.
/// Errors:  std::invalid_argument for kwargs, see init_kwargs.h, and for project names that Trackio
///          reserves; std::runtime_error naming the file, see sqlite_database.h.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, TrackioTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/trackio/trackio_run.h"

namespace accelerate::trackers {

class TrackioTracker final : public GeneralTracker {
 public:
  explicit TrackioTracker(const TrackerSetup& setup);
  /// With another implementation of the run.
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
