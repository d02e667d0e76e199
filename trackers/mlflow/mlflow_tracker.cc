#include "trackers/mlflow/mlflow_tracker.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tracking/tracker_queue.h"
#include "trackers/common/file_options.h"
#include "trackers/common/http_client.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/secrets.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::trackers {
namespace {

using nlohmann::json;

// How long the end of training waits for MLflow.
constexpr absl::Duration kFinishLimit = absl::Seconds(30);
// Bounded, since a program may log a new text at each step.
constexpr size_t kMaxWarnings = 1000;
constexpr char kAway[] = "the server or the disk cannot be reached";

TrackerDict tags_of_json(const std::string& text) {
  const json tags = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!tags.is_object()) {
    throw std::invalid_argument(
        "mlflow: tags must be a dictionary, and tags and MLFLOW_TAGS in one text JSON");
  }
  TrackerDict dict;
  for (const auto& [name, value] : tags.items()) {
    if (value.is_boolean()) {
      dict.emplace_back(name, value.get<bool>());
    } else if (value.is_number_integer()) {
      dict.emplace_back(name, value.get<int64_t>());
    } else if (value.is_number()) {
      dict.emplace_back(name, value.get<double>());
    } else if (value.is_string()) {
      dict.emplace_back(name, value.get<std::string>());
    } else {
      dict.emplace_back(name, value.is_null() ? "None" : value.dump());
    }
  }
  return dict;
}

bool truth_of(const char* name, const std::string& text) {
  const std::optional<bool> truth = parse_bool(text);
  if (!truth) {
    throw std::invalid_argument(
        absl::StrCat("mlflow: ", name, "=\"", text, "\" is neither true nor false"));
  }
  return *truth;
}

json json_of(const TrackerValue& value) {
  if (const auto* number = value.get_if<int64_t>()) return *number;
  if (const auto* number = value.get_if<double>()) return *number;
  if (const auto* truth = value.get_if<bool>()) return *truth;
  if (value.is_none()) return nullptr;
  return value_text(value);
}

std::string artifact_name(const char* folder, const std::string& name, const TrackerStep& step) {
  return absl::StrCat(folder, "/", name, "_step_", step.step.value_or(0));
}

bool is_http(const std::string& uri) {
  return absl::StartsWith(uri, "http://") || absl::StartsWith(uri, "https://");
}

std::string folder_of(const TrackerSetup& setup, std::string uri) {
  if (uri.empty()) {
    uri = setup.logging_dir.empty() ? "mlruns" : join_path(setup.logging_dir, "mlruns");
  } else if (absl::StartsWith(uri, "file:")) {
    const bool has_host = absl::StartsWith(uri, "file://");
    uri = path_of_file_uri(uri);
    if (has_host && !absl::StartsWith(uri, "/")) {
      throw std::invalid_argument(
          "mlflow: a tracking URI of file: is of this machine: file:///folder");
    }
  } else if (absl::StrContains(uri, "://") || absl::StartsWith(uri, "databricks")) {
    throw std::invalid_argument(
        absl::StrCat("mlflow: the tracking URI begins with ", uri.substr(0, uri.find(':')),
                     ", and may be http://..., https://..., file:///... or a folder"));
  }
  const bool absolute = absl::StartsWith(uri, "/") || !setup.services.is_real;
  return absolute ? uri : std::filesystem::absolute(uri).lexically_normal().string();
}

// The client that a tracking URI stands for: `http(s)://host`, `file:///folder` or a folder; empty:
// `mlruns` in the logging_dir. Errors: std::invalid_argument naming the URI, without credentials.
std::unique_ptr<MlflowClient> open_client(const TrackerSetup& setup,
                                          const std::string& tracking_uri) {
  std::unique_ptr<MlflowStore> store;
  if (!is_http(tracking_uri)) {
    store = make_file_store(folder_of(setup, tracking_uri), setup.services, setup.random_bits);
  } else if (!setup.services.is_real) {
    throw std::invalid_argument(
        "mlflow: a simulation has no server; let the tracking URI "
        "be a folder");
  } else {
    try {
      store = make_rest_store(tracking_uri, setup.services.environment, setup.services.files);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(absl::StrCat("mlflow: the tracking URI: ", error.what()));
    }
  }
  return make_buffered_client(std::move(store), setup.services, setup.random_bits);
}

