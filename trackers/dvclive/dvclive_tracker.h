/// DVCLive's files, which `dvc metrics`, `dvc plots`, `dvc exp` and the DVC extension of VS Code
/// read: see trackers/dvclive/live_files.h for what they are and for the init_kwargs.
///
///   accelerator.init_trackers("mnist", config, {{"dvclive", {{"dir", "results"}}}});
///
/// A `log` is a step of DVCLive: its numbers are metrics, and what is no number is dropped with a
/// warning. log_kwargs: `timestamp` (a column with milliseconds since 1970), `plot` (False: in the
/// summary only).
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, DVCLiveTracker. Images are ours: DVCLive has them, its tracker
///          does not.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/dvclive/live.h"

namespace accelerate::trackers {

class DvcliveTracker final : public GeneralTracker {
 public:
  explicit DvcliveTracker(const TrackerSetup& setup);
  DvcliveTracker(const TrackerSetup& setup, std::unique_ptr<Live> live);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  /// NAME/STEP.png, or NAME/I/STEP.png where there are several: DVC shows those of all steps of a
  /// folder with a slider.
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void flush() override;
  void finish() override;
  void abandon() override;

 private:
  // That it is dropped; once for a name and type.
  void warn_of(const std::string& name, const TrackerValue& value);

  const TrackerServices& services_;
  const std::unique_ptr<Live> live_;
  std::set<std::string> said_;
};

}  // namespace accelerate::trackers
