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
/// init_kwargs: see run_settings.h. log_kwargs: `commit`, as in W&B.
/// Errors:  std::invalid_argument for kwargs; std::runtime_error naming the file. The next flush
///          writes records that could not be written, see record_log.h. If a run could not begin,
///          the next call begins it; earlier values are lost, except for the configuration.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, WandBTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/wandb/run.h"

namespace accelerate::trackers {

class WandbTracker final : public GeneralTracker {
 public:
  explicit WandbTracker(const TrackerSetup& setup);
  /// With another implementation of the run.
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
