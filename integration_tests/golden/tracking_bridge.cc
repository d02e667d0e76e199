#include "integration_tests/golden/trackers.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/overload.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"
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

bool has_key(const json& value, const char* key) {
  if (!value.is_structured()) return false;
  if (value.is_object() && value.contains(key)) return true;
  for (const json& entry : value) {
    if (has_key(entry, key)) return true;
  }
  return false;
}

// Python's own objects are refused for all trackers.
bool is_ours(const json& in) {
  if (in.value("kind", "") != "tracker" || has_key(in.at("steps"), "$object")) return false;
  const std::string tracker = in.value("tracker", "");
  return tracker == "comet_ml" || tracker == "clearml" || tracker == "aim" || tracker == "swanlab";
}

// ---- NumPy's numbers.

bool logs_numpy_numbers(const json& in) { return is_ours(in) && has_key(in.at("steps"), "$np"); }

void plain_numbers(json& value) {
  if (!value.is_structured()) return;
  if (value.is_object() && value.contains("numpy") && value.contains("value")) {
    value = json(value.at("value"));
    return;
  }
  for (json& entry : value) plain_numbers(entry);
}

// The call that Comet and ClearML make for each NumPy number in a log of numbers alone.
json number_call(const std::string& tracker, const std::string& name, const json& number,
                 const json& step) {
  if (tracker == "comet_ml") {
    return {{"call", "comet_ml.start().log_metric"},
            {"args", {name, number}},
            {"kwargs", {{"step", step}}}};
  }
  const std::string logger = "clearml.Task.current_task().get_logger()";
  if (step.is_null()) {
    return {{"call", logger + ".report_single_value"},
            {"args", json::array()},
            {"kwargs", {{"name", name}, {"value", number}}}};
  }
  std::string title = name;
  std::string series = "train";
  for (const std::string prefix : {"eval", "test", "train"}) {
    if (absl::StartsWith(name, prefix + "_")) {
      title = name.substr(prefix.size() + 1);
      series = prefix;
      break;
    }
  }
  return {
      {"call", logger + ".report_scalar"},
      {"args", json::array()},
      {"kwargs", {{"title", title}, {"series", series}, {"value", number}, {"iteration", step}}}};
}

// Cases log one value a step where it is NumPy's. The recorded calls of such a step lack one at
// their end, unless HF Accelerate took it (a float64 is a float).
void keep_numpy_numbers(const json& in, json& out) {
  plain_numbers(out["calls"]);
  const std::string tracker = in.at("tracker");
  if (tracker != "comet_ml" && tracker != "clearml") return;
  json calls = json::array();
  size_t next = 1;  // what starts it
  const json& recorded = out["calls"];
  const auto take = [&] {
    if (next < recorded.size()) calls.push_back(recorded[next++]);
  };
  calls.push_back(recorded.at(0));
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log") {
      take();
      continue;
    }
    const json number = step.at(2).value("step", json());
    if (tracker == "clearml" || !number.is_null()) take();  // get_logger, set_step
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      if (value.is_object() && value.contains("$np")) {
        const json call = number_call(tracker, name, value.at("$np"), number);
        if (next < recorded.size() && recorded[next] == call) ++next;
        calls.push_back(call);
      } else {
        take();
      }
    }
  }
  while (next < recorded.size()) take();
  out["calls"] = calls;
  json log = json::array();
  for (const json& line : out["log"]) {
    if (!absl::StrContains(line.get<std::string>(), "<class 'numpy.")) log.push_back(line);
    if (absl::StrContains(line.get<std::string>(), "numpy.ndarray")) log.push_back(line);
  }
  out["log"] = log;
}

// ---- NumPy's arrays.

bool logs_arrays(const json& in) {
  if (!is_ours(in)) return false;
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log_images" && has_key(step.at(1), "$ndarray")) return true;
  }
  return false;
}

// Cases' arrays are zeros.
json zeros(const json& sizes, size_t depth) {
  if (depth == sizes.size()) return 0.0;
  json result = json::array();
  for (size_t i = 0; i < sizes[depth].get<size_t>(); ++i) result.push_back(zeros(sizes, depth + 1));
  return result;
}

