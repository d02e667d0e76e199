#include "trackers/bridge/python_package.h"

#include <iterator>

namespace accelerate::trackers {

PythonValue::PythonValue(PythonCall call)
    : value_(std::make_shared<const PythonCall>(std::move(call))) {}

PythonDict to_python(const TrackerDict& dict, PythonDict more) {
  PythonDict result(dict.begin(), dict.end());
  result.insert(result.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  return result;
}

PythonDict step_kwargs(const TrackerStep& step) {
  return to_python(step.kwargs, {{"step", TrackerValue(step.step)}});
}

PythonList image_calls(const std::string& path, const std::vector<TrackerImage>& images,
                       const PythonDict& kwargs) {
  PythonList calls;
  for (const TrackerImage& image : images) {
    calls.push_back(PythonCall{.path = path, .args = {image}, .kwargs = kwargs});
  }
  return calls;
}

void PythonPackage::finish_with(const PythonCall& last) {
  try {
    call(last);
  } catch (...) {
    try {
      finish();
    } catch (...) {
      // The first failure says more about the cause.
    }
    throw;
  }
  finish();
}

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
