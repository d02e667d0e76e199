#include "trackers/swanlab/swanlab_tracker.h"

#include <utility>

#include "trackers/bridge/bridge_process.h"

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration({
    .name = "swanlab",
    .requires_logging_directory = false,
    .main_process_only = false,
    .tracker = make_tracker<SwanLabTracker>,
    .unavailable =
        [](const TrackerServices& services) { return why_unavailable(services, "swanlab"); },
});

}  // namespace

SwanLabTracker::SwanLabTracker(const TrackerSetup& setup)
    : SwanLabTracker(
          setup, std::make_unique<BridgeProcess>("swanlab", setup.services, setup.init_kwargs)) {}

SwanLabTracker::SwanLabTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package)
    : project_(setup.project_name), init_kwargs_(setup.init_kwargs), package_(std::move(package)) {}

void SwanLabTracker::start() {
  package_->start();
  PythonDict kwargs = {{"project", project_}};
  for (auto& entry : to_python(init_kwargs_)) kwargs.push_back(std::move(entry));
  package_->call({.path = "swanlab.init", .kwargs = std::move(kwargs)});
  package_->set_item("swanlab.config", "FRAMEWORK", "🤗Accelerate");
}

void SwanLabTracker::store_init_configuration(const TrackerDict& values) {
  package_->call(
      {.path = "swanlab.config.update", .args = {values}, .kwargs = {{"allow_val_change", true}}});
}

void SwanLabTracker::log_python(PythonDict values, const TrackerStep& step) {
  PythonDict kwargs = to_python(step.kwargs);
  kwargs.emplace_back("step", to_value(step.step));
  package_->call(
      {.path = "swanlab.init().log", .args = {std::move(values)}, .kwargs = std::move(kwargs)});
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
