#include "trackers/swanlab/swanlab_tracker.h"

#include <utility>

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration(
    package_tracker<SwanLabTracker>({.name = "swanlab", .main_process_only = false}));

}  // namespace

SwanLabTracker::SwanLabTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package)
    : PackageTracker("swanlab", setup, std::move(package)) {}

void SwanLabTracker::start() {
  start_with("swanlab.init", {{"project", project_}});
  package_->set_item("swanlab.config", "FRAMEWORK", "🤗Accelerate");
}

void SwanLabTracker::store_init_configuration(const TrackerDict& values) {
  package_->call(
      {.path = "swanlab.config.update", .args = {values}, .kwargs = {{"allow_val_change", true}}});
}

void SwanLabTracker::log_python(PythonDict values, const TrackerStep& step) {
  package_->call(
      {.path = "swanlab.init().log", .args = {std::move(values)}, .kwargs = step_kwargs(step)});
}

void SwanLabTracker::log(const TrackerDict& values, const TrackerStep& step) {
  log_python(to_python(values), step);
}

void SwanLabTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  for (const auto& [name, several] : images) {
    PythonList made;
    for (const TrackerImage& image : several) {
      made.push_back(PythonCall{.path = "swanlab.Image", .args = {image}});
    }
    log_python({{name, std::move(made)}}, step);
  }
}

void SwanLabTracker::finish() { package_->finish_with({.path = "swanlab.init().finish"}); }

}  // namespace accelerate::trackers
