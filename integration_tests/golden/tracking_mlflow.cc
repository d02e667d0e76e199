#include "integration_tests/golden/trackers.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"
#include "integration_tests/golden/tracking_replay.h"
#include "trackers/mlflow/mlflow_tracker.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using trackers::MlflowCreateExperiment;
using trackers::MlflowStartRun;

json null_or(const std::optional<std::string>& text) { return text ? json(*text) : json(); }
json null_or(const std::optional<TrackerDict>& dict) {
  return dict ? tracking_answer(*dict) : json();
}

class Recorder final : public trackers::MlflowClient {
 public:
  explicit Recorder(TrackingReplay& replay) : replay_(replay) {}

  std::vector<std::string> search_experiments(const std::string& name) override {
    replay_.call("mlflow.search_experiments", json::array(),
                 {{"filter_string", absl::StrCat("name = '", name, "'")}});
    return {};
  }
  std::string create_experiment(const MlflowCreateExperiment& experiment) override {
    replay_.call("mlflow.create_experiment", json::array(),
                 {{"name", experiment.name},
                  {"artifact_location", null_or(experiment.artifact_location)},
                  {"tags", null_or(experiment.tags)}});
    return "mlflow.create_experiment()";
  }
  void start_run(const MlflowStartRun& run) override {
    replay_.call("mlflow.start_run", json::array(),
                 {{"run_id", null_or(run.run_id)},
                  {"experiment_id", {{"object", run.experiment_id}}},
                  {"run_name", null_or(run.run_name)},
                  {"nested", run.nested},
                  {"tags", null_or(run.tags)},
                  {"description", null_or(run.description)}});
  }
  void log_metrics(const TrackerDict& metrics, const TrackerStep& step) override {
    json kwargs = tracking_answer(step.kwargs);
    kwargs["step"] = step.step ? json(*step.step) : json();
    replay_.call("mlflow.log_metrics", json::array({tracking_answer(metrics)}), kwargs);
  }
  void log_params(const TrackerDict& params) override {
    replay_.call("mlflow.log_params", json::array({tracking_answer(params)}));
  }
  void set_tags(const TrackerDict& tags) override {
    replay_.call("mlflow.set_tags", json::array({tracking_answer(tags)}));
  }
  void log_image(const TrackerImage& /*image*/, const std::string& artifact_file) override {
    replay_.call("mlflow.log_figure", json::array(), {{"artifact_file", artifact_file}});
  }
  void log_text(const std::string& text, const std::string& artifact_file) override {
    replay_.call("mlflow.log_text", {text, artifact_file});
  }
  void log_artifact(const std::string& local_path, const std::string& artifact_path) override {
    replay_.call("mlflow.log_artifact", json::array(),
                 {{"local_path", local_path}, {"artifact_path", artifact_path}});
  }
  void end_run(const TrackerStep& /*when*/) override { replay_.call("mlflow.end_run"); }

 private:
  TrackingReplay& replay_;
};

bool is_object(const json& value) { return value.is_object() && value.contains("$object"); }
bool is_array(const json& value) { return value.is_object() && value.contains("$ndarray"); }
// NumPy's float64 is a Python float; HF Accelerate does not take its others for numbers.
bool is_dropped_number(const json& value) {
  return value.is_object() && value.contains("$np") && value.value("type", "") != "float64";
}

bool any_value(const json& in, const std::string& method, bool (*matches)(const json&)) {
  if (in.value("tracker", "") != "mlflow") return false;
  for (const json& step : in.value("steps", json::array())) {
    if (!method.empty() && step.at(0) != method) continue;
    if (step.at(1).empty() || !step.at(1).at(0).is_object()) continue;
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      if (matches(value)) return true;
    }
  }
  return false;
}

// The warnings about a metric of that name whose type is of NumPy or a mere object.
std::string* find_warning(json& out, const std::string& name, const std::string& type) {
  for (json& line : out["log"]) {
    auto& text = line.get_ref<std::string&>();
    if (absl::StrContains(text, absl::StrCat("for key \"", name, "\" as a metric")) &&
        absl::StrContains(text, absl::StrCat("<class '", type))) {
      return &text;
    }
  }
  return nullptr;
}

void erase_warnings(json& out, const std::string& name, const std::string& type) {
  while (const std::string* warning = find_warning(out, name, type)) {
    const json line = *warning;
    json& log = out["log"];
    log.erase(std::find(log.begin(), log.end(), line));
  }
}

// Calls `change` with the values of each `log` step and the arguments of its call.
template <typename Change>
void for_each_log(const json& in, json& out, Change change) {
  size_t call = 0;
  for (const json& step : in["steps"]) {
    if (step.at(0) != "log") continue;
    while (out["calls"].at(call).value("call", "") != "mlflow.log_metrics") ++call;
    change(step.at(1).at(0), out["calls"][call++]["args"][0]);
  }
}

bool logs_numbers(const json& in) { return any_value(in, "log", &is_dropped_number); }

void keep_numbers(const json& in, json& out) {
  for_each_log(in, out, [&](const json& values, json& metrics) {
    for (const auto& [name, value] : entries_in_order(values)) {
      if (!is_dropped_number(value)) continue;
      metrics[name] = tracking_answer(tracking_value(value));
      erase_warnings(out, name, "numpy.");
    }
  });
}

