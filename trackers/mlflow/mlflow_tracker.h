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
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/mlflow/mlflow_client.h"

namespace accelerate::trackers {

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
