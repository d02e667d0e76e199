#include "trackers/comet_ml/comet_ml_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration(package_tracker<CometMlTracker>({.name = "comet_ml"}));

}  // namespace

CometMlTracker::CometMlTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package)
    : PackageTracker("comet_ml", setup, std::move(package)) {}

void CometMlTracker::start() { start_with("comet_ml.start", {{"project_name", project_}}); }

void CometMlTracker::call(const std::string& method, PythonList args, PythonDict kwargs) {
  package_->call({.path = absl::StrCat("comet_ml.start().", method),
                  .args = std::move(args),
                  .kwargs = std::move(kwargs)});
}

void CometMlTracker::set_step(const TrackerStep& step) {
  if (step.step) call("set_step", {*step.step});
}

void CometMlTracker::store_init_configuration(const TrackerDict& values) {
  call("log_parameters", {values});
}

void CometMlTracker::log(const TrackerDict& values, const TrackerStep& step) {
  set_step(step);
  for (const auto& [name, value] : values) {
    if (value.number()) {
      call("log_metric", {name, value}, step_kwargs(step));
    } else if (value.get_if<std::string>() != nullptr) {
      call("log_other", {name, value}, to_python(step.kwargs));
    } else if (value.get_if<TrackerDict>() != nullptr) {
      call("log_metrics", {value}, step_kwargs(step));
    }
  }
}

void CometMlTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  set_step(step);
  for (const auto& [name, several] : images) {
    for (const TrackerImage& image : several) {
      PythonDict kwargs = step_kwargs(step);
      kwargs.emplace_back("name", name);
      call("log_image", {image}, std::move(kwargs));
    }
  }
}

void CometMlTracker::log_table(const std::string& name, const TrackerTable& table,
                               const TrackerStep& step) {
  set_step(step);
  PythonDict kwargs = to_python(step.kwargs);
  kwargs.emplace_back("tabular_data", TrackerList(table.rows.begin(), table.rows.end()));
  kwargs.emplace_back("headers", TrackerList(table.columns.begin(), table.columns.end()));
  call("log_table", {absl::StrCat(name, ".csv")}, std::move(kwargs));
}

void CometMlTracker::log_histograms(const TrackerDict& tensors, const TrackerStep& step) {
  for (const auto& [name, tensor] : tensors) {
    PythonDict kwargs = step_kwargs(step);
    kwargs.emplace_back("name", name);
    call("log_histogram_3d", {tensor}, std::move(kwargs));
  }
}

void CometMlTracker::finish() { package_->finish_with({.path = "comet_ml.start().end"}); }

}  // namespace accelerate::trackers
