/// One line of JSON for each call: what scripts, jq and pandas.read_json(lines=True) read.
///
///   Accelerator accelerator({.log_with = {"jsonl"}, .project_dir = "logs"});
///   accelerator.init_trackers("mnist", TrackerDict{{"lr", 0.1}});
///   accelerator.log({{"loss", 0.25}}, 3);
///
///   logs/mnist/metrics.jsonl
///       {"_run":"20260102-030405-9f2c","_step":3,"_timestamp":1.5,"loss":0.25}
///   logs/mnist/config.json   the configuration of the latest run, nested as it was given
///   logs/mnist/media/RUN/NAME/STEP-N.png   images; N counts those of the run
///
/// `_step` is null where none was given; `_timestamp` is in seconds since 1970. Values are as in
/// trackers/common/json_value.h: dictionaries nest, tensors are lists, NaN is "NaN". Names of
/// values that are one of the three have another underscore in front. Other values are objects with
/// a `_type`:
///   {"_type":"images","paths":["media/RUN/NAME/3-0.png"]}     paths from the folder of the file
///   {"_type":"table","columns":[...],"rows":[[...],...]}
///   {"_type":"histogram","edges":[...],"counts":[...],"nan":0,"infinite":0}
/// A later run of the project goes on with the same file; `_run` tells them apart. Runs at the same
/// time need a `dir`, or a project, of their own.
///
/// init_kwargs: `dir`, a folder instead of <logging_dir>/<project>, DIR/rank_N for ranks other
///          than 0; `name`, a text instead of the
///          time and a random number for `_run`.
/// Fails:   a line that the disk has no room for waits, 64 MiB of them at most, and is written when
///          there is room; until then an empty object and spaces may be in its place. What kill -9
///          leaves are whole lines up to the last flush and perhaps a part of one, which the next
///          run drops.
/// Threads: as any tracker's.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "accelerate/tracking/tracker.h"
#include "trackers/common/append_file.h"
#include "trackers/common/file_options.h"

namespace accelerate::trackers {

class JsonlTracker final : public GeneralTracker {
 public:
  explicit JsonlTracker(const TrackerSetup& setup);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void flush() override;
  void finish() override;

 private:
  JsonlTracker(const TrackerSetup& setup, FileOptions options);
  nlohmann::ordered_json line(const TrackerStep& step) const;
  void write(const nlohmann::ordered_json& line);

  FileSystem& files_;
  const std::string folder_;
  const std::string run_;
  int64_t images_ = 0;  // so far
  AppendFile lines_;
};

}  // namespace accelerate::trackers
