#include "accelerate/base/json_text.h"
#include "trackers/common/formats.h"
#include "trackers/mlflow/mlflow_store.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "trackers/common/file_options.h"
#include "trackers/common/http_client.h"

namespace accelerate::trackers {
namespace {

using nlohmann::json;

// The part of a server's message that an error quotes, in bytes.
constexpr size_t kMaxQuoted = 500;
// Added to the time-out of a long artifact.
constexpr absl::Duration kPerArtifactMegabyte = absl::Seconds(1);

HttpOptions options_of(const HttpUrl& url, const Environment& environment) {
  const std::string insecure =
      absl::AsciiStrToLower(environment.get_or("MLFLOW_TRACKING_INSECURE_TLS", ""));
  HttpOptions options{.username = environment.get_or("MLFLOW_TRACKING_USERNAME", ""),
                      .password = environment.get_or("MLFLOW_TRACKING_PASSWORD", ""),
                      .token = environment.get_or("MLFLOW_TRACKING_TOKEN", ""),
                      .verify_certificates = insecure != "true" && insecure != "1",
                      .certificates = environment.get_or("MLFLOW_TRACKING_SERVER_CERT_PATH", "")};
  if (options.username.empty() && options.password.empty()) {
    options.username = url.username;
    options.password = url.password;
  } else {
    options.token.clear();  // MLflow prefers the password, too
  }
  return options;
}

json entry_of(const MlflowText& text) { return {{"key", text.first}, {"value", text.second}}; }

json entry_of(const MlflowMetric& metric) {
  return {{"key", metric.key},
          {"value", json_number(metric.value)},
          {"timestamp", metric.timestamp},
          {"step", metric.step}};
}

json tags_of(const std::vector<MlflowText>& texts) {
  json tags = json::array();
  for (const MlflowText& text : texts) tags.push_back(entry_of(text));
  return tags;
}

std::string text_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

MlflowRun run_of(const json& answer, const std::string& place) {
  const auto run = answer.find("run");
  const json info =
      run != answer.end() && run->is_object() ? run->value("info", json::object()) : json::object();
  MlflowRun result{.run_id = text_at(info, "run_id")};
  if (info.is_object()) {
    if (result.run_id.empty()) result.run_id = text_at(info, "run_uuid");
    result.experiment_id = text_at(info, "experiment_id");
    result.artifact_uri = text_at(info, "artifact_uri");
  }
  if (result.run_id.empty()) throw MlflowAway(place + " answers without a run_id");
  return result;
}

// `mlflow-artifacts:/path` is below this server, `mlflow-artifacts://host/path` below another.
std::string artifact_url(const std::string& artifact_uri, const HttpUrl& server) {
  static constexpr char kScheme[] = "mlflow-artifacts:";
  static constexpr char kApi[] = "/api/2.0/mlflow-artifacts/artifacts";
  std::string rest = artifact_uri.substr(sizeof(kScheme) - 1);
  if (!absl::StartsWith(rest, "//")) {
    if (!absl::StartsWith(rest, "/")) rest.insert(rest.begin(), '/');
    return absl::StrCat(server.url, kApi, url_escape_path(rest));
  }
  rest = rest.substr(2);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string scheme = server.url.substr(0, server.url.find(':'));
  return absl::StrCat(scheme, "://", rest.substr(0, slash), kApi,
                      url_escape_path(rest.substr(slash)));
}

class RestStore final : public MlflowStore {
 public:
  RestStore(const std::string& tracking_uri, const Environment& environment, FileSystem& files)
      : url_(parse_http_url(tracking_uri)), files_(files), http_(options_of(url_, environment)) {}

  std::string place() const override { return url_.url; }

