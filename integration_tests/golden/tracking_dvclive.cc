#include "integration_tests/golden/trackers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
  void flush() override {}
  void end() override { replay_.call("Live().end"); }

 private:
  TrackingReplay& replay_;
  const json init_kwargs_;
  int64_t step_ = 0;
};

bool holds(const json& value, const char* key) {
  if (value.is_object() && value.contains(key)) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(),
                                              [&](const json& entry) { return holds(entry, key); });
}

// The dictionaries of values that a case's steps have.
template <typename Json, typename Visit>
void for_each_dict(Json& in, Visit visit) {
  for (auto& step : in.at("steps")) {
    if (!step.at(1).empty() && step.at(1).at(0).is_object()) visit(step.at(1).at(0));
  }
}

bool any_value(const json& in, const char* key) {
  if (in.value("tracker", "") != "dvclive" || !in.contains("steps")) return false;
  bool found = false;
  for_each_dict(in, [&](const json& values) { found = found || holds(values, key); });
  return found;
}

void leave_out_objects(json& values) {
  for (auto entry = values.begin(); entry != values.end();) {
    entry = holds(*entry, "$object") ? values.erase(entry) : std::next(entry);
  }
}

json* find_warning(json& out, const std::string& name) {
  for (json& line : out.at("log")) {
    if (absl::StrContains(line.get_ref<const std::string&>(),
                          absl::StrCat(" for key \"", name, "\" as a scalar."))) {
      return &line;
    }
  }
  return nullptr;
}

void forget_objects(const json& in, json& out) {
  for_each_dict(in, [&](const json& values) {
    for (const auto& [name, value] : entries_in_order(values)) {
      if (!holds(value, "$object")) continue;
      while (json* const line = find_warning(out, name)) {
        out.at("log").erase(static_cast<size_t>(line - &out.at("log").at(0)));
      }
      for (json& call : out.at("calls")) {
        if (call.value("call", "") == "Live().log_params") call.at("args").at(0).erase(name);
      }
    }
  });
}

json without_numpy(const json& value) {
  if (value.is_object() && value.contains("numpy")) return value.at("value");
  if (value.is_object() && value.contains("ndarray")) {
    return tracking_answer(tracking_value({{"$ndarray", value.at("ndarray")}}));
  }
  if (!value.is_structured()) return value;
  json result = value;
  for (json& entry : result) entry = without_numpy(entry);
  return result;
}

void forget_numpy(const json& in, json& out) {
  out.at("calls") = without_numpy(out.at("calls"));
  for_each_dict(in, [&](const json& values) {
    for (const auto& [name, value] : entries_in_order(values)) {
      if (holds(value, "$object")) continue;
      json* const line = find_warning(out, name);
      if (line == nullptr || !(holds(value, "$np") || holds(value, "$ndarray"))) continue;
      const TrackerValue ours = tracking_value(value);
      const auto& text = line->get_ref<const std::string&>();
      *line =
          absl::StrCat(text.substr(0, text.find('"') + 1), value_text(ours), "\" of type <class '",
                       std::string(type_name(ours)), "'>", text.substr(text.rfind(" for key ")));
    }
  });
}

}  // namespace

json replay_dvclive(const json& in) {
  json known = in;
  for_each_dict(known, leave_out_objects);
  TrackingReplay replay(known);
  const TrackerSetup setup = replay.setup();
  const auto tracker = trackers::make_dvclive_tracker(
      setup, std::make_unique<Recorder>(replay, in.value("init_kwargs", json::object())));
  return replay.answer(*tracker, "dvclive");
}

std::vector<Decision> dvclive_tracking_rules() {
  return {
      {.family = "tracking",
       .name = "dvclive: Python objects",
       .reason = "HF Accelerate warns that it drops a Python object; C++ has none to log",
       .applies = [](const json& in) { return any_value(in, "$object"); },
       .rewrite = forget_objects},
      {.family = "tracking",
       .name = "dvclive: NumPy",
       .reason =
           "HF Accelerate tells NumPy's numbers and arrays apart; they are numbers and tensors",
       .applies = [](const json& in) { return any_value(in, "$np") || any_value(in, "$ndarray"); },
       .rewrite = forget_numpy},
  };
}

}  // namespace accelerate::golden
