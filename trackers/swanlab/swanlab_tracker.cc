#include "trackers/swanlab/swanlab_tracker.h"

#include <utility>

namespace accelerate::trackers {
namespace {

class SwanLabTracker final : public PackageTracker {
 public:
  using PackageTracker::PackageTracker;

  void start() override {
    start_with("swanlab.init", {{"project", project_}});
    package_->set_item("swanlab.config", "FRAMEWORK", "🤗Accelerate");
  }

  void store_init_configuration(const TrackerDict& values) override {
    package_->call({.path = "swanlab.config.update",
                    .args = {values},
                    .kwargs = {{"allow_val_change", true}}});
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    log_python(to_python(values), step);
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    for (const auto& [name, several] : images) {
      log_python({{name, image_calls("swanlab.Image", several)}}, step);
    }
  }

  void finish() override { package_->finish_with({.path = "swanlab.init().finish"}); }

 private:
  void log_python(PythonDict values, const TrackerStep& step) {
    package_->call(
        {.path = "swanlab.init().log", .args = {std::move(values)}, .kwargs = step_kwargs(step)});
  }
};

const TrackerRegistration kRegistration(
    package_tracker<SwanLabTracker>({.name = "swanlab", .main_process_only = false}));

}  // namespace

std::unique_ptr<GeneralTracker> make_swanlab_tracker(const TrackerSetup& setup,
                                                     std::unique_ptr<PythonPackage> package) {
  return std::make_unique<SwanLabTracker>("swanlab", setup, std::move(package));
}

}  // namespace accelerate::trackers
