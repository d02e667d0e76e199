#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "integration_tests/golden/errors.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool contains_object(const json& value) {
  if (!value.is_structured()) return false;
  if (value.is_object() && value.contains("$object")) return true;
  return std::any_of(value.begin(), value.end(), contains_object);
}

bool has_an_object(const json& in) {
  return in.at("kind") == "tracker" && contains_object(in.at("steps"));
}

void refuse(const json& /*in*/, json& out) { out = {{"refused_by_compiler", true}}; }

bool is_kept_in_files(const json& in) {
  return in.at("kind") == "tracker" &&
         (in.at("tracker") == "wandb" || in.at("tracker") == "trackio");
}

// A tensor of one element is a number; others are lists.
json plain(const json& value) {
  if (!value.is_structured()) return value;
  if (value.is_object() && value.contains("tensor")) {
    json element = value.at("value");
    while (element.is_array() && element.size() == 1) element = json(element.at(0));
    return element.is_array() ? value.at("value") : element;
  }
  json result = value;
  for (json& entry : result) entry = plain(entry);
  return result;
}

// Steps are counted where none is given, and arguments that are for the packages alone do not show.
// W&B's history has one record a step, and is told when the run ends; Trackio's database is not.
void say_what_files_say(const json& in, json& out) {
  const std::string tracker = in.at("tracker");
  json kept = json::array();
  int64_t next = 0;
  for (json call : out.at("calls")) {
    const std::string name = call.at("call");
    if (name == "trackio.init().finish") continue;
    if (name != tracker + ".init().log") {
      call["args"] = plain(call["args"]);
      for (const char* argument : {"allow_val_change", "dataframe"}) call["kwargs"].erase(argument);
      kept.push_back(std::move(call));
      continue;
    }
    const json given = call.at("kwargs").value("step", json());
    const int64_t step = given.is_null() ? next : given.get<int64_t>();
    next = given.is_null() || tracker == "trackio" ? step + 1 : step;
    call = {{"call", name}, {"args", plain(call.at("args"))}, {"kwargs", {{"step", step}}}};
    const bool joins = tracker == "wandb" && !kept.empty() && kept.back().at("call") == name &&
                       kept.back().at("kwargs") == call.at("kwargs");
    if (joins) {
      kept.back()["args"][0].update(call["args"][0]);
    } else {
      kept.push_back(std::move(call));
    }
  }
  out["calls"] = std::move(kept);
}

bool stores_nothing(const json& in) {
  return in.at("kind") == "init" && in.contains("config") && in["config"] == json::object();
}

void leave_out_empty_configurations(const json& /*in*/, json& out) {
  if (!out.contains("calls")) return;
  json calls = json::array();
  for (const json& call : out["calls"]) {
    if (call.at("call") != "store_init_configuration") calls.push_back(call);
  }
  out["calls"] = std::move(calls);
}

bool has_kwargs_for_nobody(const json& in) {
  if (in.at("kind") != "init") return false;
  const json& asked = in.at("log_with");
  const auto is_asked_for = [&](const std::string& name) {
    return asked == name ||
           (asked.is_array() && std::find(asked.begin(), asked.end(), name) != asked.end());
  };
  for (const char* field : {"init_kwargs", "log_kwargs"}) {
    if (!in.contains(field) || !in[field].is_object()) continue;
    for (const auto& [name, kwargs] : in[field].items()) {
      if (!is_asked_for(name)) return true;
    }
  }
  return false;
}

void refuse_kwargs(const json& /*in*/, json& out) {
  out = our_error({"ValueError"}, {"which is not a tracker of this Accelerator"});
}

// ---- All trackers.

bool asks_for_all_without_a_folder(const json& in) {
  if (in.at("kind") != "filter" || !in.at("logging_dir").is_null()) return false;
  const json& asked = in.at("log_with");
  const auto is_all = [](const json& name) { return name == "all" || name == "enum:all"; };
  return asked.is_array() ? std::any_of(asked.begin(), asked.end(), is_all) : is_all(asked);
}

// Those that need a folder; they fail when they are made.
void leave_them_out(const json& /*in*/, json& out) {
  if (!out.contains("trackers")) return;
  std::erase_if(out["trackers"].get_ref<json::array_t&>(),
                [](const json& name) { return name == "tensorboard" || name == "aim"; });
}

}  // namespace

std::vector<Decision> tracking_rules() {
  std::vector<Decision> rules = {
      {"tracking", "runs of W&B and Trackio in files",
       "HF Accelerate calls their packages; ours writes their files, which number each step, have "
       "numbers for tensors of one element, and in W&B's case one record a step",
       &is_kept_in_files, &say_what_files_say},
      {"tracking", "empty configurations",
       "HF Accelerate tells trackers a configuration without entries; ours does not",
       &stores_nothing, &leave_out_empty_configurations},
      {"tracking", "kwargs for trackers that were not asked for",
       "HF Accelerate ignores init_kwargs and log_kwargs under another name; ours refuses them, "
       "for a misspelt name loses its arguments otherwise",
       &has_kwargs_for_nobody, &refuse_kwargs},
      {"tracking", "all trackers without a folder",
       "HF Accelerate keeps those that need a logging_dir, which fail when they are made; ours "
       "leaves them out",
       &asks_for_all_without_a_folder, &leave_them_out},
  };
  for (const auto& vendor :
       {dvclive_tracking_rules(), mlflow_tracking_rules(), tensorboard_tracking_rules()}) {
    rules.insert(rules.end(), vendor.begin(), vendor.end());
  }
  // Last, for nothing is left of what was recorded.
  rules.push_back({"tracking", "values that are none",
                   "HF Accelerate takes any Python object as a value and drops it or writes its "
                   "address; in C++ it does not compile",
                   &has_an_object, &refuse});
  return rules;
}

}  // namespace accelerate::golden
