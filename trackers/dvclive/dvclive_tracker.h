/// Writes DVCLive's files without DVC, for `dvc metrics`, `dvc plots`, `dvc exp` and the DVC
/// extension of VS Code.
///
///   accelerator.init_trackers("mnist", config, {{"dvclive", {{"dir", "results"}}}});
///
///   dvclive/metrics.json                the latest value of each metric, nested at the slashes of
///                                       names, and `step`
///   dvclive/plots/metrics/a/loss.tsv    all values of a/loss: "step<tab>loss", or
///                                       "timestamp<tab>step<tab>loss", as the first row says
///   dvclive/plots/images/a/3.png        images
///   dvclive/params.yaml                 the configuration
///   dvc.yaml                            tells DVC about these files
///
/// If every rank has the tracker, ranks other than 0 write below dvclive/rank_N, dvc.yaml included.
/// Each `log` is a step of DVCLive: numbers are metrics, other values are dropped with a warning.
/// Metrics that are not finite are "nan", "inf" and "-inf". Files of earlier runs in the folder are
/// removed first. With `resume` they are kept, and metrics continue with the step after the last.
///
/// init_kwargs: `dir` ("dvclive"); `resume` (False; DVCLIVE_RESUME also sets it); `dvcyaml`
///          ("dvc.yaml"; another path to a file of that name, or False or None for no such file).
///          DVCLive's `save_dvc_exp`, `exp_name`, `exp_message`, `cache_images`, `report` and
///          `monitor_system` need DVC itself: they have no effect, and a warning says so.
/// log_kwargs: `timestamp` (adds a column with milliseconds since 1970), `plot` (False: only in
///          metrics.json).
/// Differs: a dvc.yaml or params.yaml that another program wrote, as its first line tells, is left
///          alone with a warning. `resume` keeps the entries of params.yaml that are not new.
///          metrics.json is written when the tracker flushes, about each second, and at the end.
///          At most 200 metric files are kept open: the rows of further metrics are written once a
///          minute and before the process ends. Images are ours: DVCLive has them, but HF
///          Accelerate's tracker does not.
/// Fails:   rows wait while the disk is full; metrics.json and the other files keep their contents.
///          After kill -9 the files have all flushed values.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, DVCLiveTracker; dvclive.Live of DVCLive 3.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// The functions of DVCLive's Python package that the tracker uses.
/// Errors:  std::runtime_error naming the file.
/// Threads: one.
/// Mirrors: dvclive.Live.
class Live {
 public:
  virtual ~Live() = default;

  /// The first call, made once: the constructor of the Python class.
  virtual void open() = 0;
  virtual void log_params(const TrackerDict& params) = 0;
  virtual void set_step(int64_t step) = 0;
  virtual int64_t step() const = 0;
  /// `value`: a bool, an int or a float. `kwargs`: `timestamp`, `plot`.
  virtual void log_metric(const std::string& name, const TrackerValue& value,
                          const TrackerDict& kwargs) = 0;
  /// `name`: a file's name with its suffix.
  virtual void log_image(const std::string& name, const TrackerImage& image) = 0;
  virtual void next_step() = 0;
  /// Writes all files. `all`: all buffered values, too, since there may be no other call.
  virtual void flush(bool all) = 0;
  virtual void end() = 0;
};

/// `live`: null for DVCLive's files. Images are NAME/STEP.png, or NAME/I/STEP.png for several
/// images: DVC shows all steps of a folder with a slider. Errors: std::invalid_argument for
/// init_kwargs that Live does not have.
std::unique_ptr<GeneralTracker> make_dvclive_tracker(const TrackerSetup& setup,
                                                     std::unique_ptr<Live> live = nullptr);

}  // namespace accelerate::trackers
