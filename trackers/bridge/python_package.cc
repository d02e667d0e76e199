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

}  // namespace accelerate::trackers
