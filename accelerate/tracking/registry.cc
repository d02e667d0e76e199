#include "accelerate/tracking/registry.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

std::string reason_against(const TrackerClass& tracker_class, const TrackerServices& services) {
  // The check may take long, and this rank will not have the tracker.
  if (tracker_class.main_process_only && services.rank != 0) return "";
  return tracker_class.unavailable ? tracker_class.unavailable(services) : std::string();
}

// HF Accelerate's names in its order, then all others.
std::string known_names(const TrackerRegistry& registry) {
  std::vector<std::string> names(std::begin(EnumTable<LoggerType>::kTexts),
                                 std::end(EnumTable<LoggerType>::kTexts));
  for (const TrackerClass& tracker_class : registry.classes()) {
    if (std::find(names.begin(), names.end(), tracker_class.name) == names.end()) {
      names.push_back(tracker_class.name);
    }
  }
  return absl::StrCat("['", absl::StrJoin(names, "', '"), "']");
}

bool is_peers(std::string_view name) { return contains<LoggerType>(name); }

class Selection {
 public:
  void add(const TrackerClass& tracker_class) {
    const bool is_new = std::none_of(classes_.begin(), classes_.end(), [&](const auto& chosen) {
      return chosen.name == tracker_class.name;
    });
    if (is_new) classes_.push_back(tracker_class);
  }
  std::vector<TrackerClass> take() && { return std::move(classes_); }

 private:
  std::vector<TrackerClass> classes_;
};

void add_named(const std::string& name, const TrackerRegistry& registry,
               const TrackerFilter& filter, Selection& selection) {
  const TrackerClass* tracker_class = registry.find(name);
  if (tracker_class == nullptr) {
    if (!is_peers(name)) {
      throw std::invalid_argument(absl::StrCat("Unsupported logging capability: ", name,
                                               ". Choose between ", known_names(registry)));
    }
    filter.services.warn(absl::StrCat(
        "log_with: ", name, " is left out: no tracker of that name is linked into this program"));
    return;
  }
  if (const std::string reason = reason_against(*tracker_class, filter.services); !reason.empty()) {
    filter.services.warn(absl::StrCat("log_with: ", name, " is left out: ", reason));
    return;
  }
  if (*tracker_class->requires_logging_directory && filter.logging_dir.empty()) {
    throw std::invalid_argument(
        absl::StrCat("Logging with `", name, "` requires a `logging_dir` to be passed in."));
  }
  selection.add(*tracker_class);
}

}  // namespace

TrackerRegistration::TrackerRegistration(TrackerClass tracker_class) {
  TrackerRegistry::linked().add(std::move(tracker_class));
}

TrackerRegistry& TrackerRegistry::linked() {
  static TrackerRegistry registry;
  return registry;
}

void TrackerRegistry::add(TrackerClass tracker_class) {
  std::vector<std::string> missing;
  if (tracker_class.name.empty()) missing.emplace_back("`name`");
  if (!tracker_class.requires_logging_directory) {
    missing.emplace_back("`requires_logging_directory`");
  }
  if (!tracker_class.tracker) missing.emplace_back("`tracker`");
  if (!missing.empty()) {
    throw std::invalid_argument(
        absl::StrCat("The implementation for this tracker class is missing the following required "
                     "attributes. Please define them in the class definition: ",
                     absl::StrJoin(missing, ", ")));
  }
  const auto old = std::find_if(classes_.begin(), classes_.end(), [&](const auto& known) {
    return known.name == tracker_class.name;
  });
  if (old != classes_.end()) {
    *old = std::move(tracker_class);
  } else {
    classes_.push_back(std::move(tracker_class));
  }
}

const TrackerClass* TrackerRegistry::find(std::string_view name) const {
  const auto found = std::find_if(classes_.begin(), classes_.end(),
                                  [&](const auto& known) { return known.name == name; });
  return found == classes_.end() ? nullptr : &*found;
}

void TrackerRegistry::sort_by_name() {
  std::sort(classes_.begin(), classes_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

std::vector<TrackerClass> filter_trackers(const std::vector<TrackerChoice>& log_with,
                                          const TrackerRegistry& registry,
                                          const TrackerFilter& filter) {
  Selection selection;
  const bool all = std::any_of(log_with.begin(), log_with.end(), [](const TrackerChoice& choice) {
    return choice.own() == nullptr && choice.name() == to_string(LoggerType::kAll);
  });
  for (const TrackerChoice& choice : log_with) {
    if (choice.own() != nullptr) {
      selection.add(*choice.own());
    } else if (!all) {
      add_named(choice.name(), registry, filter, selection);
    }
  }
  if (all) {
    for (const TrackerClass& tracker_class : registry.classes()) {
      if (!reason_against(tracker_class, filter.services).empty()) continue;
      if (*tracker_class.requires_logging_directory && filter.logging_dir.empty()) {
        filter.services.warn(absl::StrCat("log_with: ", tracker_class.name,
                                          " is left out of all: it needs a logging_dir"));
        continue;
      }
      selection.add(tracker_class);
    }
  }
  return std::move(selection).take();
}

bool is_known_tracker(std::string_view name, const TrackerRegistry& registry) {
  return registry.find(name) != nullptr || is_peers(name);
}

std::vector<std::string> get_available_trackers(const TrackerRegistry& registry,
                                                const TrackerServices& services) {
  std::vector<std::string> names;
  for (const TrackerClass& tracker_class : registry.classes()) {
    if (reason_against(tracker_class, services).empty()) names.push_back(tracker_class.name);
  }
  return names;
}

}  // namespace accelerate
