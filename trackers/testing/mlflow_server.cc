#include "trackers/testing/mlflow_server.h"

#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

using nlohmann::json;

constexpr size_t kMaxRequest = 1 << 20;
constexpr char kApi[] = "/api/2.0/mlflow/";
constexpr char kArtifactApi[] = "/api/2.0/mlflow-artifacts/artifacts/";

// A request's error; answered as INVALID_PARAMETER_VALUE.
class Invalid : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

HttpServerAnswer ok(const json& body) { return {.status = 200, .body = body.dump()}; }

std::string text(const json& object, const std::string& name) {
  if (!object.contains(name) || !object[name].is_string() ||
      object[name].get<std::string>().empty()) {
    throw Invalid(name + " must be a text");
  }
  return object[name];
}

int64_t integer(const json& object, const std::string& name) {
  if (!object.contains(name) || !object[name].is_number_integer()) {
    throw Invalid(name + " must be an int64");
  }
  return object[name];
}

void check_fields(const json& object, const std::set<std::string>& known) {
  if (!object.is_object()) throw Invalid("not an object");
  for (const auto& [name, value] : object.items()) {
    if (!known.contains(name)) throw Invalid("unknown field " + name);
  }
}

json list(const json& object, const std::string& name, size_t limit) {
  if (!object.contains(name)) return json::array();
  if (!object[name].is_array()) throw Invalid(name + " must be a list");
  if (object[name].size() > limit) {
    throw Invalid(absl::StrCat(object[name].size(), " ", name, ", and at most ", limit));
  }
  return object[name];
}

std::string key_of(const json& entry) {
  const std::string key = text(entry, "key");
  if (key.size() > 250) throw Invalid("a key of more than 250 bytes");
  return key;
}

std::string value_of(const json& entry, size_t limit) {
  if (!entry.contains("value") || !entry["value"].is_string()) {
    throw Invalid("value must be a text");
  }
  std::string value = entry["value"];
  if (value.size() > limit) throw Invalid("a value that is too long");
  return value;
}

}  // namespace

MlflowServer::MlflowServer(const HttpServerOptions& options)
    : http_([this](const HttpServerRequest& request) { return answer(request); }, options) {}

void MlflowServer::set_hook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

void MlflowServer::set_artifact_root(const std::string& root) {
  const std::lock_guard lock(mutex_);
  artifact_root_ = root;
}

std::map<std::string, ServedExperiment> MlflowServer::experiments() {
  const std::lock_guard lock(mutex_);
  return experiments_;
}

std::map<std::string, ServedRun> MlflowServer::runs() {
  const std::lock_guard lock(mutex_);
  return runs_;
}

ServedRun MlflowServer::run() {
  const std::lock_guard lock(mutex_);
  if (runs_.size() != 1) throw std::runtime_error(absl::StrCat("there are runs: ", runs_.size()));
  return runs_.begin()->second;
}

std::map<std::string, std::string> MlflowServer::artifacts() {
  const std::lock_guard lock(mutex_);
  return artifacts_;
}

std::vector<std::string> MlflowServer::requests() {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::vector<size_t> MlflowServer::metrics_per_request() {
  const std::lock_guard lock(mutex_);
  return metrics_per_request_;
}

std::vector<std::string> MlflowServer::complaints() {
  const std::lock_guard lock(mutex_);
  return complaints_;
}

HttpServerAnswer MlflowServer::refuse(int status, const std::string& code,
                                      const std::string& message) {
  return {.status = status, .body = json({{"error_code", code}, {"message", message}}).dump()};
}

HttpServerAnswer MlflowServer::answer(const HttpServerRequest& request) {
  Hook hook;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request.method + " " + request.path);
    hook = hook_;
  }
  if (hook) {
    // Outside of the lock: it may wait.
    if (auto answer = hook(request)) return *std::move(answer);
  }
  const std::lock_guard lock(mutex_);
  try {
    return dispatch(request);
  } catch (const std::exception& error) {
    complaints_.push_back(absl::StrCat(request.method, " ", request.path, ": ", error.what()));
    return refuse(400, "INVALID_PARAMETER_VALUE", error.what());
  }
}

