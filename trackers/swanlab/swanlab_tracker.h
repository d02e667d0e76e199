/// Tracks with SwanLab's Python package swanlab.
///
/// init_kwargs are those of swanlab.init. Values are passed on unchanged. Every rank has a run;
/// with the init_kwarg {"main_process_only", true}, rank 0 alone. SwanLab reads its API key itself:
/// SWANLAB_API_KEY or `swanlab login`. Errors, threads: see trackers/bridge/python_package.h.
/// Mirrors: accelerate tracking.py, SwanLabTracker.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

/// `package`: null for the vendor's, in a process of its own.
std::unique_ptr<GeneralTracker> make_swanlab_tracker(
    const TrackerSetup& setup, std::unique_ptr<PythonPackage> package = nullptr);

}  // namespace accelerate::trackers