// Why the environment's tracking URI cannot be used here; empty: it can.
std::string why_unavailable(const TrackerServices& services) {
  const std::string uri = services.environment.get_or("MLFLOW_TRACKING_URI", "");
  if (is_http(uri) && !services.is_real) {
    return "MLFLOW_TRACKING_URI is a server, and there is none in a simulation";
  }
  return {};
}

const TrackerRegistration kRegistration({.name = "mlflow",
                                         .requires_logging_directory = false,
                                         .tracker = make_tracker<MlflowTracker>,
                                         .unavailable = why_unavailable});

}  // namespace

MlflowTracker::MlflowTracker(const TrackerSetup& setup, std::unique_ptr<MlflowClient> client)
    : services_(setup.services) {
  InitKwargs kwargs("mlflow", setup.init_kwargs);
  artifact_location_ = kwargs.text("logging_dir");
  run_.run_id = kwargs.text("run_id");
  run_.run_name = kwargs.text("run_name");
  run_.description = kwargs.text("description");
  const std::optional<TrackerValue> nested = kwargs.any("nested_run");
  if (nested && nested->get_if<std::string>() != nullptr) {
    run_.nested = truth_of("nested_run", *nested->get_if<std::string>());
  } else {
    run_.nested = kwargs.boolean("nested_run").value_or(false);
  }
  const std::optional<TrackerValue> tags = kwargs.any("tags");
  if (tags && tags->get_if<std::string>() != nullptr) {
    run_.tags = tags_of_json(*tags->get_if<std::string>());
  } else {
    run_.tags = kwargs.dict("tags");
  }
  std::string tracking_uri = kwargs.text("tracking_uri").value_or("");
  kwargs.finish();

  const Environment& environment = services_.environment;
  tracking_uri = environment.get_or("MLFLOW_TRACKING_URI", tracking_uri);
  experiment_name_ = environment.get_or("MLFLOW_EXPERIMENT_NAME", setup.project_name);
  if (const auto id = environment.get_or("MLFLOW_RUN_ID", ""); !id.empty()) run_.run_id = id;
  if (const auto text = environment.get_or("MLFLOW_TAGS", ""); !text.empty()) {
    run_.tags = tags_of_json(text);
  }
  if (const auto text = environment.get_or("MLFLOW_NESTED_RUN", ""); !text.empty()) {
    run_.nested = truth_of("MLFLOW_NESTED_RUN", text);
  }
  client_ = client != nullptr ? std::move(client) : open_client(setup, tracking_uri);
}

void MlflowTracker::start() {
  while_there([&] { begin(); });
}

void MlflowTracker::begin() {
  if (begun_ || !given_up_.empty()) return;
  try {
    const std::vector<std::string> found = client_->search_experiments(experiment_name_);
    if (found.size() > 1) {
      warn_once("experiments", [] {
        return std::string("Multiple experiments with the same name found. Using first one.");
      });
    }
    run_.experiment_id = !found.empty()
                             ? found[0]
                             : client_->create_experiment({.name = experiment_name_,
                                                           .artifact_location = artifact_location_,
                                                           .tags = run_.tags});
    client_->start_run(run_);
    begun_ = true;
  } catch (const MlflowAway&) {
    throw;
  } catch (const std::exception& error) {
    given_up_ = error.what();
    throw;
  }
}

template <typename Function>
void MlflowTracker::while_there(Function&& function) {
  try {
    function();
  } catch (const MlflowAway& error) {
    if (std::exchange(away_, true)) return;
    throw std::runtime_error(
        absl::StrCat(error.what(), "; it will be retried, and logged values wait"));
  }
  if (std::exchange(away_, false)) services_.info("mlflow: the server or the disk works again");
}

void MlflowTracker::warn_once(const std::string& about, const std::function<std::string()>& text) {
  if (warned_.size() >= kMaxWarnings || !warned_.insert(about).second) return;
  services_.warn(text());
}

