/// Keeps Weights & Biases runs in folders of offline runs, which `wandb sync` uploads.
///
///   accelerator.init_trackers("my_project", config, {{"wandb", {{"name", "first"}}}});
///   // wandb sync wandb/offline-run-*
///
///   DIR/wandb/offline-run-20260102_030405-abcd1234/
///     run-abcd1234.wandb          all values as records; see record_log.h and wandb.proto
///     files/config.yaml           the configuration
///     files/wandb-summary.json    the last value of each name, written when the run finishes
///     files/wandb-metadata.json   the facts about the machine that W&B reads
///     files/media/images/NAME_STEP_HASH.png, files/media/table/NAME_STEP_HASH.table.json
///
/// Every rank has a run; with the init_kwarg {"main_process_only", true}, rank 0 alone. Folders are
/// named in UTC. The values of one step are one record. A `log` without a step adds its values to
/// the open step and ends it. Values of a step before the open one are dropped with a warning.
/// `flush` also writes the open step; its later values replace that record.
/// init_kwargs: `entity`, `name`, `id`, `group`, `job_type`, `tags`, `notes`, `dir`, `config` and
///          `mode` ("online", "offline", "dryrun", "disabled"). `resume`, `reinit`, `save_code` and
///          `settings` have no effect; a warning says so.
/// log_kwargs: `commit`, as in W&B.
/// Errors:  std::invalid_argument for kwargs; std::runtime_error naming the file. The next flush
///          writes records that could not be written, see record_log.h. If a run could not begin,
///          the next call begins it; earlier values are lost, except for the configuration.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, WandBTracker.
#pragma once

#include <string>
#include <vector>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// The calls that a W&B run gets; the tracker "wandb" makes them on files.
class WandbTracker : public GeneralTracker {
 public:
  void log_images(const TrackerImages& images, const TrackerStep& step) final {
    for (const auto& [name, of_name] : images) log_images_of(name, of_name, step);
  }
  /// `run.log({name: [wandb.Image(image), ...]}, step=step, **kwargs)`
  virtual void log_images_of(const std::string& name, const std::vector<TrackerImage>& images,
                             const TrackerStep& step) = 0;
};

}  // namespace accelerate::trackers