void arrays_as_tensors(json& value) {
  if (!value.is_structured()) return;
  if (value.is_object() && value.contains("ndarray")) {
    const json sizes = value.at("ndarray");
    value = {{"tensor", sizes}, {"dtype", "uint8"}, {"value", zeros(sizes, 0)}};
    return;
  }
  for (json& entry : value) arrays_as_tensors(entry);
}

// The array's text, as it stands in a warning, is that of a tensor.
void keep_arrays_as_tensors(const json& in, json& out) {
  arrays_as_tensors(out["calls"]);
  for (json& line : out["log"]) {
    const std::string text = line;
    const size_t type = text.find("<class 'numpy.ndarray'>");
    if (type == std::string::npos) continue;
    for (const json& step : in.at("steps")) {
      for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
        if (!absl::StrContains(text, absl::StrCat("for key \"", name, "\""))) continue;
        const size_t begin = text.find('"') + 1;
        const size_t end = text.rfind("\" of type", type);
        line = absl::StrCat(text.substr(0, begin), value_text(tracking_value(value)),
                            text.substr(end, type - end), "<class 'torch.Tensor'>",
                            text.substr(type + 23));
      }
    }
  }
}

// ---- Several images of one name.

bool logs_several_images(const json& in) {
  if (!is_ours(in) || (in.at("tracker") != "clearml" && in.at("tracker") != "aim")) return false;
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log_images") continue;
    for (const json& value : step.at(1).at(0)) {
      if (value.is_array() || value.at("$ndarray").size() == 4) return true;
    }
  }
  return false;
}

// The images in what HF Accelerate gave to the vendor as one.
std::vector<json> images_in(const json& value) {
  std::vector<json> images;
  if (value.is_array()) {
    images.assign(value.begin(), value.end());
  } else if (value.at("ndarray").size() == 4) {
    json image = value;
    const int64_t count = image["ndarray"][0];
    image["ndarray"].erase(0);
    images.assign(static_cast<size_t>(count), image);
  } else {
    images = {value};
  }
  return images;
}

void give_images_one_by_one(const json& /*in*/, json& out) {
  json calls = json::array();
  size_t made = 1;  // by the latest aim.Image
  for (json call : out["calls"]) {
    const std::string path = call.value("call", "");
    if (absl::EndsWith(path, ".report_image")) {
      const std::vector<json> images = images_in(call["kwargs"]["image"]);
      const std::string series = call["kwargs"]["series"];
      for (size_t i = 0; i < images.size(); ++i) {
        call["kwargs"]["image"] = images[i];
        if (images.size() > 1) call["kwargs"]["series"] = absl::StrCat(series, "/", i);
        calls.push_back(call);
      }
    } else if (path == "aim.Image") {
      const std::vector<json> images = images_in(call["args"][0]);
      made = images.size();
      for (const json& image : images) {
        call["args"][0] = image;
        calls.push_back(call);
      }
    } else {
      if (path == "aim.Run().track" && made != 1 && call["args"][0].is_object()) {
        call["args"][0] = json(std::vector<json>(made, call["args"][0]));
      }
      calls.push_back(call);
    }
  }
  out["calls"] = calls;
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

std::vector<Decision> bridge_tracking_rules() {
  return {
      {"tracking", "NumPy numbers of Python trackers",
       "HF Accelerate drops NumPy's numbers but float64 for Comet and ClearML; here they are "
       "numbers",
       &logs_numpy_numbers, &keep_numpy_numbers},
      {"tracking", "NumPy arrays of Python trackers",
       "arrays are tensors here, and a warning shows them as such", &logs_arrays,
       &keep_arrays_as_tensors},
      {"tracking", "several images of one name",
       "HF Accelerate gives a list of images to calls of ClearML and Aim that take one; here each "
       "is one of its own",
       &logs_several_images, &give_images_one_by_one},
  };
}

}  // namespace accelerate::golden