void MlflowTracker::store_init_configuration(const TrackerDict& values) {
  TrackerDict params;
  for (const auto& [name, value] : values) {
    const std::string text = value_text(value);
    if (utf8_length(text) > kMlflowMaxParam) {
      warn_once(absl::StrCat("param ", name), [&] {
        return absl::StrCat(
            "Accelerate is attempting to log a value of \"", shown_value(name, value),
            "\" for key \"", name,
            "\" as a parameter. MLflow's log_param() only accepts values no longer than ",
            kMlflowMaxParam, " characters so we dropped this attribute.");
      });
      continue;
    }
    params.emplace_back(name, value);
  }
  for (size_t i = 0; i < params.size(); i += kMlflowMaxTexts) {
    const size_t end = std::min(i + kMlflowMaxTexts, params.size());
    client_->log_params(TrackerDict(params.begin() + static_cast<int64_t>(i),
                                    params.begin() + static_cast<int64_t>(end)));
  }
}

void MlflowTracker::log(const TrackerDict& values, const TrackerStep& step) {
  TrackerDict metrics;
  for (const auto& [name, value] : values) {
    if (value.number()) {
      metrics.emplace_back(name, value);
      continue;
    }
    const std::string type(type_name(value));
    warn_once(absl::StrCat(type, " ", name), [&] {
      return absl::StrCat("MLflowTracker is attempting to log a value of \"",
                          shown_value(name, value), "\" of type <class '", type, "'> for key \"",
                          name,
                          "\" as a metric. MLflow's log_metric() only accepts float and int types "
                          "so we dropped this attribute.");
    });
  }
  client_->log_metrics(metrics, step);
}

void MlflowTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  for (const auto& [name, several] : images) {
    for (size_t i = 0; i < several.size(); ++i) {
      log_figure(several[i], absl::StrCat(artifact_name("images", name, step), "_", i, ".png"));
    }
  }
}

void MlflowTracker::log_table(const std::string& name, const TrackerTable& table,
                              const TrackerStep& step) {
  json data = json::array();
  for (const TrackerList& row : table.rows) {
    json values = json::array();
    for (const TrackerValue& value : row) values.push_back(json_of(value));
    data.push_back(std::move(values));
  }
  const json content = {{"columns", table.columns}, {"data", std::move(data)}};
  client_->log_text(json_text(content), artifact_name("tables", name, step) + ".json");
}

void MlflowTracker::log_artifacts(const std::string& local_dir, const std::string& artifact_path) {
  for (const std::string& name : value_or_throw(services_.files.list(local_dir))) {
    const std::string path = join_path(local_dir, name);
    if (!value_or_throw(services_.files.info(path)).is_directory) {
      log_artifact(path, artifact_path);
    } else {
      log_artifacts(path, artifact_path.empty() ? name : join_path(artifact_path, name));
    }
  }
}

void MlflowTracker::flush() { flush(process_is_ending()); }

void MlflowTracker::flush(bool all) {
  if (!given_up_.empty() || !client_->is_ready()) return;
  while_there([&] {
    begin();
    client_->flush(all);
  });
}

void MlflowTracker::finish() {
  std::string reason = given_up_;
  std::string refused;
  const absl::Time end = services_.now() + kFinishLimit;
  while (given_up_.empty()) {
    try {
      if (!client_->wait_until_ready(end)) {
        if (reason.empty()) reason = kAway;
        break;
      }
      begin();
      try {
        client_->flush(/*all=*/false);
      } catch (const MlflowAway&) {
        throw;
      } catch (const std::exception& error) {
        refused = error.what();  // a part was refused; the run ends nevertheless
      }
      client_->end_run({.time = services_.now()});
      reason = refused;
      break;
    } catch (const std::exception& error) {
      reason = error.what();
      if (dynamic_cast<const MlflowAway*>(&error) == nullptr) break;
    }
  }
  const std::string losses = client_->losses();
  if (losses.empty() && reason.empty()) return;
  services_.warn(absl::StrCat("mlflow: ", losses.empty() ? "the run could not be ended" : losses,
                              reason.empty() ? "" : ": ", reason));
}

void MlflowTracker::abandon() {
  std::string reason = given_up_;
  try {
    flush(/*all=*/true);
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const std::string losses = client_->losses();
  if (losses.empty()) return;
  services_.warn(absl::StrCat("mlflow: ", losses, ": ", reason.empty() ? kAway : reason));
}

}  // namespace accelerate::trackers
