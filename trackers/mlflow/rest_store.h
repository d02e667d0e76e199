/// Runs on an MLflow server, over its REST API 2.0.
///
/// Requests keep to the documented limits: 1000 metrics, 100 params, 100 tags, 1 MB. Artifacts go
/// through the server (`mlflow-artifacts:`) or to a folder (`file:`).
/// Errors:  as MlflowStore's. MlflowAway for a server that does not answer, answers 408, 429 or
///          5xx, or no JSON. Others tell MLflow's error_code and message.
/// Threads: one at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "trackers/common/http_client.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::trackers {

class RestStore final : public MlflowStore {
 public:
  /// `environment`: MLFLOW_TRACKING_USERNAME, _PASSWORD, _TOKEN, _INSECURE_TLS, _SERVER_CERT_PATH;
  /// credentials in the URI come after these. `files`: for artifacts in a folder.
  /// Errors: std::invalid_argument for what is no URL.
  RestStore(const std::string& tracking_uri, const Environment& environment, FileSystem& files);

  std::string place() const override { return url_.url; }
  std::vector<std::string> find_experiments(const std::string& name) override;
  std::string create_experiment(const std::string& name,
                                const std::optional<std::string>& artifact_location,
                                const std::vector<MlflowText>& tags, int64_t now) override;
  MlflowRun create_run(const MlflowNewRun& run) override;
  MlflowRun resume_run(const std::string& run_id) override;
  size_t log_metrics(const MlflowRun& run, absl::Span<const MlflowMetric> metrics) override;
  size_t log_params(const MlflowRun& run, absl::Span<const MlflowText> params) override;
  size_t set_tags(const MlflowRun& run, absl::Span<const MlflowText> tags) override;
  void put_artifact(const MlflowRun& run, const std::string& path,
                    std::string_view contents) override;
  void end_run(const MlflowRun& run, int64_t end_time) override;

 private:
  // The answer, whatever its status; the server is there.
  HttpAnswer send(const HttpRequest& request);
  // What the server answers to a call of the API.
  nlohmann::json call(const std::string& method, const std::string& path, const std::string& body);
  // The same; nothing where it refuses with that error_code.
  std::optional<nlohmann::json> call_unless(const std::string& error_code,
                                            const std::string& method, const std::string& path,
                                            const std::string& body);
  // Sends a body of so many entries, and returns that number.
  size_t log_batch(const std::string& body, size_t count);
  size_t log_texts(const MlflowRun& run, const char* kind, absl::Span<const MlflowText> texts);

  const HttpUrl url_;
  FileSystem& files_;
  HttpClient http_;
};

}  // namespace accelerate::trackers
