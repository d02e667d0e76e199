#include "integration_tests/golden/trackers.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/overload.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/golden/tracking_replay.h"
#include "trackers/aim/aim_tracker.h"
#include "trackers/bridge/python_package.h"
#include "trackers/clearml/clearml_tracker.h"
#include "trackers/comet_ml/comet_ml_tracker.h"
#include "trackers/swanlab/swanlab_tracker.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using trackers::PythonCall;
using trackers::PythonDict;
using trackers::PythonList;
using trackers::PythonValue;

// Every package answers with an object, so nothing is None.
class Recorder : public trackers::PythonPackage {
 public:
  Recorder(TrackingReplay& replay, std::string logging_dir)
      : replay_(replay), logging_dir_(std::move(logging_dir)) {}

  void call(const PythonCall& call) override {
    if (!call.if_none.empty()) return;
    if (call.optional && absl::StartsWith(call.path, "clearml.Task.init()")) return;
    record(call);
  }

  void set(const std::string& path, const TrackerValue& value) override {
    replay_.set(path, tracking_answer(value));
  }

  void set_item(const std::string& path, const std::string& key,
                const TrackerValue& value) override {
    replay_.set_item(absl::StrCat(path, "['", key, "']"), tracking_answer(value));
  }

  void load(const std::string& /*file*/) override {}

 private:
  void record(const PythonCall& call) {
    json args = list(call.args);
    json kwargs = dict(call.kwargs);
    replay_.call(call.path, std::move(args), std::move(kwargs));
  }

  json answer(const PythonValue& value) {
    return std::visit(absl::Overload(
                          [&](const TrackerValue& plain) -> json {
                            const auto* text = plain.get_if<std::string>();
                            const bool is_folder = text != nullptr && *text == logging_dir_;
                            return is_folder ? json("<DIR>") : tracking_answer(plain);
                          },
                          [](const TrackerImage& image) -> json {
                            return {{"ndarray", {image.height, image.width, image.channels}},
                                    {"dtype", "uint8"}};
                          },
                          [&](const std::shared_ptr<const PythonCall>& made) -> json {
                            record(*made);
                            return {{"object", absl::StrCat(made->path, "()")}};
                          },
                          [&](const PythonList& values) { return list(values); },
                          [&](const PythonDict& values) { return dict(values); }),
                      value.variant());
  }

  json list(const PythonList& values) {
    json result = json::array();
    for (const PythonValue& value : values) result.push_back(answer(value));
    return result;
  }

  json dict(const PythonDict& values) {
    json result = json::object();
    for (const auto& [name, value] : values) result[name] = answer(value);
    return result;
  }

  TrackingReplay& replay_;
  const std::string logging_dir_;
};

template <typename MakeTracker>
json replay(const json& in, const char* name, const MakeTracker& make) {
  TrackingReplay replay(in);
  const TrackerSetup setup = replay.setup();
  const auto tracker = make(setup, std::make_unique<Recorder>(replay, setup.logging_dir));
  return replay.answer(*tracker, name);
}

}  // namespace

json replay_comet_ml(const json& in) {
  return replay(in, "comet_ml", trackers::make_comet_ml_tracker);
}
json replay_clearml(const json& in) {
  return replay(in, "clearml", trackers::make_clearml_tracker);
}
json replay_aim(const json& in) { return replay(in, "aim", trackers::make_aim_tracker); }
json replay_swanlab(const json& in) {
  return replay(in, "swanlab", trackers::make_swanlab_tracker);
}

}  // namespace accelerate::golden
