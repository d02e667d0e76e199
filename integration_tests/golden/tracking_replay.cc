#include "integration_tests/golden/tracking_replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/tracking/tracker.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFolder[] = "/sim/logs";

void flatten(const json& nested, size_t depth, TensorValue& tensor) {
  if (!nested.is_array()) {
    tensor.values.push_back(nested.get<double>());
    return;
  }
  if (depth == tensor.sizes.size()) tensor.sizes.push_back(static_cast<int64_t>(nested.size()));
  for (const json& entry : nested) flatten(entry, depth + 1, tensor);
}

double special_float(const std::string& text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return (text.starts_with('-') ? -1 : 1) * std::numeric_limits<double>::infinity();
}

TensorValue zeros(const json& sizes, const char* dtype) {
  TensorValue tensor{.sizes = sizes.get<std::vector<int64_t>>(), .dtype = dtype};
  const int64_t count =
      std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), int64_t{1}, std::multiplies<>());
  tensor.values.resize(static_cast<size_t>(count));
  return tensor;
}

json nested_elements(const TensorValue& tensor, size_t depth, size_t* next) {
  if (depth == tensor.sizes.size()) return tensor.values[(*next)++];
  json list = json::array();
  for (int64_t i = 0; i < tensor.sizes[depth]; ++i) {
    list.push_back(nested_elements(tensor, depth + 1, next));
  }
  return list;
}

// Images are arrays of height, width and channels, or several in one.
std::vector<TrackerImage> to_images(const json& value) {
  std::vector<TrackerImage> images;
  if (value.is_array()) {
    for (const json& entry : value) {
      for (TrackerImage& image : to_images(entry)) images.push_back(std::move(image));
    }
    return images;
  }
  std::vector<int64_t> sizes = value.at("$ndarray").get<std::vector<int64_t>>();
  const int64_t count = sizes.size() == 4 ? sizes[0] : 1;
  if (sizes.size() == 4) sizes.erase(sizes.begin());
  for (int64_t i = 0; i < count; ++i) {
    images.push_back({.height = sizes.at(0),
                      .width = sizes.at(1),
                      .channels = sizes.at(2),
                      .pixels = std::vector<uint8_t>(
                          static_cast<size_t>(sizes.at(0) * sizes.at(1) * sizes.at(2)))});
  }
  return images;
}

TrackerTable table_of(const json& kwargs) {
  TrackerTable table{.columns = field(kwargs, "columns").get<std::vector<std::string>>()};
  for (const json& row : field(kwargs, "data")) {
    TrackerList values;
    for (const json& value : row) values.push_back(tracking_value(value));
    table.rows.push_back(std::move(values));
  }
  return table;
}

}  // namespace

TrackerValue tracking_value(const json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    TrackerList list;
    for (const json& entry : value) list.push_back(tracking_value(entry));
    return list;
  }
  if (value.contains("$tensor")) {
    TensorValue tensor{.dtype = "float32"};
    flatten(value.at("$tensor"), 0, tensor);
    return tensor;
  }
  if (value.contains("$ndarray")) return zeros(value.at("$ndarray"), "uint8");
  if (value.contains("$np")) return tracking_value(value.at("$np"));
  if (value.contains("$float")) return special_float(value.at("$float").get<std::string>());
  struct Object {};
  static_assert(!std::is_constructible_v<TrackerValue, Object>);
  if (value.contains("$object")) throw DoesNotCompile();
  return tracking_dict(value);
}

TrackerDict tracking_dict(const json& value) {
  TrackerDict dict;
  for (const auto& [name, entry] : entries_in_order(value)) {
    dict.emplace_back(name, tracking_value(entry));
  }
  return dict;
}

json tracking_answer(const TrackerValue& value) {
  if (const auto* dict = value.get_if<TrackerDict>()) return tracking_answer(*dict);
  if (const auto* list = value.get_if<TrackerList>()) {
    json answer = json::array();
    for (const TrackerValue& entry : *list) answer.push_back(tracking_answer(entry));
    return answer;
  }
  if (const auto* tensor = value.get_if<TensorValue>()) {
    size_t next = 0;
    return {{"tensor", tensor->sizes},
            {"dtype", tensor->dtype},
            {"value", nested_elements(*tensor, 0, &next)}};
  }
  if (const auto* number = value.get_if<double>()) {
    if (std::isnan(*number)) return {{"$float", "nan"}};
    if (std::isinf(*number)) return {{"$float", *number > 0 ? "inf" : "-inf"}};
    return *number;
  }
  if (const auto* number = value.get_if<int64_t>()) return *number;
  if (const auto* truth = value.get_if<bool>()) return *truth;
  if (const auto* text = value.get_if<std::string>()) return *text;
  return nullptr;
}

