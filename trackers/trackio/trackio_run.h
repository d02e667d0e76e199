/// A Trackio run, in the words of Trackio's own package.
///
/// Errors:  std::runtime_error naming what went wrong; std::invalid_argument for keyword arguments
///          of `log`, which has none but `step`.
/// Threads: one.
/// Mirrors: trackio.Run.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

class TrackioRun {
 public:
  virtual ~TrackioRun() = default;

  /// `trackio.init(project=..., **init_kwargs)`. First.
  virtual void start() = 0;

  /// `trackio.config.update(values)`
  virtual void update_config(const TrackerDict& values) = 0;

  /// `run.log(values, step=step, **kwargs)`
  virtual void log(const TrackerDict& values, const TrackerStep& step) = 0;

  /// `run.log({name: trackio.Image(image), ...}, step=step, **kwargs)`; of several images of a name
  /// the names are NAME/0, NAME/1, ...
  virtual void log_images(const TrackerImages& images, const TrackerStep& step) = 0;

  /// `run.log({name: trackio.Table(columns=columns, data=rows)}, step=step, **kwargs)`
  virtual void log_table(const std::string& name, const TrackerTable& table,
                         const TrackerStep& step) = 0;

  /// `run.log({name: trackio.Histogram(tensor), ...}, step=step, **kwargs)`
  virtual void log_histograms(const TrackerDict& tensors, const TrackerStep& step) = 0;

  virtual void flush() {}

  /// `run.finish()`. Last.
  virtual void finish() = 0;
};

/// A run in Trackio's local files, see trackio_tracker.h.
std::unique_ptr<TrackioRun> make_local_run(const TrackerSetup& setup);

}  // namespace accelerate::trackers