  std::vector<std::string> find_experiments(const std::string& name) override {
    const std::optional<json> answer =
        call_unless("RESOURCE_DOES_NOT_EXIST", "GET",
                    absl::StrCat("experiments/get-by-name?experiment_name=", url_escape(name)), "");
    if (!answer) return {};
    const json experiment = answer->value("experiment", json());
    const std::string id = experiment.is_object() ? text_at(experiment, "experiment_id") : "";
    if (id.empty()) throw MlflowAway(url_.url + " answers without an experiment_id");
    if (text_at(experiment, "lifecycle_stage") == "deleted") {
      throw std::runtime_error(absl::StrCat("experiment \"", name, "\" of ", url_.url,
                                            " is deleted; restore it, or use another name"));
    }
    return {id};
  }

  std::string create_experiment(const std::string& name,
                                const std::optional<std::string>& artifact_location,
                                const std::vector<MlflowText>& tags, int64_t /*now*/) override {
    json body = {{"name", name}};
    if (artifact_location) body["artifact_location"] = *artifact_location;
    if (!tags.empty()) body["tags"] = tags_of(tags);
    const std::optional<json> answer =
        call_unless("RESOURCE_ALREADY_EXISTS", "POST", "experiments/create", json_text(body));
    if (!answer) {
      // Another process has made it in the meantime, or an answer of the server was lost.
      const std::vector<std::string> found = find_experiments(name);
      if (found.empty()) {
        throw MlflowAway(absl::StrCat(url_.url, " has experiment \"", name, "\", and has not"));
      }
      return found[0];
    }
    const std::string id = text_at(*answer, "experiment_id");
    if (id.empty()) throw MlflowAway(url_.url + " answers without an experiment_id");
    return id;
  }

  MlflowRun create_run(const MlflowNewRun& run) override {
    json body = {{"experiment_id", run.experiment_id}, {"start_time", run.start_time}};
    std::vector<MlflowText> tags = run.tags;
    if (!run.name.empty()) {
      body["run_name"] = run.name;
      tags.emplace_back("mlflow.runName", run.name);  // servers before 2.0 use the tag alone
    }
    for (const auto& [key, value] : tags) {
      if (key == "mlflow.user") body["user_id"] = value;
    }
    if (!tags.empty()) body["tags"] = tags_of(tags);
    return run_of(call("POST", "runs/create", json_text(body)), url_.url);
  }

  MlflowRun resume_run(const std::string& run_id) override {
    const json answer = call("GET", absl::StrCat("runs/get?run_id=", url_escape(run_id)), "");
    MlflowRun run = run_of(answer, url_.url);
    if (text_at(answer["run"]["info"], "lifecycle_stage") == "deleted") {
      throw std::runtime_error(absl::StrCat("run ", run_id, " of ", url_.url,
                                            " is deleted; restore it to go on with it"));
    }
    call("POST", "runs/update", json_text({{"run_id", run.run_id}, {"status", "RUNNING"}}));
    return run;
  }

  size_t log_metrics(const MlflowRun& run, absl::Span<const MlflowMetric> metrics) override {
    return log_batch(run, "metrics", metrics.first(std::min(metrics.size(), kMlflowMaxMetrics)));
  }

  size_t log_params(const MlflowRun& run, absl::Span<const MlflowText> params) override {
    return log_batch(run, "params", params.first(std::min(params.size(), kMlflowMaxTexts)));
  }

  size_t set_tags(const MlflowRun& run, absl::Span<const MlflowText> tags) override {
    return log_batch(run, "tags", tags.first(std::min(tags.size(), kMlflowMaxTexts)));
  }

  void put_artifact(const MlflowRun& run, const std::string& path,
                    std::string_view contents) override {
    const std::string& uri = run.artifact_uri;
    if (absl::StartsWith(uri, "file:") || absl::StartsWith(uri, "/")) {
      const std::string folder = absl::StartsWith(uri, "file:") ? path_of_file_uri(uri) : uri;
      throw_if_error(write_file(files_, join_path(folder, path), contents));
      return;
    }
    if (!absl::StartsWith(uri, "mlflow-artifacts:")) {
      throw std::runtime_error(absl::StrCat(
          "artifact ", path, " cannot be kept at ", uri.substr(0, uri.find(':')),
          ":..., only at mlflow-artifacts: and file:; start the server with --serve-artifacts"));
    }
    const HttpUrl url =
        parse_http_url(absl::StrCat(artifact_url(uri, url_), "/", url_escape_path(path)));
    const HttpAnswer answer =
        send({.method = "PUT",
              .url = url.url,
              .headers = {{"Content-Type", "application/octet-stream"}},
              .body = contents,
              .timeout = call_limit_ + kPerArtifactMegabyte * (contents.size() >> 20),
              // Only the tracking server gets the credentials.
              .authenticate = url.origin == url_.origin});
    if (answer.status / 100 == 2) return;
    throw std::runtime_error(absl::StrCat("PUT ", url.url, " answers HTTP ", answer.status, ": ",
                                          http_.redact(answer.body.substr(0, kMaxQuoted))));
  }

