#include "trackers/clearml/clearml_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration(package_tracker<ClearMlTracker>({.name = "clearml"}));

constexpr char kTask[] = "clearml.Task.current_task()";
constexpr char kGetLogger[] = "clearml.Task.current_task().get_logger";
constexpr char kLogger[] = "clearml.Task.current_task().get_logger()";

struct Place {
  std::string title;
  std::string series;
};

Place place_of(const std::string& name) {
  for (const std::string series : {"eval", "test", "train"}) {
    if (name.starts_with(series + "_")) return {name.substr(series.size() + 1), series};
  }
  return {name, "train"};
}

PythonDict at_place(const Place& place, const TrackerStep& step) {
  PythonDict kwargs = to_python(step.kwargs);
  kwargs.emplace_back("title", place.title);
  kwargs.emplace_back("series", place.series);
  kwargs.emplace_back("iteration", to_value(step.step));
  return kwargs;
}

// As Python formats it: a tensor without dimensions is its number.
std::string shown(const std::string& name, const TrackerValue& value) {
  const auto* tensor = value.get_if<TensorValue>();
  if (tensor == nullptr || !tensor->sizes.empty() || tensor->values.empty()) {
    return shown_value(name, value);
  }
  const double number = tensor->values[0];
  if (tensor->dtype == "bool") return value_text(number != 0);
  const bool floating = tensor->dtype.find("float") != std::string::npos;
  return floating ? value_text(number) : value_text(static_cast<int64_t>(number));
}

}  // namespace

ClearMlTracker::ClearMlTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package)
    : PackageTracker("clearml", setup, std::move(package)) {}

void ClearMlTracker::start() {
  package_->start();
  package_->call({.path = "clearml.Task.current_task"});
  const auto name = [&](const char* variable) {
    return services_.environment.get(variable).value_or(project_);
  };
  PythonDict kwargs = {{"project_name", name("CLEARML_PROJECT")},
                       {"task_name", name("CLEARML_TASK")}};
  for (auto& entry : to_python(init_kwargs_)) kwargs.push_back(std::move(entry));
  package_->call({.path = "clearml.Task.init", .kwargs = std::move(kwargs), .if_none = kTask});
  package_->call({.path = "clearml.Task.current_task", .if_none = kTask});
}

void ClearMlTracker::store_init_configuration(const TrackerDict& values) {
  package_->call({.path = absl::StrCat(kTask, ".connect_configuration"), .args = {values}});
}

void ClearMlTracker::log(const TrackerDict& values, const TrackerStep& step) {
  package_->call({.path = kGetLogger});
  for (const auto& [name, value] : values) {
    if (!value.number()) {
      services_.warn(absl::StrCat(
          "Accelerator is attempting to log a value of \"", shown(name, value),
          "\" of type <class '", std::string(type_name(value)), "'> for key \"", name,
          "\" as a scalar. This invocation of ClearML logger's  report_scalar() is incorrect so we "
          "dropped this attribute."));
      continue;
    }
    PythonDict kwargs = step.step ? at_place(place_of(name), step) : to_python(step.kwargs);
    if (!step.step) kwargs.emplace_back("name", name);
    kwargs.emplace_back("value", value);
    package_->call(
        {.path = absl::StrCat(kLogger, step.step ? ".report_scalar" : ".report_single_value"),
         .kwargs = std::move(kwargs)});
  }
}

void ClearMlTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  package_->call({.path = kGetLogger});
  for (const auto& [name, several] : images) {
    for (size_t i = 0; i < several.size(); ++i) {
      // Those of one series and iteration would replace each other.
      Place place = place_of(name);
      if (several.size() > 1) absl::StrAppend(&place.series, "/", i);
      PythonDict kwargs = at_place(place, step);
      kwargs.emplace_back("image", several[i]);
      package_->call({.path = absl::StrCat(kLogger, ".report_image"), .kwargs = std::move(kwargs)});
    }
  }
}

void ClearMlTracker::log_table(const std::string& name, const TrackerTable& table,
                               const TrackerStep& step) {
  TrackerList rows(table.rows.begin(), table.rows.end());
  if (!table.columns.empty()) {
    rows.insert(rows.begin(), TrackerList(table.columns.begin(), table.columns.end()));
  }
  PythonDict kwargs = at_place(place_of(name), step);
  kwargs.emplace_back("table_plot", std::move(rows));
  package_->call({.path = kGetLogger});
  package_->call({.path = absl::StrCat(kLogger, ".report_table"), .kwargs = std::move(kwargs)});
}

void ClearMlTracker::finish() {
  // Only a task of our own is there to be closed.
  package_->finish_with({.path = "clearml.Task.init().close", .optional = true});
}

}  // namespace accelerate::trackers
