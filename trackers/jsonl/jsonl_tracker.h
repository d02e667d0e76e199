/// Writes one line of JSON for each call, for scripts, jq and pandas.read_json(lines=True).
///
///   Accelerator accelerator({.log_with = {"jsonl"}, .project_dir = "logs"});
///   accelerator.init_trackers("mnist", TrackerDict{{"lr", 0.1}});
///   accelerator.log({{"loss", 0.25}}, 3);
///
///   logs/mnist/metrics.jsonl
///       {"_run":"20260102-030405-9f2c","_step":3,"_timestamp":1.5,"loss":0.25}
///   logs/mnist/config.json   the configuration of the latest run, nested as it was given
///   logs/mnist/media/RUN/NAME/STEP-N.png   images; N counts the run's images
///
/// `_step` is null if none was given; `_timestamp` is in seconds since 1970. Values are converted
/// by trackers/common/formats.h: dictionaries nest, tensors are lists, NaN is "NaN". Values that
/// have one of these three names get another underscore in front. Images, tables and histograms are
/// objects with a `_type`:
///   {"_type":"images","paths":["media/RUN/NAME/3-0.png"]}     paths from the folder of the file
///   {"_type":"table","columns":[...],"rows":[[...],...]}
///   {"_type":"histogram","edges":[...],"counts":[...],"nan":0,"infinite":0}
/// A later run of the project appends to the same file; `_run` tells the runs apart. Runs at the
/// same time need different projects, or a `dir` each.
///
/// init_kwargs: `dir`, a folder instead of <logging_dir>/<project>, DIR/rank_N for ranks other
///          than 0; `name`, a text for `_run` instead of the time and a random number.
/// Fails:   while the disk is full, up to 64 MiB of lines wait; an empty object and spaces may be
///          in their place until they are written. After kill -9 the file has all lines up to the
///          last flush, and perhaps a part of a line, which the next run drops.
/// Threads: as any tracker's.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

std::unique_ptr<GeneralTracker> make_jsonl_tracker(const TrackerSetup& setup);

}  // namespace accelerate::trackers
