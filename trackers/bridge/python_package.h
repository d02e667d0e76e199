/// Calls of a vendor's Python package, and the base of the trackers that make them.
///
///   package.call({.path = "comet_ml.start", .kwargs = {{"project_name", project}}});
///   package.call({.path = "comet_ml.start().log_metric", .args = {"loss", 0.25}});
///
/// A path begins at a module. "f()" in a path is the result of the latest call of f.
///
/// Errors:  std::runtime_error naming the package: it is not installed, or what it raised. Training
///          goes on without it. See make_bridge_process.
/// Threads: PythonPackage on one thread; a PackageTracker as GeneralTracker.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

struct PythonCall;
class PythonValue;
using PythonList = std::vector<PythonValue>;
using PythonDict = std::vector<std::pair<std::string, PythonValue>>;

/// An argument: a value, an image, the result of a call, or a list or dictionary of these.
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
  /// Makes the call only if this path, such as "f()", is None.
  std::string if_none;
  /// Skips the call if the path does not exist.
  bool optional = false;
};

/// The entries as keyword arguments, with `more` behind them.
PythonDict to_python(const TrackerDict& dict, PythonDict more = {});
/// The log_kwargs and "step", which is None if it is absent.
PythonDict step_kwargs(const TrackerStep& step);
/// A call of `path` for each image, with the image as its argument.
PythonList image_calls(const std::string& path, const std::vector<TrackerImage>& images,
                       const PythonDict& kwargs = {});

/// Errors: std::runtime_error naming the call that failed and the package's exception. Calls
///         may be asynchronous; then a later call, or `flush`, throws the failure.
class PythonPackage {
 public:
  virtual ~PythonPackage() = default;

  virtual void start() {}
  virtual void call(const PythonCall& call) = 0;
  virtual void set(const std::string& path, const TrackerValue& value) = 0;
  virtual void set_item(const std::string& path, const std::string& key,
                        const TrackerValue& value) = 0;
  /// Imports a Python file as the module with the file's name.
  virtual void load(const std::string& file) = 0;
  virtual void flush() {}
  /// Lets the package end normally.
  virtual void finish() {}
  /// Makes the call, then `finish`, even if the call failed.
  void finish_with(const PythonCall& last);
};

struct BridgeLimits {
  /// For one call or `flush`. If the package makes no progress in that time, later calls do not
  /// wait until it does.
  absl::Duration call = absl::Seconds(10);
  /// For `finish`; then the process is killed.
  absl::Duration finish = absl::Seconds(30);
  /// Bytes that may wait for the process; further calls are dropped with an error.
  size_t unsent = size_t{16} << 20;
};

/// What calls the Python package `name`, by which messages call it, in a process of its own, which
/// runs bridge.py. `kwargs`: may contain secrets. The services outlive it.
///
/// Calls are asynchronous: the next call or `flush` throws the first failure, and a call never its
/// own; a call that throws an earlier one's failure is made all the same. The package's output goes
/// to `services.info`, line by line. Keys and passwords of the environment and of `kwargs` are
/// masked in all messages. A process that ended is not started again. Without `finish`, it runs the
/// packages' exit handlers and ends with exit status 1.
/// Errors:  std::runtime_error naming package, call and exception; if the process ended, with its
///          exit status and its last output.
std::unique_ptr<PythonPackage> make_bridge_process(std::string name,
                                                   const TrackerServices& services,
                                                   const TrackerDict& kwargs,
                                                   const BridgeLimits& limits = {});

/// Empty if Python has the module, else what is missing and how to install it. Each answer of the
/// interpreter is kept for the process.
std::string why_unavailable(const TrackerServices& services, const std::string& module);

/// The base of the trackers that call a vendor's Python package.
///
///   class AimTracker final : public PackageTracker {
///    public:
///     using PackageTracker::PackageTracker;
///     ...
///   };
///   const TrackerRegistration kRegistration(package_tracker<AimTracker>({.name = "aim"}));
class PackageTracker : public GeneralTracker {
 public:
  /// `package`: null for the package of that name, in a process of its own.
  PackageTracker(const std::string& name, const TrackerSetup& setup,
                 std::unique_ptr<PythonPackage> package = nullptr);

  void flush() override { package_->flush(); }

 protected:
  /// Starts the package and calls `path` with these arguments and the init_kwargs.
  void start_with(const std::string& path, PythonDict kwargs);
  /// These arguments, with the init_kwargs behind them.
  PythonDict with_init_kwargs(PythonDict kwargs) const;

  const std::string project_;
  const std::string logging_dir_;
  const TrackerDict init_kwargs_;
  const TrackerServices& services_;
  const std::unique_ptr<PythonPackage> package_;
};

/// The class of a tracker for the package that has the tracker's name; it needs no logging_dir
/// unless `kind` says so.
template <typename Tracker>
TrackerClass package_tracker(TrackerClass kind) {
  if (!kind.requires_logging_directory) kind.requires_logging_directory = false;
  kind.tracker = [name = kind.name](const TrackerSetup& setup) {
    return std::make_unique<Tracker>(name, setup);
  };
  kind.unavailable = [name = kind.name](const TrackerServices& services) {
    return why_unavailable(services, name);
  };
  return kind;
}

}  // namespace accelerate::trackers
