#include "accelerate/tracking/tracker.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"

namespace accelerate {
namespace {

std::string reason_against(const TrackerClass& tracker_class, const TrackerServices& services) {
  // The check may take long, and this rank will not have the tracker.
  if (tracker_class.main_process_only && services.rank != 0) return "";
  return tracker_class.unavailable ? tracker_class.unavailable(services) : std::string();
}

// The trackers of //trackers that HF Accelerate does not have.
constexpr std::string_view kFurtherNames[] = {"csv", "jsonl", "prometheus", "python"};

// HF Accelerate's names in its order, then all others.
std::vector<std::string> known_names(const TrackerRegistry& registry) {
  std::vector<std::string> names = texts<LoggerType>();
  names.insert(names.end(), std::begin(kFurtherNames), std::end(kFurtherNames));
  for (const TrackerClass& tracker_class : registry.classes()) {
    if (!absl::c_linear_search(names, tracker_class.name)) names.push_back(tracker_class.name);
  }
  return names;
}

bool can_be_linked(std::string_view name) {
  return contains<LoggerType>(name) || absl::c_linear_search(kFurtherNames, name);
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
  const auto old = std::ranges::find(classes_, tracker_class.name, &TrackerClass::name);
  if (old != classes_.end()) {
    *old = std::move(tracker_class);
  } else {
    classes_.push_back(std::move(tracker_class));
  }
}

const TrackerClass* TrackerRegistry::find(std::string_view name) const {
  const auto found = std::ranges::find(classes_, name, &TrackerClass::name);
  return found == classes_.end() ? nullptr : &*found;
}

void TrackerRegistry::sort_by_name() { std::ranges::sort(classes_, {}, &TrackerClass::name); }

std::vector<TrackerClass> filter_trackers(const std::vector<TrackerChoice>& log_with,
                                          const TrackerRegistry& registry,
                                          const TrackerFilter& filter) {
  std::vector<TrackerClass> selection;
  const auto add = [&](const TrackerClass& tracker_class) {
    if (std::ranges::find(selection, tracker_class.name, &TrackerClass::name) == selection.end()) {
      selection.push_back(tracker_class);
    }
  };
  const auto warn = [&](const std::string& name, const std::string& why) {
    filter.services.warn(absl::StrCat("log_with: ", name, " is left out", why));
  };
  const auto lacks_folder = [&](const TrackerClass& tracker_class) {
    return *tracker_class.requires_logging_directory && filter.logging_dir.empty();
  };
  const bool all = std::ranges::any_of(log_with, [](const TrackerChoice& choice) {
    return choice.own() == nullptr && choice.name() == to_string(LoggerType::kAll);
  });
  for (const TrackerChoice& choice : log_with) {
    if (choice.own() != nullptr) {
      selection.push_back(*choice.own());  // as often as it is given
      continue;
    }
    if (all) continue;
    const std::string& name = choice.name();
    const TrackerClass* tracker_class = registry.find(name);
    if (tracker_class == nullptr) {
      if (!can_be_linked(name)) {
        const std::vector<std::string> names = known_names(registry);
        throw std::invalid_argument(
            absl::StrCat("Unsupported logging capability: ", name, ". Choose between ['",
                         absl::StrJoin(names, "', '"), "']", did_you_mean(name, names)));
      }
      warn(name, ": no tracker of that name is linked into this program");
    } else if (const std::string reason = reason_against(*tracker_class, filter.services);
               !reason.empty()) {
      warn(name, absl::StrCat(": ", reason));
    } else if (lacks_folder(*tracker_class)) {
      throw std::invalid_argument(
          absl::StrCat("Logging with `", name, "` requires a `logging_dir` to be passed in."));
    } else {
      add(*tracker_class);
    }
  }
  if (!all) return selection;
  for (const TrackerClass& tracker_class : registry.classes()) {
    if (!reason_against(tracker_class, filter.services).empty()) continue;
    if (lacks_folder(tracker_class)) {
      warn(tracker_class.name, " of all: it needs a logging_dir");
    } else {
      add(tracker_class);
    }
  }
  if (selection.empty()) {
    filter.services.warn("log_with: all is none here: no linked tracker can be used");
  }
  return selection;
}

bool is_known_tracker(std::string_view name, const TrackerRegistry& registry) {
  return registry.find(name) != nullptr || can_be_linked(name);
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
