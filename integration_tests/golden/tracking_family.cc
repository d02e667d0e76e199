// Trackers: what they ask of their vendors, who is chosen, what is refused.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/accelerator.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/tracking/run/trackers.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/values/texts.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/trackers.h"
#include "integration_tests/golden/tracking_replay.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kProject[] = "/sim/project";

class Nothing : public GeneralTracker {
 public:
  explicit Nothing(const TrackerSetup& /*setup*/) {}
  void store_init_configuration(const TrackerDict& /*values*/) override {}
  void log(const TrackerDict& /*values*/, const TrackerStep& /*step*/) override {}
};

TrackerClass nothing(const std::string& name, bool requires_logging_directory) {
  return {.name = name,
          .requires_logging_directory = requires_logging_directory,
          .tracker = make_tracker<Nothing>};
}

// What trackers and their choice promise to throw, which the Accelerator makes a c10::ValueError.
template <typename Function>
json with_errors_of_trackers(Function&& function) {
  try {
    return function();
  } catch (const std::invalid_argument& error) {
    return {{"error", {{"ours", true}, {"type", "invalid_argument"}, {"message", error.what()}}}};
  }
}

json run_tracker(const json& in) {
  static const std::map<std::string, json (*)(const json&)> kReplays = {
      {"aim", replay_aim},
      {"clearml", replay_clearml},
      {"comet_ml", replay_comet_ml},
      {"dvclive", replay_dvclive},
      {"mlflow", replay_mlflow},
      {"swanlab", replay_swanlab},
      {"tensorboard", replay_tensorboard},
      {"trackio", replay_trackio},
      {"wandb", replay_wandb}};
  const auto found = kReplays.find(string_field(in, "tracker"));
  if (found == kReplays.end()) throw CaseError("no such tracker is replayed");
  return with_errors_of_trackers([&] { return found->second(in); });
}

// An object of the user's own is written "obj:name"; one called needsdir needs a folder.
TrackerChoice choice_of(const json& entry) {
  const std::string text = entry.get<std::string>();
  if (text.starts_with("enum:")) return from_string<LoggerType>(text.substr(5));
  if (!text.starts_with("obj:")) return text;
  return nothing("object:" + text.substr(4), text == "obj:needsdir");
}

json run_filter(const json& in) {
  expect_fields(in, {"kind", "log_with", "logging_dir", "available"});
  TrackerRegistry registry;
  for (const json& name : in.at("available")) {
    const TrackerClass* const linked = TrackerRegistry::linked().find(name.get<std::string>());
    if (linked == nullptr) throw CaseError(name.get<std::string>() + " is not linked");
    registry.add(nothing(linked->name, *linked->requires_logging_directory));
  }
  std::vector<TrackerChoice> log_with;
  const json& asked = in.at("log_with");
  if (asked.is_array()) {
    for (const json& entry : asked) log_with.push_back(choice_of(entry));
  } else if (!asked.is_null()) {
    log_with.push_back(choice_of(asked));
  }
  simulator::SimDisk disk;
  const Environment environment;
  const TrackerServices services{
      .files = disk, .environment = environment, .warn = [](std::string_view) {}};
  const json& folder = in.at("logging_dir");
  return with_errors_of_trackers([&] {
    json names = json::array();
    for (const TrackerClass& chosen :
         filter_trackers(log_with, registry,
                         {.logging_dir = folder.is_null() ? "" : folder.get<std::string>(),
                          .services = services})) {
      names.push_back(chosen.name);
    }
    return json{{"trackers", std::move(names)}};
  });
}

json run_register(const json& in) {
  expect_fields(in, {"kind", "case"});
  const std::string which = string_field(in, "case");
  if (which == "ok" || which == "ok_dir") {
    const bool needs_folder = which == "ok_dir";
    register_tracker_class(nothing("x", needs_folder));
    AcceleratorOptions options{.log_with = {"x"}};
    if (needs_folder) options.project_dir = kProject;
    const std::vector<std::string> known = get_available_trackers();
    Accelerator accelerator(options);
    accelerator.init_trackers("run");
    // It is there only if the class was found and makes trackers.
    const TrackerHandle handle = accelerator.get_tracker("x");
    json answer = {{"filter", json::array()}};
    if (handle.unwrap<Nothing>() != nullptr) answer["filter"].push_back(handle.name());
    if (!needs_folder) answer["registered"] = std::ranges::count(known, std::string("x")) == 1;
    return answer;
  }
  if (which != "shadow") throw CaseError("case: unknown " + which);
  PartialState::get();
  const auto warnings = std::make_shared<LogRecorder>();
  add_log_sink(warnings);
  register_tracker_class(nothing("wandb", false));
  json texts = json::array();
  for (const std::string& text : warnings->texts) {
    const size_t end = text.find("by ");
    texts.push_back(text.substr(0, end == text.npos ? end : end + 3));
  }
  return {{"warnings", texts}};
}

