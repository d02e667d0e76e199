#include "integration_tests/golden/trackers.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"
#include "integration_tests/golden/tracking_replay.h"
#include "trackers/tensorboard/tensorboard_tracker.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

class Recorder final : public trackers::SummaryWriter {
 public:
  explicit Recorder(TrackingReplay& replay) : replay_(replay) {}

  void open(const std::string& log_dir, const TrackerDict& kwargs) override {
    const std::string folder = replay_.setup().logging_dir;
    const std::string shown =
        log_dir.starts_with(folder) ? "<DIR>" + log_dir.substr(folder.size()) : log_dir;
    replay_.call("SummaryWriter", {shown}, tracking_answer(kwargs));
  }
  void add_scalar(const std::string& tag, const TrackerValue& scalar_value,
                  const TrackerStep& when) override {
    add("add_scalar", {tag, tracking_answer(scalar_value)}, when);
  }
  void add_scalars(const std::string& main_tag, const TrackerDict& tag_scalar_dict,
                   const TrackerStep& when) override {
    add("add_scalars", {main_tag, tracking_answer(tag_scalar_dict)}, when);
  }
  void add_text(const std::string& tag, const std::string& text_string,
                const TrackerStep& when) override {
    add("add_text", {tag, text_string}, when);
  }
  void add_images(const std::string& tag, const std::vector<TrackerImage>& images,
                  const TrackerStep& when) override {
    json arrays = json::array();
    for (const TrackerImage& image : images) {
      arrays.push_back(
          {{"ndarray", {image.height, image.width, image.channels}}, {"dtype", "uint8"}});
    }
    add("add_images", {tag, std::move(arrays)}, when);
  }
  void add_histogram(const std::string& tag, const std::vector<double>& values,
                     const TrackerStep& when) override {
    add("add_histogram", {tag, values}, when);
  }
  void add_hparams(const TrackerDict& hparam_dict, const TrackerDict& metric_dict,
                   const std::string& /*run_name*/) override {
    replay_.call("SummaryWriter().add_hparams", json::array({tracking_answer(hparam_dict)}),
                 {{"metric_dict", tracking_answer(metric_dict)}});
  }
  void flush() override { replay_.call("SummaryWriter().flush"); }
  void close() override { replay_.call("SummaryWriter().close"); }

 private:
  void add(const std::string& method, json args, const TrackerStep& when) {
    json kwargs = tracking_answer(when.kwargs);
    kwargs["global_step"] = when.step ? json(*when.step) : json();
    replay_.call("SummaryWriter()." + method, std::move(args), std::move(kwargs));
  }

  TrackingReplay& replay_;
};

// ---- decisions

bool logs_numbers_of_numpy(const json& in) { return logs_kind(in, "tensorboard", "$np"); }

// HF Accelerate logs nothing of those that are not a Python float.
void keep_numbers_of_numpy(const json& in, json& out) {
  const json& recorded = out.at("calls");
  json calls = json::array({recorded.at(0)});  // the writer
  size_t next = 1;
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log") throw CaseError("the calls of other steps are not known");
    for (const auto& [name, value] : entries_in_order(step.at(1).at(0))) {
      const json& args = recorded.at(next).at("args");
      if (!args.empty() && args.at(0) == name) {
        calls.push_back(recorded.at(next++));
      } else if (value.is_object() && value.contains("$np")) {
        json kwargs = step.at(2);
        kwargs["global_step"] = kwargs.value("step", json());
        kwargs.erase("step");
        calls.push_back({{"call", "SummaryWriter().add_scalar"},
                         {"args", {name, value.at("$np")}},
                         {"kwargs", std::move(kwargs)}});
      }
    }
    calls.push_back(recorded.at(next++));  // flush
  }
  out["calls"] = std::move(calls);
}

}  // namespace

json replay_tensorboard(const json& in) {
  TrackingReplay replay(in);
  trackers::TensorBoardTracker tracker(replay.setup(), std::make_unique<Recorder>(replay));
  json answer = replay.answer(tracker, "tensorboard");
  json files = json::object();
  for (const auto& [path, contents] : answer.at("files").items()) {
    const size_t time = path.find('/') + 1;
    files[path.substr(0, time) + "<TIME>" + path.substr(path.rfind('/'))] = contents;
  }
  answer["files"] = files;
  return answer;
}

std::vector<Decision> tensorboard_tracking_rules() {
  return {{"tracking", "tensorboard: NumPy",
           "HF Accelerate drops NumPy's numbers but Python floats; here numbers are logged",
           &logs_numbers_of_numpy, &keep_numbers_of_numpy}};
}

}  // namespace accelerate::golden
