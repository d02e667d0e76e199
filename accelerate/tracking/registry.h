/// Which trackers there are, and which of them an Accelerator is to have.
///
/// Errors:  std::invalid_argument; what takes a Runtime (trackers.h) throws c10::ValueError and
///          c10::NotImplementedError with the same texts.
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

/// One entry of `log_with`: a tracker's name, "all", or a tracker of the user's own that nobody
/// else knows of.
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
  /// What was linked into the program, in no order that means something.
  static TrackerRegistry& linked();

  /// Also replaces one of that name. Errors: std::invalid_argument listing the members that are
  /// missing.
  void add(TrackerClass tracker_class);

  /// Null for an unknown name.
  const TrackerClass* find(std::string_view name) const;
  const std::vector<TrackerClass>& classes() const { return classes_; }
  void sort_by_name();

 private:
  std::vector<TrackerClass> classes_;
};

/// What is asked of the tracker classes, and of the log.
struct TrackerFilter {
  /// Empty: there is no folder for logs.
  std::string logging_dir;
  const TrackerServices& services;
};

/// The classes of those that were asked for, each once, in that order; "all" stands for the user's
/// own ones among them and every one that can be used here. One that cannot be used is left out,
/// which `services.warn` is told. Errors: std::invalid_argument for a name that is none, and for a
/// tracker that needs a logging_dir and has none.
std::vector<TrackerClass> filter_trackers(const std::vector<TrackerChoice>& log_with,
                                          const TrackerRegistry& registry,
                                          const TrackerFilter& filter);

/// Whether a tracker of that name is there, or is one of the peer's.
bool is_known_tracker(std::string_view name, const TrackerRegistry& registry);

/// The names of those that can be used here.
std::vector<std::string> get_available_trackers(const TrackerRegistry& registry,
                                                const TrackerServices& services);

}  // namespace accelerate
