/// Tracks with ClearML's Python package clearml.
///
/// init_kwargs are those of clearml.Task.init; CLEARML_PROJECT and CLEARML_TASK, else the project's
/// name, name project and task. A task that already exists, for example under an agent, is used and
/// left open. "train_loss" is the series "train" of the plot "loss"; eval_ and test_ likewise.
/// Values without a step are single values. Values that are not numbers are dropped, with one
/// warning for each name and type. ClearML reads its credentials itself: CLEARML_API_* or
/// clearml.conf.
/// Errors, threads: see trackers/bridge/python_package.h.
/// Mirrors: accelerate tracking.py, ClearMLTracker.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

/// `package`: null for the vendor's, in a process of its own.
std::unique_ptr<GeneralTracker> make_clearml_tracker(
    const TrackerSetup& setup, std::unique_ptr<PythonPackage> package = nullptr);

}  // namespace accelerate::trackers