json tracking_answer(const TrackerDict& dict) {
  json answer = json::object();
  for (const auto& [name, value] : dict) answer[name] = tracking_answer(value);
  return answer;
}

bool logs_kind(const json& in, const char* tracker, const char* kind) {
  if (in.at("kind") != "tracker" || in.at("tracker") != tracker) return false;
  for (const json& step : in.at("steps")) {
    if (step.at(0) != "log") continue;
    const json& values = step.at(1).at(0);
    if (std::any_of(values.begin(), values.end(),
                    [kind](const json& value) { return value.contains(kind); })) {
      return true;
    }
  }
  return false;
}

TrackingReplay::TrackingReplay(const json& in, FileSystem* files)
    : in_(in),
      services_{.files = files != nullptr ? *files : disk_,
                .environment = environment_,
                .now = [] { return absl::FromUnixSeconds(5); },
                .warn =
                    [](std::string_view text) {
                      get_logger("accelerate.tracking").warning(text, {.main_process_only = false});
                    },
                .info = [](std::string_view) {}} {
  expect_fields(in_, {"kind", "tracker", "steps", "env", "init"});
  const json env = in_.value("env", json::object());
  for (const auto& [name, value] : env.items()) {
    environment_.set(name, value.get<std::string>());
  }
  PartialState::get();  // which loggers ask
  add_log_sink(log_);
}

TrackerSetup TrackingReplay::setup() {
  return TrackerSetup{.project_name = "run",
                      .logging_dir = kFolder,
                      .init_kwargs = tracking_dict(in_.value("init", json::object())),
                      .random_bits = 1,
                      .time = services_.now(),
                      .services = services_};
}

const TrackerClass& TrackingReplay::linked_class(const std::string& name) {
  const TrackerClass* const known = TrackerRegistry::linked().find(name);
  if (known == nullptr) throw CaseError(absl::StrCat("no tracker ", name, " is linked"));
  return *known;
}

void TrackingReplay::call(const std::string& name, json args, json kwargs) {
  calls_.push_back({{"call", name}, {"args", std::move(args)}, {"kwargs", std::move(kwargs)}});
}

void TrackingReplay::set(const std::string& attribute, json value) {
  calls_.push_back({{"set", attribute}, {"value", std::move(value)}});
}

void TrackingReplay::set_item(const std::string& index, json value) {
  calls_.push_back({{"setitem", index}, {"value", std::move(value)}});
}

json TrackingReplay::answer(GeneralTracker& tracker, const std::string& name) {
  tracker.start();
  for (const json& step : in_.at("steps")) make_step(tracker, step);
  const TrackerClass& known = linked_class(name);
  return {{"calls", calls_},
          {"files", files()},
          {"log", log_->texts},
          {"main_process_only", known.main_process_only},
          {"requires_logging_directory", known.requires_logging_directory.value()}};
}

void TrackingReplay::make_step(GeneralTracker& tracker, const json& step) {
  const std::string method = step.at(0);
  const json& args = step.at(1);
  TrackerStep when{.time = services_.now()};
  for (const auto& [name, value] : entries_in_order(step.at(2))) {
    if (name == "step") {
      if (!value.is_null()) when.step = value.get<int64_t>();
    } else {
      when.kwargs.emplace_back(name, tracking_value(value));
    }
  }
  if (method == "log") {
    tracker.log(tracking_dict(args.at(0)), when);
  } else if (method == "store_init_configuration") {
    tracker.store_init_configuration(tracking_dict(args.at(0)));
  } else if (method == "log_images") {
    TrackerImages images;
    for (const auto& [name, value] : entries_in_order(args.at(0))) {
      images.emplace_back(name, to_images(value));
    }
    tracker.log_images(images, when);
  } else if (method == "log_table") {
    const TrackerTable table = table_of(step.at(2));
    for (const char* name : {"columns", "data"}) {
      std::erase_if(when.kwargs, [&](const auto& entry) { return entry.first == name; });
    }
    tracker.log_table(args.at(0).get<std::string>(), table, when);
  } else if (method == "finish") {
    tracker.finish();
  } else {
    throw CaseError(absl::StrCat("no method ", method, " is replayed"));
  }
}

json TrackingReplay::files() {
  json result = json::object();
  std::function<void(const std::string&, const std::string&)> add = [&](const std::string& folder,
                                                                        const std::string& name) {
    const auto names = disk_.list(folder);
    if (!names.ok()) return;
    for (const std::string& entry : *names) {
      const std::string path = join_path(folder, entry);
      const std::string shown = name.empty() ? entry : absl::StrCat(name, "/", entry);
      if (disk_.info(path)->is_directory) {
        add(path, shown);
      } else {
        result[shown] = read_file(disk_, path).value();
      }
    }
  };
  add(kFolder, "");
  return result;
}

}  // namespace accelerate::golden
