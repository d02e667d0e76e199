/// MLflow runs, on a server or in a folder.
///
///   Accelerator accelerator({.log_with = {"mlflow"}});
///   accelerator.init_trackers("digits", config, {{"mlflow", {{"run_name", "first"}}}});
///
/// `init_kwargs`: run_id, run_name, tags (a dictionary, or one as JSON), nested_run, description,
/// logging_dir (where a new experiment's artifacts go), and `tracking_uri`, which the peer lacks.
/// MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS and MLFLOW_NESTED_RUN
/// have priority over arguments. Without a tracking URI runs go to the folder `mlruns` of the
/// Accelerator's logging_dir, or of the working directory.
///
/// Credentials are MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN, or those in the URI; they
/// are in no message. MLFLOW_TRACKING_INSECURE_TLS and _SERVER_CERT_PATH say whom to trust.
///
/// A server that is away, says 429 or 5xx, or a disk that is full is tried again, later each time;
/// up to half a million metrics wait meanwhile. What the server refuses otherwise is lost, and so
/// is what remains half a minute after the end; how much is said. What the server did without being
/// able to say so is asked for again: params, tags and experiments then are as they were; metrics
/// too, on servers with a database; and a run that was begun so stays behind, empty.
///
/// `nested_run` has no effect: there is no other run in this process that could be the parent.
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
  explicit MlflowTracker(const TrackerSetup& setup);
  /// On a client of one's own; null: the one that the tracking URI stands for.
  MlflowTracker(const TrackerSetup& setup, std::unique_ptr<MlflowClient> client);

  void start() override;
  /// As parameters: each value as text. Those longer than 500 characters are dropped.
  void store_init_configuration(const TrackerDict& values) override;
  /// As metrics: bools, ints and floats. Others are dropped. kwargs: `timestamp` in ms.
  void log(const TrackerDict& values, const TrackerStep& step) override;
  /// As the files images/NAME_step_STEP_INDEX.png; no step is 0.
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  /// As the file tables/NAME_step_STEP.json: {"columns": [...], "data": [[...], ...]}.
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void flush() override;
  void finish() override;
  /// The run stays one that is running; what is lost is said.
  void abandon() override;

  /// For `unwrap<MlflowTracker>()`: files of the run. Paths as the setup's FileSystem knows them;
  /// a local file must stay as it is until the next flush.
  void log_figure(const TrackerImage& figure, const std::string& artifact_file);
  void log_artifact(const std::string& local_path, const std::string& artifact_path = "");
  void log_artifacts(const std::string& local_dir, const std::string& artifact_path = "");
  void set_tags(const TrackerDict& tags);

 private:
  void begin();
  void flush(bool all);
  // Says that the service is away when that begins, and else that it goes on.
  template <typename Function>
  void while_there(Function&& function);
  // Once for all that it is `about`, whatever the values.
  void warn_once(const std::string& about, const std::function<std::string()>& text);

  const TrackerServices& services_;
  std::string experiment_name_;
  std::optional<std::string> artifact_location_;
  MlflowStartRun run_;
  std::unique_ptr<MlflowClient> client_;
  bool begun_ = false;
  // Why there will be no run; empty: there may be.
  std::string given_up_;
  bool away_ = false;
  std::set<std::string> warned_;
};

}  // namespace accelerate::trackers
