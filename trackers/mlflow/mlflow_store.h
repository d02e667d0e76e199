/// Stores MLflow runs, on a server or in a folder, and the client that fills them.
///
/// Calls are made at once, without retries. Names must be valid for `mlflow_name_error`.
/// Errors:  MlflowAway if a retry may help; MlflowRefused if some of the entries are to blame;
///          std::runtime_error otherwise. Messages have the URL or path and MLflow's reason.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "trackers/common/http_client.h"
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
  /// Tags that `create_run` could not set; `set_tags` reports why.
  std::vector<MlflowText> unset_tags;
};

struct MlflowNewRun {
  std::string experiment_id;
  /// Empty: MLflow chooses a name.
  std::string name;
  std::vector<MlflowText> tags;
  /// In ms since 1970.
  int64_t start_time = 0;
};

/// The first `count` entries are refused; a retry does not help.
class MlflowRefused : public std::runtime_error {
 public:
  MlflowRefused(const std::string& text, size_t count) : std::runtime_error(text), count(count) {}
  const size_t count;
};

/// Turns a failure of the first `count` entries into MlflowRefused: retrying does not help, for
/// example, if the name of a metric is also the folder of another.
template <typename Function>
void or_refuse(Function&& function, size_t count = 1) {
  try {
    function();
  } catch (const MlflowAway&) {
    throw;
  } catch (const std::exception& error) {
    throw MlflowRefused(error.what(), count);
  }
}

class MlflowStore {
 public:
  virtual ~MlflowStore() = default;

  /// The server's address or the folder, without credentials.
  virtual std::string place() const = 0;

  /// The ids of the experiments that are not deleted.
  virtual std::vector<std::string> find_experiments(const std::string& name) = 0;
  virtual std::string create_experiment(const std::string& name,
                                        const std::optional<std::string>& artifact_location,
                                        const std::vector<MlflowText>& tags, int64_t now) = 0;
  virtual MlflowRun create_run(const MlflowNewRun& run) = 0;
  /// Unsets the end time and marks the run as running.
  virtual MlflowRun resume_run(const std::string& run_id) = 0;

  // Each keeps at least one entry from the front and returns how many. A store may buffer metrics
  // until `flush`. Params and tags that exist with the same value may be given again; after a
  // failure, so may metrics, in the same order and with further ones behind them.
  virtual size_t log_metrics(const MlflowRun& run, absl::Span<const MlflowMetric> metrics) = 0;
  virtual size_t log_params(const MlflowRun& run, absl::Span<const MlflowText> params) = 0;
  virtual size_t set_tags(const MlflowRun& run, absl::Span<const MlflowText> tags) = 0;

  /// Writes buffered metrics, if that is due or if `all` is set. MlflowRefused has the number of
  /// lost metrics.
  virtual void flush(const MlflowRun& /*run*/, bool /*all*/) {}
  /// The number of buffered metrics.
  virtual size_t held() const { return 0; }

  /// `path`: a valid path for `mlflow_path_error`, below the run's artifacts.
  virtual void put_artifact(const MlflowRun& run, const std::string& path,
                            std::string_view contents) = 0;
  virtual void end_run(const MlflowRun& run, int64_t end_time) = 0;

  /// Limits the time of later calls.
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

struct BufferedClientOptions {
  /// The largest number of waiting metrics.
  size_t max_metrics = 500000;
  /// The largest number of bytes of waiting params, tags, images and texts. Files stay where they
  /// are while they wait.
  size_t max_bytes = size_t{64} << 20;
  /// The limit of one call of the store.
  absl::Duration call_limit = absl::Seconds(10);
  /// The limit of one flush; the rest waits for the next one.
  absl::Duration flush_limit = absl::Seconds(5);
  RetryGateOptions retry = {};
  /// Waits for that long; called at the end of training only. Empty: blocks the thread.
  std::function<void(absl::Duration)> wait = nullptr;
};

/// An MlflowClient that holds back what is logged and sends it in batches.
///
/// The buffers are bounded: when they are full, what comes is dropped and counted. While the store
/// is away everything waits, and the store is asked again when a RetryGate opens. Entries that the
/// store refuses are counted and not sent again.
/// Errors:  as MlflowClient's. `flush` first sends what it can, then throws the first refusal.
/// Threads: one at a time. The services outlive the client.
std::unique_ptr<MlflowClient> make_buffered_client(std::unique_ptr<MlflowStore> store,
                                                   const TrackerServices& services,
                                                   uint64_t random_bits,
                                                   BufferedClientOptions options = {});

// ---- MLflow's documented limits of names and values.

/// The limits of one request.
inline constexpr size_t kMlflowMaxMetrics = 1000;
inline constexpr size_t kMlflowMaxTexts = 100;
inline constexpr size_t kMlflowMaxBytes = 1000000;
/// The limit of a metric's, param's or tag's name, in bytes.
inline constexpr size_t kMlflowMaxName = 250;
/// The limit of a param's value, in characters.
inline constexpr size_t kMlflowMaxParam = 500;
/// The limit of a tag's value, in characters, for experiments and for runs on older servers.
inline constexpr size_t kMlflowMaxTag = 5000;

/// The error in the name of a metric, param or tag; empty if it is valid: letters, digits and
/// "_-. :/" that do not form a path out of the folder.
std::string mlflow_name_error(std::string_view name);

/// The same for an artifact's path, which may contain other characters.
std::string mlflow_path_error(std::string_view path);

/// The number of characters in a UTF-8 text.
size_t utf8_length(std::string_view text);
/// Its first `length` characters.
std::string utf8_start(std::string_view text, size_t length);

}  // namespace accelerate::trackers
