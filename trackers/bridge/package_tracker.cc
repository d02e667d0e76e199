#include "trackers/bridge/package_tracker.h"

namespace accelerate::trackers {

PackageTracker::PackageTracker(const std::string& name, const TrackerSetup& setup,
                               std::unique_ptr<PythonPackage> package)
    : project_(setup.project_name),
      logging_dir_(setup.logging_dir),
      init_kwargs_(setup.init_kwargs),
      services_(setup.services),
      package_(package != nullptr ? std::move(package)
                                  : make_bridge_process(name, setup.services, setup.init_kwargs)) {}

void PackageTracker::start_with(const std::string& path, PythonDict kwargs) {
  package_->start();
  package_->call({.path = path, .kwargs = with_init_kwargs(std::move(kwargs))});
}

PythonDict PackageTracker::with_init_kwargs(PythonDict kwargs) const {
  kwargs.insert(kwargs.end(), init_kwargs_.begin(), init_kwargs_.end());
  return kwargs;
}

}  // namespace accelerate::trackers
