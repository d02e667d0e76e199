/// The base of the trackers that call a vendor's Python package.
///
///   class AimTracker final : public PackageTracker {
///    public:
///     using PackageTracker::PackageTracker;
///     ...
///   };
///   const TrackerRegistration kRegistration(package_tracker<AimTracker>({.name = "aim"}));
///
/// Errors:  see trackers/bridge/python_package.h.
/// Threads: as GeneralTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

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
