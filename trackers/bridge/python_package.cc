#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

PythonValue::PythonValue(PythonCall call)
    : value_(std::make_shared<const PythonCall>(std::move(call))) {}

PythonDict to_python(const TrackerDict& dict) {
  PythonDict result;
  result.reserve(dict.size());
  for (const auto& [name, value] : dict) result.emplace_back(name, value);
  return result;
}

TrackerValue to_value(const std::optional<int64_t>& step) {
  return step ? TrackerValue(*step) : TrackerValue();
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
