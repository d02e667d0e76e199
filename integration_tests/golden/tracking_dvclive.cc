#include "integration_tests/golden/trackers.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"
#include "integration_tests/golden/tracking_replay.h"
#include "trackers/dvclive/dvclive_tracker.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

class Recorder final : public trackers::Live {
 public:
  Recorder(TrackingReplay& replay, json init_kwargs)
      : replay_(replay), init_kwargs_(std::move(init_kwargs)) {}

  void open() override { replay_.call("Live", json::array(), init_kwargs_); }
  void log_params(const TrackerDict& params) override {
    replay_.call("Live().log_params", json::array({tracking_answer(params)}));
  }
  void set_step(int64_t step) override {
    step_ = step;
    replay_.set("Live().step", step);
  }
  int64_t step() const override { return step_; }
  void log_metric(const std::string& name, const TrackerValue& value,
                  const TrackerDict& kwargs) override {
    replay_.call("Live().log_metric", json::array({name, tracking_answer(value)}),
                 tracking_answer(kwargs));
  }
  void log_image(const std::string& name, const TrackerImage& /*image*/) override {
    replay_.call("Live().log_image", json::array({name}));
  }
  void next_step() override {
    ++step_;
    replay_.call("Live().next_step");
  }
  void flush(bool /*all*/) override {}
  void end() override { replay_.call("Live().end"); }

 private:
  TrackingReplay& replay_;
  const json init_kwargs_;
  int64_t step_ = 0;
};

// ---- decisions

bool logs_numpy(const json& in) {
  return logs_kind(in, "dvclive", "$np") || logs_kind(in, "dvclive", "$ndarray");
}

// The elements of a case's array, which are zeros, as a tensor shows them.
std::string zeros_text(const json& sizes, size_t depth = 0) {
  if (depth == sizes.size()) return "0";
  const std::vector<std::string> entries(sizes[depth].get<size_t>(), zeros_text(sizes, depth + 1));
  return absl::StrCat("[", absl::StrJoin(entries, ", "), "]");
}

void know_numbers_and_tensors(const json& in, json& out) {
  for (json& call : out.at("calls")) {
    if (call.value("call", "") != "Live().log_metric") continue;
    json& value = call.at("args").at(1);
    if (value.is_object() && value.contains("numpy")) value = json(value.at("value"));
  }
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log") continue;
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      if (!value.contains("$ndarray")) continue;
      const std::string key = absl::StrCat(" for key \"", name, "\" as a scalar.");
      for (json& line : out.at("log")) {
        const auto text = line.get<std::string>();
        const size_t end = text.find(key);
        if (end == text.npos) continue;
        line = absl::StrCat(text.substr(0, text.find('"') + 1), "tensor(",
                            zeros_text(value.at("$ndarray")), ")\" of type <class 'torch.Tensor'>",
                            text.substr(end));
      }
    }
  }
}

}  // namespace

json replay_dvclive(const json& in) {
  TrackingReplay replay(in);
  const auto tracker = trackers::make_dvclive_tracker(
      replay.setup(), std::make_unique<Recorder>(replay, in.value("init_kwargs", json::object())));
  return replay.answer(*tracker, "dvclive");
}

std::vector<Decision> dvclive_tracking_rules() {
  return {{"tracking", "dvclive: NumPy",
           "HF Accelerate tells NumPy's numbers and arrays apart; they are numbers and tensors",
           &logs_numpy, &know_numbers_and_tensors}};
}

}  // namespace accelerate::golden
