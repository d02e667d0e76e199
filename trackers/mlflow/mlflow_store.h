/// Where MLflow keeps runs: behind a server, or in a folder.
///
/// Each call is made at once and once. Entities are numbers and texts as MLflow knows them, whose
/// names `mlflow_name_error` has nothing against.
/// Errors:  MlflowAway where another try may help. Else MlflowRefused, where a part of what was
///          given is to blame, and std::runtime_error; texts name URL or path, and MLflow's reason.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tracking/tracker.h"
#include "trackers/mlflow/mlflow_client.h"

namespace accelerate::trackers {

struct MlflowMetric {
  std::string key;
  double value = 0;
  /// In ms since 1970.
  int64_t timestamp = 0;
  int64_t step = 0;
};

/// A parameter or a tag.
using MlflowText = std::pair<std::string, std::string>;

struct MlflowRun {
  std::string experiment_id;
  std::string run_id;
  std::string artifact_uri;
  /// Those that `create_run` could not set, for `set_tags` to say why.
  std::vector<MlflowText> unset_tags;
};

struct MlflowNewRun {
  std::string experiment_id;
  /// Empty: MLflow finds one.
  std::string name;
  std::vector<MlflowText> tags;
  /// In ms since 1970.
  int64_t start_time = 0;
};

/// The first `count` of what was given are refused; another try will not help.
class MlflowRefused : public std::runtime_error {
 public:
  MlflowRefused(const std::string& text, size_t count) : std::runtime_error(text), count(count) {}
  const size_t count;
};

class MlflowStore {
 public:
  virtual ~MlflowStore() = default;

  /// The server's address or the folder, without credentials.
  virtual std::string place() const = 0;

  /// Those that are not deleted.
  virtual std::vector<std::string> find_experiments(const std::string& name) = 0;
  virtual std::string create_experiment(const std::string& name,
                                        const std::optional<std::string>& artifact_location,
                                        const std::vector<MlflowText>& tags, int64_t now) = 0;
  virtual MlflowRun create_run(const MlflowNewRun& run) = 0;
  /// Its end time is unset, and it runs again.
  virtual MlflowRun resume_run(const std::string& run_id) = 0;

  // Keep some from the front, one at least, and return how many; of metrics, a store may hold back
  // some until `flush`. Params and tags that are there
  // with the same value may come again. Metrics that were given before a failure may be given
  // again, in the same order and with more behind them.
  virtual size_t log_metrics(const MlflowRun& run, absl::Span<const MlflowMetric> metrics) = 0;
  virtual size_t log_params(const MlflowRun& run, absl::Span<const MlflowText> params) = 0;
  virtual size_t set_tags(const MlflowRun& run, absl::Span<const MlflowText> tags) = 0;

  /// Keeps what is held back, if that is due or `all` of it is to be kept now. MlflowRefused says
  /// how many metrics are lost.
  virtual void flush(const MlflowRun& /*run*/, bool /*all*/) {}
  /// Metrics that are held back.
  virtual size_t held() const { return 0; }

  /// `path`: as `mlflow_path_error` likes it, below the run's artifacts.
  virtual void put_artifact(const MlflowRun& run, const std::string& path,
                            std::string_view contents) = 0;
  virtual void end_run(const MlflowRun& run, int64_t end_time) = 0;

  /// How long a call may take from now on.
  void set_call_limit(absl::Duration limit) { call_limit_ = limit; }

 protected:
  absl::Duration call_limit_ = absl::Seconds(10);
};

/// Runs in a folder, as MLflow lays them out: `mlflow ui --backend-store-uri FOLDER` shows them.
/// The folder need not exist, and is not touched before the first call. The services outlive the
/// store. Errors: MlflowAway for a disk that is full or fails.
///
/// If the process is killed, the files have all that `log_metrics` returned from, except for
/// metrics beyond the first 200: more files are not kept open, so these metrics are written once a
/// minute. If the machine fails, all of a run that has not ended may be lost. Other processes may
/// write other runs of the folder at the same time, but not the same run.
std::unique_ptr<MlflowStore> make_file_store(std::string folder, const TrackerServices& services,
                                             uint64_t random_bits);

/// Runs on an MLflow server, over its REST API 2.0. Artifacts go through the server
/// (`mlflow-artifacts:`) or to a folder (`file:`) of `files`. `environment` has the credentials and
/// the settings of TLS, see mlflow_tracker.h; credentials in the URI come after these.
/// Errors: std::invalid_argument for a text that is not a URL; MlflowAway for a server that does
/// not answer, or answers 408, 429, 5xx or without JSON. Others have MLflow's error_code and
/// message.
std::unique_ptr<MlflowStore> make_rest_store(const std::string& tracking_uri,
                                             const Environment& environment, FileSystem& files);

}  // namespace accelerate::trackers
