#include "trackers/aim/aim_tracker.h"

#include <utility>

#include "absl/base/no_destructor.h"

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration(
    package_tracker<AimTracker>({.name = "aim", .requires_logging_directory = true}));

const TrackerDict& dict_or_empty(const TrackerDict& dict, std::string_view name) {
  static const absl::NoDestructor<TrackerDict> kEmpty;
  const TrackerValue* found = find(dict, name);
  const auto* entries = found != nullptr ? found->get_if<TrackerDict>() : nullptr;
  return entries != nullptr ? *entries : *kEmpty;
}

}  // namespace

AimTracker::AimTracker(const TrackerSetup& setup, std::unique_ptr<PythonPackage> package)
    : PackageTracker("aim", setup, std::move(package)), repository_(setup.logging_dir) {}

void AimTracker::start() {
  start_with("aim.Run", {{"repo", repository_}});
  package_->set("aim.Run().name", project_);
}

void AimTracker::store_init_configuration(const TrackerDict& values) {
  package_->set_item("aim.Run()", "hparams", values);
}

void AimTracker::track(PythonValue value, const std::string& name, const TrackerStep& step,
                       const TrackerDict& kwargs) {
  PythonDict all = to_python(kwargs);
  all.emplace_back("name", name);
  all.emplace_back("step", to_value(step.step));
  package_->call({.path = "aim.Run().track", .args = {std::move(value)}, .kwargs = std::move(all)});
}

void AimTracker::log(const TrackerDict& values, const TrackerStep& step) {
  for (const auto& [name, value] : values) track(value, name, step, step.kwargs);
}

void AimTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  const TrackerDict& both = dict_or_empty(step.kwargs, "kwargs");
  PythonDict kwargs = {{"caption", ""}};
  for (auto& entry : to_python(dict_or_empty(both, "aim_image"))) kwargs.push_back(entry);
  for (const auto& [name, several] : images) {
    PythonList made;
    for (const TrackerImage& image : several) {
      made.push_back(PythonCall{.path = "aim.Image", .args = {image}, .kwargs = kwargs});
    }
    const bool single = made.size() == 1;
    track(single ? std::move(made[0]) : PythonValue(std::move(made)), name, step,
          dict_or_empty(both, "track"));
  }
}

void AimTracker::log_histograms(const TrackerDict& tensors, const TrackerStep& step) {
  for (const auto& [name, tensor] : tensors) {
    track(PythonCall{.path = "aim.Distribution", .args = {tensor}}, name, step, step.kwargs);
  }
}

void AimTracker::finish() { package_->finish_with({.path = "aim.Run().close"}); }

}  // namespace accelerate::trackers
