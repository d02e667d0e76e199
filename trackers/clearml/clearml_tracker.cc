#include "trackers/clearml/clearml_tracker.h"

#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

constexpr char kTask[] = "clearml.Task.current_task()";
constexpr char kGetLogger[] = "clearml.Task.current_task().get_logger";
constexpr char kLogger[] = "clearml.Task.current_task().get_logger()";

// Bounded, since a program may log a new name at each step.
constexpr size_t kMaxWarnings = 1000;

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

class ClearMlTracker final : public PackageTracker {
 public:
  using PackageTracker::PackageTracker;

  void start() override {
    package_->start();
    package_->call({.path = "clearml.Task.current_task"});
    const auto name = [&](const char* variable) {
      return services_.environment.get(variable).value_or(project_);
    };
    package_->call({.path = "clearml.Task.init",
                    .kwargs = with_init_kwargs({{"project_name", name("CLEARML_PROJECT")},
                                                {"task_name", name("CLEARML_TASK")}}),
                    .if_none = kTask});
    package_->call({.path = "clearml.Task.current_task", .if_none = kTask});
  }

  void store_init_configuration(const TrackerDict& values) override {
    package_->call({.path = absl::StrCat(kTask, ".connect_configuration"), .args = {values}});
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    package_->call({.path = kGetLogger});
    for (const auto& [name, value] : values) {
      if (!value.number()) {
        warn_of(name, value);
        continue;
      }
      if (step.step) {
        report("scalar", place_of(name), step, "value", value);
      } else {
        package_->call({.path = absl::StrCat(kLogger, ".report_single_value"),
                        .kwargs = to_python(step.kwargs, {{"name", name}, {"value", value}})});
      }
    }
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    package_->call({.path = kGetLogger});
    for (const auto& [name, several] : images) {
      for (size_t i = 0; i < several.size(); ++i) {
        // Images of one series and iteration would replace each other.
        Place place = place_of(name);
        if (several.size() > 1) absl::StrAppend(&place.series, "/", i);
        report("image", place, step, "image", several[i]);
      }
    }
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    TrackerList rows(table.rows.begin(), table.rows.end());
    if (!table.columns.empty()) rows.insert(rows.begin(), TrackerValue(table.columns));
    package_->call({.path = kGetLogger});
    report("table", place_of(name), step, "table_plot", std::move(rows));
  }

  void finish() override {
    // Closes only a task that this tracker has begun.
    package_->finish_with({.path = "clearml.Task.init().close", .optional = true});
  }

 private:
  // Once for each name and type: a loss that is a tensor has another text at each step.
  void warn_of(const std::string& name, const TrackerValue& value) {
    const std::string type(type_name(value));
    if (warned_.size() >= kMaxWarnings || !warned_.insert(absl::StrCat(type, " ", name)).second) {
      return;
    }
    services_.warn(absl::StrCat(
        "Accelerator is attempting to log a value of \"", shown_value(name, value),
        "\" of type <class '", type, "'> for key \"", name,
        "\" as a scalar. This invocation of ClearML logger's  report_scalar() is incorrect so we "
        "dropped this attribute."));
  }

  // Reports `value` as the argument `name` of the logger's method for that kind.
  void report(const char* kind, const Place& place, const TrackerStep& step, const char* name,
              PythonValue value) {
    package_->call({.path = absl::StrCat(kLogger, ".report_", kind),
                    .kwargs = to_python(step.kwargs, {{"title", place.title},
                                                      {"series", place.series},
                                                      {"iteration", step.step},
                                                      {name, std::move(value)}})});
  }

  std::set<std::string> warned_;
};

const TrackerRegistration kRegistration(package_tracker<ClearMlTracker>({.name = "clearml"}));

}  // namespace

std::unique_ptr<GeneralTracker> make_clearml_tracker(const TrackerSetup& setup,
                                                     std::unique_ptr<PythonPackage> package) {
  return std::make_unique<ClearMlTracker>("clearml", setup, std::move(package));
}

}  // namespace accelerate::trackers
