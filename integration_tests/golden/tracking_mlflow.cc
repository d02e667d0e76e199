#include "integration_tests/golden/trackers.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// ---- decisions

// NumPy's float64 is a Python float. HF Accelerate does not take its others for numbers.
bool is_dropped_number(const json& value) {
  return value.is_object() && value.contains("$np") && value.value("type", "") != "float64";
}

bool logs_numbers(const json& in) { return logs_kind(in, "mlflow", "$np"); }

void keep_numbers(const json& in, json& out) {
  json& calls = out.at("calls");
  json& log = out.at("log");
  size_t call = 0;
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log") continue;
    while (calls.at(call).value("call", "") != "mlflow.log_metrics") ++call;
    json& metrics = calls[call++].at("args").at(0);
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      if (!is_dropped_number(value)) continue;
      metrics[name] = value.at("$np");
      const std::string key = absl::StrCat("for key \"", name, "\" as a metric");
      std::erase_if(log.get_ref<json::array_t&>(), [&](const json& line) {
        return absl::StrContains(line.get_ref<const std::string&>(), key);
      });
    }
  }
}

}  // namespace

json replay_mlflow(const json& in) {
  TrackingReplay replay(in);
  trackers::MlflowTracker tracker(replay.setup(), std::make_unique<Recorder>(replay));
  return replay.answer(tracker, "mlflow");
}

std::vector<Decision> mlflow_tracking_rules() {
  return {{"tracking", "MLflow keeps NumPy's numbers",
           "HF Accelerate drops NumPy's numbers but float64; in C++ they are numbers like others",
           &logs_numbers, &keep_numbers}};
}

}  // namespace accelerate::golden
