/// Tracks with Comet's Python package comet_ml (3.41 or later).
///
/// init_kwargs are those of comet_ml.start. Numbers are metrics, texts are "others", dictionaries
/// are metrics by name; other values are dropped. Comet reads its API key itself: COMET_API_KEY or
/// .comet.config.
/// Errors, threads: see trackers/bridge/python_package.h.
/// Mirrors: accelerate tracking.py, CometMLTracker.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

/// `package`: null for the vendor's, in a process of its own.
std::unique_ptr<GeneralTracker> make_comet_ml_tracker(
    const TrackerSetup& setup, std::unique_ptr<PythonPackage> package = nullptr);

}  // namespace accelerate::trackers
