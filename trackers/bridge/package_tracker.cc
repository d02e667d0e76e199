#include "trackers/bridge/package_tracker.h"

#include <utility>

namespace accelerate::trackers {

PackageTracker::PackageTracker(const std::string& name, const TrackerSetup& setup,
                               std::unique_ptr<PythonPackage> package)
    : project_(setup.project_name),
      init_kwargs_(setup.init_kwargs),
      services_(setup.services),
      package_(package != nullptr
                   ? std::move(package)
                   : std::make_unique<BridgeProcess>(name, setup.services, setup.init_kwargs)) {}

void PackageTracker::start_with(const std::string& path, PythonDict kwargs) {
  package_->start();
  for (auto& entry : to_python(init_kwargs_)) kwargs.push_back(std::move(entry));
  package_->call({.path = path, .kwargs = std::move(kwargs)});
}

PythonDict step_kwargs(const TrackerStep& step) {
  PythonDict kwargs = to_python(step.kwargs);
  kwargs.emplace_back("step", to_value(step.step));
  return kwargs;
}

}  // namespace accelerate::trackers
