/// What a tracker asks of a vendor's Python package, in the package's own words.
///
///   package.call({.path = "comet_ml.start", .kwargs = {{"project_name", project}}});
///   package.call({.path = "comet_ml.start().log_metric", .args = {"loss", 0.25}});
///
/// A path begins at a module. "f()" in it stands for what the latest call of f returned.
/// Threads: one.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

struct PythonCall;
class PythonValue;
using PythonList = std::vector<PythonValue>;
using PythonDict = std::vector<std::pair<std::string, PythonValue>>;

/// An argument: a value, an image, what a call returns, or a list or dictionary of such.
class PythonValue {
 public:
  using Variant = std::variant<TrackerValue, TrackerImage, std::shared_ptr<const PythonCall>,
                               PythonList, PythonDict>;

  // NOLINTBEGIN(google-explicit-constructor): written in braces
  template <typename T>
    requires std::constructible_from<TrackerValue, T>
  PythonValue(T value) : value_(TrackerValue(std::move(value))) {}
  PythonValue(TrackerImage image) : value_(std::move(image)) {}
  PythonValue(PythonCall call);
  PythonValue(PythonList list) : value_(std::move(list)) {}
  PythonValue(PythonDict dict) : value_(std::move(dict)) {}
  // NOLINTEND(google-explicit-constructor)

  const Variant& variant() const { return value_; }

 private:
  Variant value_;
};

struct PythonCall {
  std::string path;
  PythonList args;
  PythonDict kwargs;
  /// Makes the call only if this path, such as "f()", stands for None.
  std::string if_none;
  /// Makes no call if the path leads nowhere.
  bool optional = false;
};

/// As keyword arguments.
PythonDict to_python(const TrackerDict& dict);
/// "None" for nothing.
TrackerValue to_value(const std::optional<int64_t>& step);

/// Errors: std::runtime_error naming the call that failed and the package's exception. A call may
///         return before it is made; then its failure is that of a later one, or of `flush`.
class PythonPackage {
 public:
  virtual ~PythonPackage() = default;

  virtual void start() {}
  virtual void call(const PythonCall& call) = 0;
  virtual void set(const std::string& path, const TrackerValue& value) = 0;
  virtual void set_item(const std::string& path, const std::string& key,
                        const TrackerValue& value) = 0;
  /// Makes the module of a Python file known under the file's name.
  virtual void load(const std::string& file) = 0;
  virtual void flush() {}
  /// Lets the package end by itself.
  virtual void finish() {}
  /// `finish`, after that call and whatever became of it.
  void finish_with(const PythonCall& last);
};

}  // namespace accelerate::trackers
