#include "trackers/python/python_tracker.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

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

std::unique_ptr<GeneralTracker> make(const std::string& name, const PythonTrackerOptions& options,
                                     const TrackerSetup& setup) {
  return std::make_unique<PythonTracker>(name, setup, options);
}

std::string why_not(const TrackerServices& services, const std::string& module) {
  if (!services.is_real || !is_file(module)) return why_unavailable(services, module);
  // What only Python itself can say of a file, it says when the tracker starts.
  return why_unavailable(services, "importlib");
}

PythonTrackerOptions named_by(const Environment& environment) {
  const std::string value = environment.get_or(kVariable, "");
  const size_t colon = value.rfind(':');
  if (colon == value.npos || colon == 0 || colon + 1 == value.size()) return {};
  return {.module = value.substr(0, colon), .class_name = value.substr(colon + 1)};
}

const TrackerRegistration kRegistration({
    .name = kName,
    .requires_logging_directory = false,
    .main_process_only = true,
    .tracker =
        [](const TrackerSetup& setup) {
          return make(kName, named_by(setup.services.environment), setup);
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
      .tracker = [name, options](const TrackerSetup& setup) { return make(name, options, setup); },
      .unavailable = [module = options.module](
                         const TrackerServices& services) { return why_not(services, module); }};
}

PythonTracker::PythonTracker(const std::string& name, const TrackerSetup& setup,
                             PythonTrackerOptions options)
    : PackageTracker(name, setup, nullptr),
      options_(std::move(options)),
      class_path_(absl::StrCat(module_name(options_.module), ".", options_.class_name)),
      object_(absl::StrCat(class_path_, "()")),
      logging_dir_(setup.logging_dir) {
  if (options_.module.empty() || options_.class_name.empty()) {
    throw std::invalid_argument("a Python tracker wants the names of a module and a class");
  }
}

void PythonTracker::start() {
  package_->start();
  if (is_file(options_.module)) package_->load(options_.module);
  PythonList args = {project_};
  if (options_.requires_logging_directory) args.emplace_back(logging_dir_);
  package_->call({.path = class_path_, .args = std::move(args), .kwargs = to_python(init_kwargs_)});
  package_->call({.path = absl::StrCat(object_, ".start"), .optional = true});
}

void PythonTracker::store_init_configuration(const TrackerDict& values) {
  package_->call({.path = absl::StrCat(object_, ".store_init_configuration"), .args = {values}});
}

void PythonTracker::log(const TrackerDict& values, const TrackerStep& step) {
  package_->call(
      {.path = absl::StrCat(object_, ".log"), .args = {values}, .kwargs = step_kwargs(step)});
}

void PythonTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  PythonDict values;
  for (const auto& [name, several] : images) {
    values.emplace_back(name, PythonList(several.begin(), several.end()));
  }
  package_->call({.path = absl::StrCat(object_, ".log_images"),
                  .args = {std::move(values)},
                  .kwargs = step_kwargs(step)});
}

void PythonTracker::log_table(const std::string& name, const TrackerTable& table,
                              const TrackerStep& step) {
  PythonDict kwargs = to_python(step.kwargs);
  kwargs.emplace_back("columns", TrackerList(table.columns.begin(), table.columns.end()));
  kwargs.emplace_back("data", TrackerList(table.rows.begin(), table.rows.end()));
  kwargs.emplace_back("step", to_value(step.step));
  package_->call(
      {.path = absl::StrCat(object_, ".log_table"), .args = {name}, .kwargs = std::move(kwargs)});
}

void PythonTracker::finish() {
  package_->finish_with({.path = absl::StrCat(object_, ".finish"), .optional = true});
}

}  // namespace accelerate::trackers
