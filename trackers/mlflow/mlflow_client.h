/// What the MLflow tracker calls: the functions of MLflow's Python package that it uses, and the
/// error of one that may succeed later.
///
/// Errors:  see MlflowClient.
/// Threads: one at a time.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// The server or the disk cannot be used now; a later call may succeed.
class MlflowAway : public std::runtime_error {
 public:
  explicit MlflowAway(const std::string& text,
                      std::optional<absl::Duration> retry_after = std::nullopt)
      : std::runtime_error(text), retry_after(retry_after) {}
  /// The delay that the server asked for.
  const std::optional<absl::Duration> retry_after;
};

struct MlflowCreateExperiment {
  std::string name;
  std::optional<std::string> artifact_location = std::nullopt;
  std::optional<TrackerDict> tags = std::nullopt;
};

struct MlflowStartRun {
  /// The run to resume.
  std::optional<std::string> run_id = std::nullopt;
  std::string experiment_id;
  std::optional<std::string> run_name = std::nullopt;
  bool nested = false;
  std::optional<TrackerDict> tags = std::nullopt;
  std::optional<std::string> description = std::nullopt;
};

/// The functions of MLflow's Python package that the MLflow tracker uses.
///
/// Errors:  MlflowAway if MLflow cannot be reached now, std::runtime_error if it refuses.
/// Threads: one at a time.
/// Mirrors: mlflow.search_experiments, create_experiment, start_run, log_metrics, log_params,
///          set_tags, log_image, log_artifact, end_run.
class MlflowClient {
 public:
  virtual ~MlflowClient() = default;

  /// The ids of the experiments with exactly this name.
  virtual std::vector<std::string> search_experiments(const std::string& name) = 0;
  /// Returns its id.
  virtual std::string create_experiment(const MlflowCreateExperiment& experiment) = 0;
  virtual void start_run(const MlflowStartRun& run) = 0;

  // These may buffer values until `flush`; all but `log_metrics` need a run.

  /// `metrics`: numbers and bools. `step.kwargs`: `timestamp`, in ms.
  virtual void log_metrics(const TrackerDict& metrics, const TrackerStep& step) = 0;
  virtual void log_params(const TrackerDict& params) = 0;
  virtual void set_tags(const TrackerDict& tags) = 0;
  /// `artifact_file`: a path below the run's artifacts.
  virtual void log_image(const TrackerImage& image, const std::string& artifact_file) = 0;
  virtual void log_text(const std::string& text, const std::string& artifact_file) = 0;
  /// `artifact_path`: a folder below the run's artifacts; empty: the artifacts' own folder.
  virtual void log_artifact(const std::string& local_path, const std::string& artifact_path) = 0;
  /// `all`: all buffered values, since there may be no other call.
  virtual void flush(bool /*all*/) {}

  /// Marks the run as finished.
  virtual void end_run(const TrackerStep& /*when*/) = 0;

  /// Whether it may be called now; false soon after a failure.
  virtual bool is_ready() { return true; }
  /// Waits until it may be called again, which is soon: from now on all calls have to return by
  /// `end`. False if `end` comes first.
  virtual bool wait_until_ready(absl::Time /*end*/) { return true; }
  /// The lost values as a text; empty if all were kept.
  virtual std::string losses() { return {}; }
};

}  // namespace accelerate::trackers
