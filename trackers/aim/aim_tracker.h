/// Tracks with Aim's Python package aim, in a repository in the logging_dir.
///
/// init_kwargs are those of aim.Run. Values of all types are tracked under their names. log_images
/// takes `kwargs`, a dictionary {"aim_image": kwargs of aim.Image, "track": kwargs of Run.track}.
/// Errors, threads: see trackers/bridge/python_package.h.
/// Mirrors: accelerate tracking.py, AimTracker.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

/// `package`: null for the vendor's, in a process of its own.
std::unique_ptr<GeneralTracker> make_aim_tracker(const TrackerSetup& setup,
                                                 std::unique_ptr<PythonPackage> package = nullptr);

}  // namespace accelerate::trackers