json run_custom(const json& in) {
  expect_fields(in, {"kind", "class_attributes", "note"});
  if (in.contains("note")) {
    if (string_field(in, "note") != "GeneralTracker(_blank=True)") {
      throw CaseError("note: unknown note " + in["note"].dump());
    }
    // One that does nothing is what an Accelerator without trackers gives.
    return {{"ok", !Accelerator().get_tracker("x")}};
  }
  const json& attributes = in.at("class_attributes");
  TrackerClass tracker_class;
  if (attributes.contains("name")) tracker_class.name = attributes["name"].get<std::string>();
  if (attributes.contains("requires_logging_directory")) {
    tracker_class.requires_logging_directory = attributes["requires_logging_directory"].get<bool>();
  }
  if (attributes.contains("tracker")) tracker_class.tracker = make_tracker<Nothing>;
  register_tracker_class(tracker_class);
  return {{"ok", true}};
}

class Spy : public GeneralTracker {
 public:
  Spy(const TrackerSetup& setup, bool has_folder, json& calls) : calls_(calls) {
    json kwargs = tracking_answer(setup.init_kwargs);
    if (has_folder) kwargs["logging_dir"] = setup.logging_dir == kProject ? "<PROJ>" : "";
    calls_.push_back(
        {{"call", "init"}, {"args", {setup.project_name}}, {"kwargs", std::move(kwargs)}});
  }
  const char* tracker() const { return "inner"; }
  void start() override { calls_.push_back({{"call", "start"}}); }
  void store_init_configuration(const TrackerDict& values) override {
    calls_.push_back(
        {{"call", "store_init_configuration"}, {"args", json::array({tracking_answer(values)})}});
  }
  void log(const TrackerDict& values, const TrackerStep& step) override {
    calls_.push_back({{"call", "log"},
                      {"args", json::array({tracking_answer(values)})},
                      {"step", step.step ? json(*step.step) : json()},
                      {"kwargs", tracking_answer(step.kwargs)}});
  }
  void finish() override { calls_.push_back({{"call", "finish"}}); }

 private:
  json& calls_;
};

TrackerDict optional_dict(const json& in, const char* name) {
  if (!in.contains(name) || in[name].is_null()) return {};
  return tracking_dict(in[name]);
}

// The trackers that cases of init ask for besides those of vendors, of which none is linked usably.
TrackerClass spy_class(const std::string& name, bool requires_logging_directory, json& calls) {
  return {.name = name,
          .requires_logging_directory = requires_logging_directory,
          .tracker = [&calls, requires_logging_directory](const TrackerSetup& setup) {
            return std::make_unique<Spy>(setup, requires_logging_directory, calls);
          }};
}

json run_init(const json& in) {
  expect_fields(in, {"kind", "log_with", "config", "init_kwargs", "log_kwargs", "project_dir"});
  json calls = json::array();
  register_tracker_class(spy_class("spy", false, calls));
  register_tracker_class(spy_class("spydir", true, calls));
  AcceleratorOptions options;
  const json& asked = field(in, "log_with");
  if (asked.is_string()) options.log_with.push_back(choice_of(asked));
  if (asked.is_array()) {
    for (const json& entry : asked) options.log_with.push_back(choice_of(entry));
  }
  if (in.contains("project_dir")) options.project_dir = kProject;
  Accelerator accelerator(options);
  accelerator.init_trackers("proj", optional_dict(in, "config"), optional_dict(in, "init_kwargs"));
  accelerator.log({{"x", 1}}, 4, optional_dict(in, "log_kwargs"));
  json answer = json::object();
  for (const char* name : {"spy", "absent"}) {
    answer["get_tracker"][name] = part([&]() -> json {
      const TrackerHandle handle = accelerator.get_tracker(name);
      // One that does nothing.
      if (!handle)
        return {{"found", "GeneralTracker"}, {"unwrapped", {{"object", "GeneralTracker"}}}};
      const Spy* const spy = handle.unwrap<Spy>();
      return {{"found", spy != nullptr ? "Spy" : ""}, {"unwrapped", spy->tracker()}};
    });
  }
  accelerator.end_training();
  answer["calls"] = calls;
  return answer;
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "filter") return run_filter(in);
  return ask_ranks(1, [&](int /*rank*/) {
    if (kind == "tracker") return run_tracker(in);
    if (kind == "register") return run_register(in);
    if (kind == "custom") return run_custom(in);
    if (kind == "init") return run_init(in);
    throw CaseError("kind: unknown " + kind);
  })[0];
}

const FamilyRegistration kRegistration("tracking", &run_case,
                                       [](const json& /*in*/) { return Tolerance(); }, {"steps"});

}  // namespace
}  // namespace accelerate::golden
