/// Keeps runs in Trackio's local files, which `trackio show` reads.
///
///   accelerator.init_trackers("my_project", config, {{"trackio", {{"name", "first"}}}});
///   // trackio show --project my_project
///
///   DIR/PROJECT.db                           metrics and configurations of all runs of a project
///   DIR/media/PROJECT/RUN/STEP/HASH.png      images
///
/// DIR is TRACKIO_DIR, else HF_HOME/trackio, else XDG_CACHE_HOME/huggingface/trackio, else
/// ~/.cache/huggingface/trackio. Every rank has a run; with the init_kwarg
/// {"main_process_only", true}, rank 0 alone. Tensors of up to 32 elements are lists, larger ones
/// histograms. Values are buffered until `flush`, which is one transaction; rows of a failed
/// transaction are written by the next one, up to 64 MiB. Several processes may write to one
/// project at the same time. Not available in a simulation, since SQLite opens the file itself.
///
/// init_kwargs: `name`, `group`, `config` and `resume` ("never", "allow" or "must"). Other
///          arguments of `trackio.init` have no effect, and a warning says so.
/// Differs: the configuration is written at the start and again whenever it changes; a resumed
///          run's configuration is extended. The machine's own metrics are not logged.
/// Errors:  std::invalid_argument for kwargs, see init_kwargs.h, and for project names that Trackio
///          reserves; std::runtime_error naming the file, with SQLite's message and code.
/// Threads: as any tracker's.
/// Mirrors: accelerate tracking.py, TrackioTracker.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

std::unique_ptr<GeneralTracker> make_trackio_tracker(const TrackerSetup& setup);

}  // namespace accelerate::trackers
