/// A server of MLflow's REST API 2.0 that keeps what it gets, and is strict.
///
/// It checks what the API's documentation says: methods, paths, types and names of fields, at most
/// 1000 metrics, 100 params and 100 tags in a batch and 1000 in all, 1 MB a request, names of 250
/// bytes, params of 6000, params that never change. A wrong request is answered as MLflow would,
/// and is also kept in `complaints`, which a test expects to be empty.
/// Threads: any.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trackers/testing/http_server.h"

namespace accelerate::trackers {

struct ServedMetric {
  std::string key;
  /// A number, or "NaN", "Infinity", "-Infinity".
  nlohmann::json value;
  int64_t timestamp = 0;
  int64_t step = 0;
};

struct ServedRun {
  std::string experiment_id;
  std::string name;
  std::string status = "RUNNING";
  int64_t start_time = 0;
  std::optional<int64_t> end_time;
  std::vector<ServedMetric> metrics;
  std::map<std::string, std::string> params;
  std::map<std::string, std::string> tags;
};

struct ServedExperiment {
  std::string name;
  std::string lifecycle_stage = "active";
  nlohmann::json fields;  // of its creation
};

class MlflowServer {
 public:
  /// Sees each request first; what it answers, if it does, is the answer.
  using Hook = std::function<std::optional<HttpServerAnswer>(const HttpServerRequest&)>;

  explicit MlflowServer(const HttpServerOptions& options = {});

  std::string url() const { return http_.url(); }
  void listen() { http_.listen(); }

  void set_hook(Hook hook);
  /// Where runs made from now on have their artifacts: "mlflow-artifacts:" and the like.
  void set_artifact_root(const std::string& root);

  std::map<std::string, ServedExperiment> experiments();
  std::map<std::string, ServedRun> runs();
  /// The only run. Throws if there is another number of them.
  ServedRun run();
  /// By path below the root.
  std::map<std::string, std::string> artifacts();
  /// METHOD path, in order.
  std::vector<std::string> requests();
  std::vector<size_t> metrics_per_request();
  std::vector<std::string> complaints();

 private:
  HttpServerAnswer answer(const HttpServerRequest& request);
  HttpServerAnswer dispatch(const HttpServerRequest& request);
  HttpServerAnswer refuse(int status, const std::string& code, const std::string& message);
  HttpServerAnswer create_experiment(const nlohmann::json& body);
  HttpServerAnswer create_run(const nlohmann::json& body);
  HttpServerAnswer update_run(const nlohmann::json& body);
  HttpServerAnswer log_batch(const nlohmann::json& body, size_t bytes);
  nlohmann::json info_of(const std::string& id) const;

  std::mutex mutex_;  // of all below
  Hook hook_;
  std::string artifact_root_ = "mlflow-artifacts:";
  std::map<std::string, ServedExperiment> experiments_;
  std::map<std::string, ServedRun> runs_;
  std::map<std::string, std::string> artifacts_;
  std::vector<std::string> requests_;
  std::vector<size_t> metrics_per_request_;
  std::vector<std::string> complaints_;
  HttpServer http_;  // last: its threads use the others
};

}  // namespace accelerate::trackers
