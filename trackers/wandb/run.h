/// A W&B run, in the words of W&B's own package.
///
/// Errors:  std::runtime_error naming what went wrong; std::invalid_argument for keyword arguments
///          of `log` that it does not know.
/// Threads: one.
/// Mirrors: wandb.Run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

class Run {
 public:
  virtual ~Run() = default;

  /// `wandb.init(project=..., **init_kwargs)`. First.
  virtual void start() = 0;

  /// `wandb.config.update(values, allow_val_change=True)`
  virtual void update_config(const TrackerDict& values) = 0;

  /// `run.log(values, step=step, **kwargs)`
  virtual void log(const TrackerDict& values, const TrackerStep& step) = 0;

  /// `run.log({name: [wandb.Image(image), ...]}, step=step, **kwargs)`
  virtual void log_images(const std::string& name, const std::vector<TrackerImage>& images,
                          const TrackerStep& step) = 0;

  /// `run.log({name: wandb.Table(columns=columns, data=rows)}, step=step, **kwargs)`
  virtual void log_table(const std::string& name, const TrackerTable& table,
                         const TrackerStep& step) = 0;

  /// `run.log({name: wandb.Histogram(tensor), ...}, step=step, **kwargs)`
  virtual void log_histograms(const TrackerDict& tensors, const TrackerStep& step) = 0;

  virtual void flush() {}

  /// `run.finish()`. Last.
  virtual void finish() = 0;
};

/// A run in a folder that `wandb sync` uploads, see wandb_tracker.h. Errors: std::invalid_argument
/// for init_kwargs, see run_settings.h.
std::unique_ptr<Run> make_offline_run(const TrackerSetup& setup);

}  // namespace accelerate::trackers
