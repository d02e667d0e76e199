#include "trackers/python/python_tracker.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {
namespace {

constexpr char kVariable[] = "ACCELERATE_PYTHON_TRACKER";
constexpr char kName[] = "python";

bool is_file(const std::string& module) { return absl::EndsWith(module, ".py"); }

// The name that bridge.py gives to the module of a file.
std::string module_name(const std::string& module) {
  if (!is_file(module)) return module;
  const std::string file = module.substr(module.rfind('/') + 1);
  return file.substr(0, file.size() - 3);
}

std::string why_not(const TrackerServices& services, const std::string& module) {
  if (!services.is_real || !is_file(module)) return why_unavailable(services, module);
  // Whether a file can be loaded is only known when the tracker starts.
  return why_unavailable(services, "importlib");
}

class PythonTracker final : public PackageTracker {
 public:
  // `name`: the tracker's, for messages.
  PythonTracker(const std::string& name, const TrackerSetup& setup, PythonTrackerOptions options)
      : PackageTracker(name, setup),
        options_(std::move(options)),
        class_path_(absl::StrCat(module_name(options_.module), ".", options_.class_name)),
        object_(absl::StrCat(class_path_, "()")) {
    if (options_.module.empty() || options_.class_name.empty()) {
      throw std::invalid_argument("a Python tracker needs the names of a module and a class");
    }
  }

  void start() override {
    package_->start();
    if (is_file(options_.module)) package_->load(options_.module);
    PythonList args = {project_};
    if (options_.requires_logging_directory) args.emplace_back(logging_dir_);
    package_->call(
        {.path = class_path_, .args = std::move(args), .kwargs = to_python(init_kwargs_)});
    package_->call({.path = absl::StrCat(object_, ".start"), .optional = true});
  }

  void store_init_configuration(const TrackerDict& values) override {
    call("store_init_configuration", {values});
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    call("log", {values}, step_kwargs(step));
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    PythonDict values;
    for (const auto& [name, several] : images) {
      values.emplace_back(name, PythonList(several.begin(), several.end()));
    }
    call("log_images", {std::move(values)}, step_kwargs(step));
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    call("log_table", {name},
         to_python(step.kwargs,
                   {{"columns", table.columns}, {"data", table.rows}, {"step", step.step}}));
  }

  void finish() override {
    package_->finish_with({.path = absl::StrCat(object_, ".finish"), .optional = true});
  }

 private:
  // Calls a method of the instance.
  void call(const char* method, PythonList args, PythonDict kwargs = {}) {
    package_->call({.path = absl::StrCat(object_, ".", method),
                    .args = std::move(args),
                    .kwargs = std::move(kwargs)});
  }

  const PythonTrackerOptions options_;
  const std::string class_path_;
  const std::string object_;  // the path of the instance
};

PythonTrackerOptions named_by(const Environment& environment) {
  const std::string value = environment.get_or(kVariable, "");
  const size_t colon = value.rfind(':');
  if (colon == value.npos || colon == 0 || colon + 1 == value.size()) return {};
  return {.module = value.substr(0, colon), .class_name = value.substr(colon + 1)};
}

const TrackerRegistration kRegistration({
    .name = kName,
    .requires_logging_directory = false,
    .tracker =
        [](const TrackerSetup& setup) {
          return std::make_unique<PythonTracker>(kName, setup,
                                                 named_by(setup.services.environment));
        },
    .unavailable =
        [](const TrackerServices& services) {
          const std::string module = named_by(services.environment).module;
          return module.empty() ? absl::StrCat(kVariable, " does not name a MODULE:CLASS")
                                : why_not(services, module);
        },
});

}  // namespace

TrackerClass python_tracker(std::string name, const PythonTrackerOptions& options) {
  return {
      .name = name,
      .requires_logging_directory = options.requires_logging_directory,
      .main_process_only = options.main_process_only,
      .tracker =
          [name, options](const TrackerSetup& setup) {
            return std::make_unique<PythonTracker>(name, setup, options);
          },
      .unavailable = [module = options.module](
                         const TrackerServices& services) { return why_not(services, module); }};
}

}  // namespace accelerate::trackers
