/// What the trackers share that call a vendor's Python package.
///
///   class AimTracker : public PackageTracker {
///    public:
///     explicit AimTracker(const TrackerSetup& setup,
///                         std::unique_ptr<PythonPackage> package = nullptr)
///         : PackageTracker("aim", setup, std::move(package)) {}
///     ...
///   };
///   const TrackerRegistration kRegistration(package_tracker<AimTracker>({.name = "aim"}));
///
/// Errors:  std::runtime_error naming the package: it is not installed, or what it raised. Training
///          goes on without it. See trackers/bridge/bridge_process.h.
/// Threads: as any tracker's.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/bridge_process.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

class PackageTracker : public GeneralTracker {
 public:
  void flush() override { package_->flush(); }

 protected:
  /// `package`: null for the package of that name, in a process of its own.
  PackageTracker(const std::string& name, const TrackerSetup& setup,
                 std::unique_ptr<PythonPackage> package);

  /// Starts the package and calls `path` with these arguments and the init_kwargs.
  void start_with(const std::string& path, PythonDict kwargs);

  const std::string project_;
  const TrackerDict init_kwargs_;
  const TrackerServices& services_;
  const std::unique_ptr<PythonPackage> package_;
};

/// The log_kwargs and "step".
PythonDict step_kwargs(const TrackerStep& step);

/// The class of a tracker for the package that has the tracker's name; it needs no logging_dir
/// unless `kind` says so.
template <typename Tracker>
TrackerClass package_tracker(TrackerClass kind) {
  if (!kind.requires_logging_directory) kind.requires_logging_directory = false;
  kind.tracker = make_tracker<Tracker>;
  kind.unavailable = [name = kind.name](const TrackerServices& services) {
    return why_unavailable(services, name);
  };
  return kind;
}

}  // namespace accelerate::trackers
