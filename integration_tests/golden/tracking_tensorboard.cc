#include "integration_tests/golden/trackers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"
#include "integration_tests/golden/tracking_replay.h"
#include "trackers/common/formats.h"
#include "trackers/tensorboard/tensorboard_tracker.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool holds(const json& value, const char* key) {
  if (value.is_object() && value.contains(key)) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(),
                                              [&](const json& entry) { return holds(entry, key); });
}

// The images that a case logged under a name.
json images_of(const json& in, const std::string& name) {
  for (const json& step : in.at("steps")) {
    if (step.at(0) == "log_images" && step.at(1).at(0).contains(name)) {
      return step.at(1).at(0).at(name);
    }
  }
  throw CaseError("no image is called " + name);
}

// The next of the images that a tracker was given, in the form in which the case has them.
json image_answer(const json& form, const std::vector<TrackerImage>& images, size_t* next) {
  if (form.is_array()) {
    json list = json::array();
    for (const json& entry : form) list.push_back(image_answer(entry, images, next));
    return list;
  }
  const size_t dimensions = form.at("$ndarray").size();
  const size_t count = dimensions == 4 ? form.at("$ndarray").at(0).get<size_t>() : 1;
  const TrackerImage& first = images.at(*next);
  json sizes = {first.height, first.width, first.channels};
  if (dimensions == 4) sizes.insert(sizes.begin(), count);
  for (size_t i = 0; i < count; ++i) {
    const TrackerImage& image = images.at((*next)++);
    if (image.height != first.height || image.width != first.width) {
      throw CaseError("images of an array differ in size");
    }
  }
  return {{"ndarray", sizes}, {"dtype", "uint8"}};
}

class Recorder final : public trackers::SummaryWriter {
 public:
  Recorder(TrackingReplay& replay, const json& in) : replay_(replay), in_(in) {}

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
    size_t next = 0;
    add("add_images", {tag, image_answer(images_of(in_, tag), images, &next)}, when);
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
  const json in_;
};

// ---- decisions

bool is_ours(const json& in) {
  return in.value("kind", "") == "tracker" && in.value("tracker", "") == "tensorboard";
}

// The dictionaries of values that a case's steps have.
template <typename Json, typename Visit>
void for_each_dict(Json& in, Visit visit) {
  for (auto& step : in.at("steps")) {
    if (!step.at(1).empty() && step.at(1).at(0).is_object()) visit(step, step.at(1).at(0));
  }
}

bool any_value(const json& in, const char* key, const char* method) {
  if (!is_ours(in)) return false;
  bool found = false;
  for_each_dict(in, [&](const json& step, const json& values) {
    found = found || (step.at(0) == method && holds(values, key));
  });
  return found;
}

bool has_objects(const json& in) {
  return any_value(in, "$object", "log") || any_value(in, "$object", "store_init_configuration");
}

bool has_numpy(const json& in) {
  return any_value(in, "$np", "log") || any_value(in, "$ndarray", "log") ||
         any_value(in, "$np", "store_init_configuration") ||
         any_value(in, "$ndarray", "store_init_configuration");
}

bool stores_tensors(const json& in) { return any_value(in, "$tensor", "store_init_configuration"); }

void leave_out_objects(const json& /*step*/, json& values) {
  for (auto entry = values.begin(); entry != values.end();) {
    entry = holds(*entry, "$object") ? values.erase(entry) : std::next(entry);
  }
}

// Puts `text` in the place of what a file of hyperparameters has under a name.
void replace_block(json& out, const std::string& name, const std::string& text) {
  for (json& file : out.at("files")) {
    std::string yaml = "\n" + file.get<std::string>();
    const size_t begin = yaml.find("\n" + name + ":");
    if (begin == yaml.npos) continue;
    size_t end = begin + 1;  // of the block: the next line that begins with a word
    do {
      end = yaml.find('\n', end) + 1;
    } while (end < yaml.size() && (yaml[end] == ' ' || yaml[end] == '-'));
    yaml.replace(begin + 1, end - begin - 1, text);
    file = yaml == "\n" ? "{}\n" : yaml.substr(1);
  }
}

