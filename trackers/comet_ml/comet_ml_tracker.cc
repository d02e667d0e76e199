#include "trackers/comet_ml/comet_ml_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

class CometMlTracker final : public PackageTracker {
 public:
  using PackageTracker::PackageTracker;

  void start() override { start_with("comet_ml.start", {{"project_name", project_}}); }

  void store_init_configuration(const TrackerDict& values) override {
    call("log_parameters", {values});
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
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

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    set_step(step);
    for (const auto& [name, several] : images) {
      for (const TrackerImage& image : several) call("log_image", {image}, named(name, step));
    }
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    set_step(step);
    call("log_table", {absl::StrCat(name, ".csv")},
         to_python(step.kwargs, {{"tabular_data", table.rows}, {"headers", table.columns}}));
  }

  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override {
    for (const auto& [name, tensor] : tensors) {
      call("log_histogram_3d", {tensor}, named(name, step));
    }
  }

  void finish() override { package_->finish_with({.path = "comet_ml.start().end"}); }

 private:
  static PythonDict named(const std::string& name, const TrackerStep& step) {
    return to_python(step.kwargs, {{"step", step.step}, {"name", name}});
  }

  // Calls a method of the experiment.
  void call(const std::string& method, PythonList args, PythonDict kwargs = {}) {
    package_->call({.path = absl::StrCat("comet_ml.start().", method),
                    .args = std::move(args),
                    .kwargs = std::move(kwargs)});
  }

  void set_step(const TrackerStep& step) {
    if (step.step) call("set_step", {*step.step});
  }
};

const TrackerRegistration kRegistration(package_tracker<CometMlTracker>({.name = "comet_ml"}));

}  // namespace

std::unique_ptr<GeneralTracker> make_comet_ml_tracker(const TrackerSetup& setup,
                                                      std::unique_ptr<PythonPackage> package) {
  return std::make_unique<CometMlTracker>("comet_ml", setup, std::move(package));
}

}  // namespace accelerate::trackers