  void end_run(const MlflowRun& run, int64_t end_time) override {
    call("POST", "runs/update",
         json_text({{"run_id", run.run_id}, {"status", "FINISHED"}, {"end_time", end_time}}));
  }

 private:
  // The answer. Errors: MlflowAway if the server is down or overloaded.
  HttpAnswer send(const HttpRequest& request) {
    HttpAnswer answer;
    try {
      answer = http_.send(request);
    } catch (const HttpError& error) {
      throw MlflowAway(error.what());
    }
    if (answer.status == 408 || answer.status == 429 || answer.status >= 500) {
      throw MlflowAway(absl::StrCat(url_.url, " answers HTTP ", answer.status), answer.retry_after);
    }
    return answer;
  }

  // The server's answer to a call of the API.
  json call(const std::string& method, const std::string& path, const std::string& body) {
    return call_unless("", method, path, body).value();
  }

  // The same; nothing if the server refuses with this error_code.
  std::optional<json> call_unless(const std::string& error_code, const std::string& method,
                                  const std::string& path, const std::string& body) {
    const std::string url = absl::StrCat(url_.url, "/api/2.0/mlflow/", path);
    const HttpAnswer answer =
        send({.method = method,
              .url = url,
              .headers = {{"Content-Type", "application/json"}, {"Accept", "application/json"}},
              .body = body,
              .timeout = call_limit_});
    json content = answer.body.empty()
                       ? json::object()
                       : json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    const std::string shown = absl::StrCat(method, " ", url.substr(0, url.find('?')));
    if (answer.status / 100 == 2) {
      if (content.is_object()) return content;
      // The answer is not MLflow's but a proxy's.
      throw MlflowAway(absl::StrCat(shown, " answers HTTP ", answer.status, ", but no JSON"));
    }
    const std::string code = content.is_object() ? text_at(content, "error_code") : "";
    if (!code.empty() && code == error_code) return std::nullopt;
    std::string reason = content.is_object() ? text_at(content, "message") : answer.body;
    reason = http_.redact(reason.substr(0, kMaxQuoted));
    throw std::runtime_error(absl::StrCat(shown, " answers HTTP ", answer.status,
                                          code.empty() ? "" : " ", code, reason.empty() ? "" : ": ",
                                          reason));
  }

  // Sends as many entries as fit into a request, and returns how many.
  template <typename Entry>
  size_t log_batch(const MlflowRun& run, const char* kind, absl::Span<const Entry> entries) {
    std::string body = absl::StrCat("{\"run_id\":", json_text(run.run_id), ",\"", kind, "\":[");
    size_t count = 0;
    for (const Entry& entry : entries) {
      const std::string text = json_text(entry_of(entry));
      if (count > 0 && body.size() + text.size() + 3 > kMlflowMaxBytes) break;
      absl::StrAppend(&body, count > 0 ? "," : "", text);
      ++count;
    }
    body += "]}";
    or_refuse([&] { call("POST", "runs/log-batch", body); }, count);
    return count;
  }

  const HttpUrl url_;
  FileSystem& files_;
  HttpClient http_;
};

}  // namespace

std::unique_ptr<MlflowStore> make_rest_store(const std::string& tracking_uri,
                                             const Environment& environment, FileSystem& files) {
  return std::make_unique<RestStore>(tracking_uri, environment, files);
}

}  // namespace accelerate::trackers