void replace_blocks(const json& in, json& out, const char* key) {
  for_each_dict(in, [&](const json& step, const json& values) {
    if (step.at(0) != "store_init_configuration") return;
    for (const auto& [name, value] : entries_in_order(values)) {
      if (!holds(value, key)) continue;
      replace_block(out, name,
                    holds(value, "$object") ? std::string()
                                            : trackers::yaml_text({{name, tracking_value(value)}}));
    }
  });
}

void forget_objects(const json& in, json& out) {
  replace_blocks(in, out, "$object");
  for_each_dict(in, [&](const json& /*step*/, const json& values) {
    for (const auto& [name, value] : entries_in_order(values)) {
      if (!holds(value, "$object")) continue;
      json kept = json::array();
      for (json& call : out.at("calls")) {
        json& args = call.at("args");
        if (call.at("call") == "SummaryWriter().add_hparams") args.at(0).erase(name);
        if (call.at("call") != "SummaryWriter().add_scalars" || args.at(0) != name) {
          kept.push_back(call);
        }
      }
      out.at("calls") = kept;
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

// Values that HF Accelerate drops because they are not a Python int or float.
bool is_number_of_numpy(const json& value) {
  if (!value.is_object()) return false;
  return value.contains("$np") || (value.contains("$ndarray") && value["$ndarray"].empty());
}

void keep_numbers_of_numpy(const json& in, json& out) {
  for (const char* const key : {"$np", "$ndarray"}) replace_blocks(in, out, key);
  json& calls = out.at("calls");
  json kept = json::array();
  size_t next = 0;
  const auto keep = [&] { kept.push_back(without_numpy(calls.at(next++))); };
  keep();  // the writer
  for (const json& step : in.at("steps")) {
    const json& values = step.at(1).empty() ? json::object() : step.at(1).at(0);
    const bool is_log = step.at(0) == "log";
    if (step.at(0) == "log_images") {  // as they are
      for (size_t i = 0; i < values.size(); ++i) kept.push_back(calls.at(next++));
      continue;
    }
    for (const auto& [name, value] : entries_in_order(values)) {
      if (!is_log) break;
      const json& args = calls.at(next).at("args");
      if (!args.empty() && args.at(0) == name) {
        keep();
      } else if (is_number_of_numpy(value)) {
        json kwargs = step.at(2);
        kwargs["global_step"] = kwargs.value("step", json());
        kwargs.erase("step");
        kept.push_back({{"call", "SummaryWriter().add_scalar"},
                        {"args", {name, tracking_answer(tracking_value(value))}},
                        {"kwargs", kwargs}});
      }
    }
    if (step.at(0) == "store_init_configuration") keep();
    keep();  // flush, or close
  }
  while (next < calls.size()) keep();
  calls = kept;
}

void store_elements(const json& in, json& out) { replace_blocks(in, out, "$tensor"); }

}  // namespace

json replay_tensorboard(const json& in) {
  json known = in;
  for_each_dict(known, leave_out_objects);
  TrackingReplay replay(known);
  const TrackerSetup setup = replay.setup();
  trackers::TensorBoardTracker tracker(setup, std::make_unique<Recorder>(replay, in));
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
  return {
      {.family = "tracking",
       .name = "tensorboard: Python objects",
       .reason = "HF Accelerate hands on or drops a Python object; C++ has none to log",
       .applies = has_objects,
       .rewrite = forget_objects},
      {.family = "tracking",
       .name = "tensorboard: NumPy",
       .reason = "HF Accelerate drops NumPy's numbers but Python floats; here numbers are logged",
       .applies = has_numpy,
       .rewrite = keep_numbers_of_numpy},
      {.family = "tracking",
       .name = "tensorboard: tensors among the hyperparameters",
       .reason =
           "HF Accelerate's hparams.yml has Python's pickle of a tensor; ours has its elements",
       .applies = stores_tensors,
       .rewrite = store_elements},
  };
}

}  // namespace accelerate::golden
