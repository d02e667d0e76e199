/// What a tracker is: something that keeps what a training run says of itself where people look.
///
///   class Printer : public GeneralTracker {
///    public:
///     explicit Printer(const TrackerSetup& setup) { ... }
///     void store_init_configuration(const TrackerDict& values) override { ... }
///     void log(const TrackerDict& values, const TrackerStep& step) override { ... }
///   };
///   register_tracker_class({.name = "printer",
///                           .requires_logging_directory = false,
///                           .tracker = make_tracker<Printer>});
///   Accelerator accelerator({.log_with = {"printer"}});
///
/// A tracker is made by `init_trackers`, where it may refuse its arguments. All calls after that
/// come behind the training loop, in order, one at a time: they may block, and they may throw. What
/// they throw is reported once and never reaches the loop; the next call comes all the same, so a
/// tracker whose service was away can go on.
/// Threads: calls never overlap; in production they come on a thread of their own, in a simulation
///          on the rank's.
/// Mirrors: accelerate tracking.py, GeneralTracker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tracking/value.h"

namespace accelerate {

/// What a tracker may use of the world. All of it outlives the tracker.
struct TrackerServices {
  FileSystem& files;
  const Environment& environment;
  int rank = 0;
  int world_size = 1;
  /// Whether there is a network, and other programs, and files besides `files`; not in a
  /// simulation.
  bool is_real = true;
  /// The rank's clock.
  std::function<absl::Time()> now;
  /// A warning on the log of this rank; the same text is said once.
  std::function<void(std::string_view)> warn;
  /// Tells the user where the run is kept, and the like.
  std::function<void(std::string_view)> info;
};

struct TrackerSetup {
  /// What `init_trackers` was called with.
  std::string project_name;
  /// Empty where the Accelerator has none.
  std::string logging_dir;
  /// What `init_trackers` got for this tracker. A factory throws std::invalid_argument for a name
  /// or value that it does not know.
  TrackerDict init_kwargs;
  /// Random, of this tracker of this rank: for the names of runs.
  uint64_t random_bits = 0;
  /// When `init_trackers` was called.
  absl::Time time;
  const TrackerServices& services;
};

/// When something was logged, and how.
struct TrackerStep {
  std::optional<int64_t> step;
  absl::Time time;
  /// What `log` got for this tracker.
  TrackerDict kwargs;
};

/// Rows of pixels from the top, `channels` bytes each: grey; grey and alpha; red, green and blue;
/// or these and alpha.
struct TrackerImage {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;

  bool operator==(const TrackerImage&) const = default;
};
using TrackerImages = std::vector<std::pair<std::string, std::vector<TrackerImage>>>;

struct TrackerTable {
  std::vector<std::string> columns;
  /// As many values each as there are columns.
  std::vector<TrackerList> rows;
};

/// What a tracker throws that has no place for something: said once, and no failure.
class NotKept : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class GeneralTracker {
 public:
  virtual ~GeneralTracker() = default;

  /// Opens files, or asks the service for a run. Before all else, once.
  virtual void start() {}

  /// The hyperparameters. Values nest.
  virtual void store_init_configuration(const TrackerDict& values) = 0;

  virtual void log(const TrackerDict& values, const TrackerStep& step) = 0;

  /// Errors of these three: NotKept, if the tracker does not keep such values.
  virtual void log_images(const TrackerImages& /*images*/, const TrackerStep& /*step*/) {
    throw NotKept("it does not keep images");
  }
  virtual void log_table(const std::string& /*name*/, const TrackerTable& /*table*/,
                         const TrackerStep& /*step*/) {
    throw NotKept("it does not keep tables");
  }
  /// Keeps how the values of tensors are distributed.
  virtual void log_histograms(const TrackerDict& /*tensors*/, const TrackerStep& /*step*/) {
    throw NotKept("it does not keep histograms");
  }

  /// Hands on what is held back: called when nothing was logged for a moment, before the process
  /// ends, and on a signal.
  virtual void flush() {}

  /// Ends the run. Last, once; a tracker that never got here leaves what was flushed.
  virtual void finish() {}

  /// In the place of `finish` where training ended by an exception: what is there is kept, and
  /// nothing is said of success.
  virtual void abandon() { flush(); }
};

using TrackerFactory = std::function<std::unique_ptr<GeneralTracker>(const TrackerSetup& setup)>;

/// A kind of tracker, as it is known by its name.
struct TrackerClass {
  std::string name;
  /// Whether it cannot do without a logging_dir.
  std::optional<bool> requires_logging_directory;
  /// Rank 0 alone has one; else every rank.
  bool main_process_only = true;
  /// Makes one. `start` comes after.
  TrackerFactory tracker;
  /// Empty if it can be used here, else why not: for "all", which takes what there is. Absent: it
  /// can.
  std::function<std::string(const TrackerServices& services)> unavailable;
};

template <typename Tracker>
std::unique_ptr<GeneralTracker> make_tracker(const TrackerSetup& setup) {
  return std::make_unique<Tracker>(setup);
}

/// Makes a tracker known to every program that links it:
///
///   const TrackerRegistration kRegistration({.name = "jsonl", ...});
///
/// Before main. A Runtime knows those that were there when it was first asked.
class TrackerRegistration {
 public:
  explicit TrackerRegistration(TrackerClass tracker_class);
};

}  // namespace accelerate
