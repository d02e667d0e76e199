/// The registered trackers, and the selection of those that an Accelerator gets.
///
/// Errors:  std::invalid_argument; functions that take a Runtime (run/trackers.h) throw
///          c10::ValueError and c10::NotImplementedError with the same texts.
/// Threads: an object belongs to one rank.
/// Mirrors: accelerate tracking.py, filter_trackers, get_available_trackers, LOGGER_TYPE_TO_CLASS.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "accelerate/base/enums.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate {

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

/// The requested classes in their order, each once. "all" stands for every class that can be used
/// here, besides the user's own classes in the list. A class that cannot be used is left out with a
/// warning to `services.warn`. Errors: std::invalid_argument for an unknown name, and if a tracker
/// needs a logging_dir that is not given.
std::vector<TrackerClass> filter_trackers(const std::vector<TrackerChoice>& log_with,
                                          const TrackerRegistry& registry,
                                          const TrackerFilter& filter);

/// Whether the name is that of a registered tracker, or of a tracker of HF Accelerate.
bool is_known_tracker(std::string_view name, const TrackerRegistry& registry);

/// The names of the trackers that can be used here.
std::vector<std::string> get_available_trackers(const TrackerRegistry& registry,
                                                const TrackerServices& services);

}  // namespace accelerate