bool logs_arrays(const json& in) { return any_value(in, "log", &is_array); }

void warn_of_tensors(const json& in, json& out) {
  for_each_log(in, out, [&](const json& values, json& /*metrics*/) {
    for (const auto& [name, value] : entries_in_order(values)) {
      if (!is_array(value)) continue;
      while (std::string* warning = find_warning(out, name, "numpy.")) {
        *warning = absl::StrCat(
            "[RANK 0] MLflowTracker is attempting to log a value of \"",
            value_text(tracking_value(value)), "\" of type <class 'torch.Tensor'> for key \"", name,
            "\" as a metric. MLflow's log_metric() only accepts float and int types so we dropped "
            "this attribute.");
      }
    }
  });
}

bool is_of_numpy(const json& value) {
  return is_array(value) || (value.is_object() && value.contains("$np"));
}

bool has_params_of_numpy(const json& in) {
  return any_value(in, "store_init_configuration", &is_of_numpy);
}

void take_params_as_they_are_here(const json& in, json& out) {
  for (const json& step : in["steps"]) {
    if (step.at(0) != "store_init_configuration") continue;
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      if (!is_of_numpy(value)) continue;
      for (json& call : out["calls"]) {
        if (call.value("call", "") != "mlflow.log_params") continue;
        json& params = call["args"][0];
        if (params.contains(name)) params[name] = tracking_answer(tracking_value(value));
      }
    }
  }
}

bool has_many_params(const json& in) {
  if (in.value("tracker", "") != "mlflow") return false;
  for (const json& step : in.value("steps", json::array())) {
    if (step.at(0) == "store_init_configuration" && step.at(1).at(0).size() > 100) return true;
  }
  return false;
}

// Calls that follow each other, with a hundred params each in the order of their names.
void order_params(const json& /*in*/, json& out) {
  json calls = json::array();
  json params = json::object();
  const auto flush = [&] {
    json chunk = json::object();
    for (const auto& [name, value] : entries_in_order(params)) {
      chunk[name] = value;
      if (chunk.size() < 100) continue;
      calls.push_back({{"call", "mlflow.log_params"},
                       {"args", json::array({chunk})},
                       {"kwargs", json::object()}});
      chunk = json::object();
    }
    if (!chunk.empty()) {
      calls.push_back({{"call", "mlflow.log_params"},
                       {"args", json::array({chunk})},
                       {"kwargs", json::object()}});
    }
    params = json::object();
  };
  for (const json& call : out["calls"]) {
    if (call.value("call", "") == "mlflow.log_params") {
      params.update(call["args"][0]);
    } else {
      flush();
      calls.push_back(call);
    }
  }
  flush();
  out["calls"] = std::move(calls);
}

bool has_objects(const json& in) { return any_value(in, "", &is_object); }

void leave_out_objects(const json& in, json& out) {
  for (const json& step : in["steps"]) {
    if (step.at(1).empty() || !step.at(1).at(0).is_object()) continue;
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      if (!is_object(value)) continue;
      erase_warnings(out, name, "object");
      json calls = json::array();
      for (json& call : out["calls"]) {
        const bool is_params = call.value("call", "") == "mlflow.log_params";
        if (is_params) call["args"][0].erase(name);
        if (!is_params || !call["args"][0].empty()) calls.push_back(call);
      }
      out["calls"] = std::move(calls);
    }
  }
}

json without_objects(json in) {
  for (json& step : in["steps"]) {
    if (step.at(1).empty() || !step[1][0].is_object()) continue;
    json values = json::object();
    for (const auto& [name, value] : entries_in_order(step[1][0])) {
      if (!is_object(value)) values[name] = value;
    }
    step[1][0] = std::move(values);
  }
  return in;
}

}  // namespace

json replay_mlflow(const json& in) {
  TrackingReplay replay(without_objects(in));
  trackers::MlflowTracker tracker(replay.setup(), std::make_unique<Recorder>(replay));
  return replay.answer(tracker, "mlflow");
}

std::vector<Decision> mlflow_tracking_rules() {
  return {
      {"tracking", "MLflow keeps NumPy's numbers",
       "HF Accelerate drops NumPy's numbers but float64; in C++ they are numbers like others",
       &logs_numbers, &keep_numbers},
      {"tracking", "MLflow's arrays are tensors",
       "HF Accelerate's warning shows an array of NumPy; here it is a tensor", &logs_arrays,
       &warn_of_tensors},
      {"tracking", "MLflow's params are not values of NumPy",
       "HF Accelerate hands on what NumPy made; here these are numbers and tensors",
       &has_params_of_numpy, &take_params_as_they_are_here},
      {"tracking", "MLflow's params in the order of their names",
       "a case that is read here has lost the order that says which hundred params go together",
       &has_many_params, &order_params},
      {"tracking", "MLflow has no Python objects",
       "a Python object cannot be written in C++, so nothing is said of it", &has_objects,
       &leave_out_objects},
  };
}

}  // namespace accelerate::golden