HttpServerAnswer MlflowServer::dispatch(const HttpServerRequest& request) {
  if (request.method == "PUT" && absl::StartsWith(request.path, kArtifactApi)) {
    artifacts_[request.path.substr(sizeof(kArtifactApi) - 1)] = request.body;
    return ok(json::object());
  }
  if (!absl::StartsWith(request.path, kApi)) throw Invalid("no such path");
  const std::string name = request.path.substr(sizeof(kApi) - 1);
  if (request.method == "GET" && name == "experiments/get-by-name") {
    const std::string wanted = request.query.at("experiment_name");
    for (const auto& [id, experiment] : experiments_) {
      if (experiment.name != wanted) continue;
      return ok({{"experiment",
                  {{"experiment_id", id},
                   {"name", experiment.name},
                   {"lifecycle_stage", experiment.lifecycle_stage}}}});
    }
    return refuse(404, "RESOURCE_DOES_NOT_EXIST", "there is no experiment " + wanted);
  }
  if (request.method == "GET" && name == "runs/get") {
    const std::string id = request.query.at("run_id");
    if (!runs_.contains(id)) {
      return refuse(404, "RESOURCE_DOES_NOT_EXIST", "there is no run " + id);
    }
    return ok({{"run", {{"info", info_of(id)}}}});
  }
  if (request.method != "POST") throw Invalid("no such method");
  if (!absl::StartsWith(request.headers.at("content-type"), "application/json")) {
    throw Invalid("the content is not JSON");
  }
  const json body = json::parse(request.body);
  if (name == "experiments/create") return create_experiment(body);
  if (name == "runs/create") return create_run(body);
  if (name == "runs/update") return update_run(body);
  if (name == "runs/log-batch") return log_batch(body, request.body.size());
  throw Invalid("no such call");
}

HttpServerAnswer MlflowServer::create_experiment(const json& body) {
  check_fields(body, {"name", "artifact_location", "tags"});
  const std::string name = text(body, "name");
  for (const auto& [id, experiment] : experiments_) {
    if (experiment.name == name) {
      return refuse(400, "RESOURCE_ALREADY_EXISTS", "there is an experiment " + name);
    }
  }
  for (const json& tag : list(body, "tags", 20)) value_of(tag, 5000);
  const std::string id = absl::StrCat(experiments_.size() + 1);
  experiments_[id] = {.name = name, .fields = body};
  return ok({{"experiment_id", id}});
}

HttpServerAnswer MlflowServer::create_run(const json& body) {
  check_fields(body, {"experiment_id", "user_id", "run_name", "start_time", "tags"});
  ServedRun run{.experiment_id = text(body, "experiment_id"),
                .name = body.value("run_name", "able-bee-1"),
                .start_time = integer(body, "start_time")};
  if (!experiments_.contains(run.experiment_id)) {
    return refuse(404, "RESOURCE_DOES_NOT_EXIST", "there is no experiment " + run.experiment_id);
  }
  for (const json& tag : list(body, "tags", 100)) run.tags[key_of(tag)] = value_of(tag, 5000);
  const std::string id = absl::StrCat("run", runs_.size() + 1);
  runs_[id] = std::move(run);
  return ok({{"run", {{"info", info_of(id)}}}});
}

json MlflowServer::info_of(const std::string& id) const {
  const ServedRun& run = runs_.at(id);
  return {{"run_id", id},
          {"experiment_id", run.experiment_id},
          {"lifecycle_stage", "active"},
          {"status", run.status},
          {"artifact_uri",
           absl::StrCat(artifact_root_, "/", run.experiment_id, "/", id, "/artifacts")}};
}

HttpServerAnswer MlflowServer::update_run(const json& body) {
  check_fields(body, {"run_id", "status", "end_time", "run_name"});
  ServedRun& run = runs_.at(text(body, "run_id"));
  run.status = text(body, "status");
  if (run.status != "RUNNING" && run.status != "FINISHED") throw Invalid("no such status");
  run.end_time.reset();
  if (body.contains("end_time")) run.end_time = integer(body, "end_time");
  return ok({{"run_info", info_of(body["run_id"])}});
}

HttpServerAnswer MlflowServer::log_batch(const json& body, size_t bytes) {
  check_fields(body, {"run_id", "metrics", "params", "tags"});
  if (bytes > kMaxRequest) throw Invalid("a request of more than 1 MB");
  const json metrics = list(body, "metrics", 1000);
  const json params = list(body, "params", 100);
  const json tags = list(body, "tags", 100);
  if (metrics.size() + params.size() + tags.size() > 1000) throw Invalid("more than 1000 entities");
  ServedRun run = runs_.at(text(body, "run_id"));
  for (const json& entry : metrics) {
    check_fields(entry, {"key", "value", "timestamp", "step"});
    const json value = entry.at("value");
    const bool special = value == "NaN" || value == "Infinity" || value == "-Infinity";
    if (!value.is_number() && !special) throw Invalid("value must be a double");
    run.metrics.push_back({.key = key_of(entry),
                           .value = value,
                           .timestamp = integer(entry, "timestamp"),
                           .step = integer(entry, "step")});
  }
  for (const json& entry : params) {
    check_fields(entry, {"key", "value"});
    const std::string key = key_of(entry);
    const std::string value = value_of(entry, 6000);
    const auto [at, is_new] = run.params.emplace(key, value);
    if (!is_new && at->second != value) throw Invalid("param " + key + " cannot change");
  }
  for (const json& entry : tags) {
    check_fields(entry, {"key", "value"});
    run.tags[key_of(entry)] = value_of(entry, 5000);
  }
  if (!metrics.empty()) metrics_per_request_.push_back(metrics.size());
  runs_[body["run_id"]] = std::move(run);
  return ok(json::object());
}

}  // namespace accelerate::trackers
