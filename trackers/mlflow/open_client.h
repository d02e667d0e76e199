/// The client that a tracking URI stands for.
///
/// Errors:  std::invalid_argument naming the URI, without credentials, and what it may be.
/// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/mlflow/mlflow_client.h"

namespace accelerate::trackers {

/// `http(s)://host`, `file:///folder`, a folder; empty: `mlruns` in setup.logging_dir. Asks nobody
/// yet. `setup.services` outlives it.
std::unique_ptr<MlflowClient> open_mlflow_client(const TrackerSetup& setup,
                                                 const std::string& tracking_uri);

/// Why the environment's tracking URI is of no use here; empty: it is.
std::string mlflow_unavailable(const TrackerServices& services);

}  // namespace accelerate::trackers
