/// Keeps MLflow runs, on a server or in a folder.
///
///   Accelerator accelerator({.log_with = {"mlflow"}});
///   accelerator.init_trackers("digits", config, {{"mlflow", {{"run_name", "first"}}}});
///
/// `init_kwargs`: run_id, run_name, tags (a dictionary, or one as JSON), nested_run, description,
/// logging_dir (where a new experiment's artifacts go), and `tracking_uri`, which HF Accelerate
/// lacks. MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS and
/// MLFLOW_NESTED_RUN take precedence over arguments. Without a tracking URI runs go to the folder
/// `mlruns` of the Accelerator's logging_dir, or of the working directory.
///
/// Credentials are MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN, or those in the URI; no
/// message contains them. MLFLOW_TRACKING_INSECURE_TLS and _SERVER_CERT_PATH configure the trusted
/// certificates.
///
/// If the server cannot be reached or answers 429 or 5xx, or if the disk is full, calls are retried
/// with growing delays, and up to half a million metrics wait. Values that the server refuses, and
/// values that still wait half a minute after the end, are lost; a warning has their number. If an
/// answer of the server is lost, the request is repeated. This changes nothing for params, tags,
/// experiments, and metrics on servers with a database, but may leave an empty run behind.
///
/// `nested_run` has no effect: no other run in this process could be the parent.
/// Errors:  std::invalid_argument for `init_kwargs`; others std::runtime_error, reported once.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, MLflowTracker.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
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

/// The functions of MLflow's Python package that the tracker uses.
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

class MlflowTracker final : public GeneralTracker {
 public:
  /// `client`: null for the tracking URI's.
  explicit MlflowTracker(const TrackerSetup& setup, std::unique_ptr<MlflowClient> client = nullptr);

  void start() override;
  /// Logs each value as a parameter with its text. Texts of more than 500 characters are dropped.
  void store_init_configuration(const TrackerDict& values) override;
  /// Logs bools, ints and floats as metrics and drops other values. kwargs: `timestamp` in ms.
  void log(const TrackerDict& values, const TrackerStep& step) override;
  /// Writes the files images/NAME_step_STEP_INDEX.png; without a step, STEP is 0.
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  /// Writes the file tables/NAME_step_STEP.json: {"columns": [...], "data": [[...], ...]}.
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void flush() override;
  void finish() override;
  /// Leaves the run in the state "running"; warns about lost values.
  void abandon() override;

  /// For `unwrap<MlflowTracker>()`: files of the run. Local paths are those of the setup's
  /// FileSystem; a local file must not change until the next flush.
  void log_figure(const TrackerImage& figure, const std::string& artifact_file) {
    client_->log_image(figure, artifact_file);
  }
  void log_artifact(const std::string& local_path, const std::string& artifact_path = "") {
    client_->log_artifact(local_path, artifact_path);
  }
  void log_artifacts(const std::string& local_dir, const std::string& artifact_path = "");
  void set_tags(const TrackerDict& tags) { client_->set_tags(tags); }

 private:
  void begin();
  void flush(bool all);
  // Reports when the service becomes unavailable, and when it is available again.
  template <typename Function>
  void while_there(Function&& function);
  // Warns once for each `about`.
  void warn_once(const std::string& about, const std::function<std::string()>& text);

  const TrackerServices& services_;
  std::string experiment_name_;
  std::optional<std::string> artifact_location_;
  MlflowStartRun run_;
  std::unique_ptr<MlflowClient> client_;
  bool begun_ = false;
  // The reason why there will be no run; empty otherwise.
  std::string given_up_;
  bool away_ = false;
  std::set<std::string> warned_;
};

}  // namespace accelerate::trackers
