/// The interface of experiment trackers, which keep the values that a training run logs.
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
/// `init_trackers` makes a tracker, whose constructor may refuse its arguments. All later calls are
/// made asynchronously, in order and one at a time: they may block, and they may throw. Each
/// distinct error is logged once and never reaches the training loop; further calls are made
/// nevertheless, so that a tracker can recover when its service is back.
/// Threads: calls never overlap. In production they are made on a thread of their own, in a
///          simulation on the rank's thread.
/// Mirrors: accelerate tracking.py, GeneralTracker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/enums.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tracking/value.h"

namespace accelerate {

/// The services that a tracker may use. All of them outlive the tracker.
struct TrackerServices {
  FileSystem& files;
  const Environment& environment;
  int rank = 0;
  int world_size = 1;
  /// Whether there are a network, other programs, and files besides `files`; false in a simulation.
  bool is_real = true;
  /// The rank's clock.
  std::function<absl::Time()> now;
  /// Logs a warning on this rank; each text is logged once.
  std::function<void(std::string_view)> warn;
  /// Tells the user, for example, where the run is kept.
  std::function<void(std::string_view)> info;
};

struct TrackerSetup {
  /// The argument of `init_trackers`.
  std::string project_name;
  /// Empty if the Accelerator has none.
  std::string logging_dir;
  /// The init_kwargs of this tracker. A factory throws std::invalid_argument for a name or value
  /// that it does not know.
  TrackerDict init_kwargs;
  /// Random bits for this tracker on this rank, for the names of runs.
  uint64_t random_bits = 0;
  /// When `init_trackers` was called.
  absl::Time time;
  const TrackerServices& services;
};

/// The step, the time and the log_kwargs of a call.
struct TrackerStep {
  std::optional<int64_t> step;
  absl::Time time;
  /// The log_kwargs of this tracker.
  TrackerDict kwargs;
};

/// Rows of pixels from the top, with 1 to 4 bytes each: grey; grey and alpha; RGB; or RGBA.
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
  /// Each row has one value for each column.
  std::vector<TrackerList> rows;
};

/// Thrown by a tracker that does not keep a kind of value. It is logged once and is not a failure.
class NotKept : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class GeneralTracker {
 public:
  virtual ~GeneralTracker() = default;

  /// Opens files, or asks the service for a run. Called once, before all other calls.
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

  /// Writes or sends all buffered values. Called at intervals, before the process ends and on a
  /// signal.
  virtual void flush() {}

  /// Ends the run. Called once, as the last call; without it, a run keeps what was flushed.
  virtual void finish() {}

  /// Called in place of `finish` if an exception ended the training: keeps all values and does not
  /// mark the run as successful.
  virtual void abandon() { flush(); }
};

using TrackerFactory = std::function<std::unique_ptr<GeneralTracker>(const TrackerSetup& setup)>;

/// A kind of tracker.
struct TrackerClass {
  std::string name;
  /// Whether it needs a logging_dir. Must be set.
  std::optional<bool> requires_logging_directory;
  /// Whether only rank 0 has such a tracker; otherwise every rank has one.
  bool main_process_only = true;
  /// Makes a tracker; `start` is called later.
  TrackerFactory tracker;
  /// The reason why the tracker cannot be used here; empty if it can. If absent, it can be used.
  /// `log_with` leaves out trackers with a reason.
  std::function<std::string(const TrackerServices& services)> unavailable;
};

template <typename Tracker>
std::unique_ptr<GeneralTracker> make_tracker(const TrackerSetup& setup) {
  return std::make_unique<Tracker>(setup);
}

/// Registers a tracker in every program that links it:
///
///   const TrackerRegistration kRegistration({.name = "jsonl", ...});
///
/// Make such objects before main: a Runtime copies the list when it first needs it.
class TrackerRegistration {
 public:
  explicit TrackerRegistration(TrackerClass tracker_class);
};

// ---- The registered trackers, and the selection of those that an Accelerator gets.
//
// Errors:  std::invalid_argument; functions that take a Runtime (run/trackers.h) throw
//          c10::ValueError and c10::NotImplementedError with the same texts.
// Threads: an object belongs to one rank.
// Mirrors: accelerate tracking.py, filter_trackers, get_available_trackers, LOGGER_TYPE_TO_CLASS.

/// One entry of `log_with`: a tracker's name, "all", or an unregistered tracker of the user's own.
class TrackerChoice {
 public:
  // NOLINTBEGIN(google-explicit-constructor): written in braces
  TrackerChoice(const char* name) : choice_(std::string(name)) {}
  TrackerChoice(std::string name) : choice_(std::move(name)) {}
  TrackerChoice(LoggerType type) : choice_(std::string(to_string(type))) {}
  TrackerChoice(TrackerClass own) : choice_(std::move(own)) {}
  // NOLINTEND(google-explicit-constructor)

  const std::string& name() const {
    const TrackerClass* tracker_class = own();
    return tracker_class != nullptr ? tracker_class->name : std::get<std::string>(choice_);
  }
  /// Null for a name.
  const TrackerClass* own() const { return std::get_if<TrackerClass>(&choice_); }

 private:
  std::variant<std::string, TrackerClass> choice_;
};

class TrackerRegistry {
 public:
  /// The trackers that are linked into the program, in any order.
  static TrackerRegistry& linked();

  /// Adds a class, or replaces the one of the same name. Errors: std::invalid_argument listing the
  /// members that are missing.
  void add(TrackerClass tracker_class);

  /// Null for an unknown name.
  const TrackerClass* find(std::string_view name) const;
  const std::vector<TrackerClass>& classes() const { return classes_; }
  void sort_by_name();

 private:
  std::vector<TrackerClass> classes_;
};

/// The environment of a selection.
struct TrackerFilter {
  /// Empty if there is no folder for logs.
  std::string logging_dir;
  const TrackerServices& services;
};

/// The requested classes in their order, each once, and the user's own as often as they are given.
/// "all" stands for every class that can be used here, besides the user's own classes in the list.
/// A class that cannot be used, or a tracker of //trackers that is not linked, is left out with a
/// warning to `services.warn`; so is "all" where no class is selected.
/// Errors: std::invalid_argument for an unknown name, and if a tracker needs a logging_dir that is
///         not given.
std::vector<TrackerClass> filter_trackers(const std::vector<TrackerChoice>& log_with,
                                          const TrackerRegistry& registry,
                                          const TrackerFilter& filter);

/// Whether the name is that of a registered tracker, or of one that a program could link.
bool is_known_tracker(std::string_view name, const TrackerRegistry& registry);

/// The names of the trackers that can be used here.
std::vector<std::string> get_available_trackers(const TrackerRegistry& registry,
                                                const TrackerServices& services);

}  // namespace accelerate
