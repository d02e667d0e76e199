#include "trackers/aim/aim_tracker.h"

#include <utility>

namespace accelerate::trackers {
namespace {

TrackerDict dict_or_empty(const TrackerDict& dict, std::string_view name) {
  const TrackerValue* found = find(dict, name);
  const auto* entries = found != nullptr ? found->get_if<TrackerDict>() : nullptr;
  return entries != nullptr ? *entries : TrackerDict();
}

class AimTracker final : public PackageTracker {
 public:
  using PackageTracker::PackageTracker;

  void start() override {
    start_with("aim.Run", {{"repo", logging_dir_}});
    package_->set("aim.Run().name", project_);
  }

  void store_init_configuration(const TrackerDict& values) override {
    package_->set_item("aim.Run()", "hparams", values);
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    for (const auto& [name, value] : values) track(value, name, step, step.kwargs);
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    const TrackerDict both = dict_or_empty(step.kwargs, "kwargs");
    PythonDict kwargs = {{"caption", ""}};
    for (const auto& entry : dict_or_empty(both, "aim_image")) kwargs.push_back(entry);
    for (const auto& [name, several] : images) {
      PythonList made = image_calls("aim.Image", several, kwargs);
      const bool single = made.size() == 1;
      track(single ? std::move(made[0]) : PythonValue(std::move(made)), name, step,
            dict_or_empty(both, "track"));
    }
  }

  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override {
    for (const auto& [name, tensor] : tensors) {
      track(PythonCall{.path = "aim.Distribution", .args = {tensor}}, name, step, step.kwargs);
    }
  }

  void finish() override { package_->finish_with({.path = "aim.Run().close"}); }

 private:
  void track(PythonValue value, const std::string& name, const TrackerStep& step,
             const TrackerDict& kwargs) {
    package_->call({.path = "aim.Run().track",
                    .args = {std::move(value)},
                    .kwargs = to_python(kwargs, {{"name", name}, {"step", step.step}})});
  }
};

const TrackerRegistration kRegistration(
    package_tracker<AimTracker>({.name = "aim", .requires_logging_directory = true}));

}  // namespace

std::unique_ptr<GeneralTracker> make_aim_tracker(const TrackerSetup& setup,
                                                 std::unique_ptr<PythonPackage> package) {
  return std::make_unique<AimTracker>("aim", setup, std::move(package));
}

}  // namespace accelerate::trackers
