#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <string>

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool contains_object(const json& value) {
  if (!value.is_structured()) return false;
  if (value.is_object() && value.contains("$object")) return true;
  return std::any_of(value.begin(), value.end(), contains_object);
}

// Those whose vendors take any value; the others' cases leave out what is none.
bool logs_an_object(const json& in) {
  if (in.at("kind") != "tracker" || !contains_object(in.at("steps"))) return false;
  const json& tracker = in.at("tracker");
  return tracker != "tensorboard" && tracker != "dvclive" && tracker != "mlflow";
}

void refuse(const json& /*in*/, json& out) {
  out = {{"error", {{"type", "TypeError"}, {"message", "it does not compile"}}}};
}

bool asks_for_all_without_folder(const json& in) {
  if (in.at("kind") != "filter" || !in.at("logging_dir").is_null()) return false;
  const json& asked = in.at("log_with");
  return asked == "all" ||
         (asked.is_array() && std::find(asked.begin(), asked.end(), "all") != asked.end());
}

void leave_out_those_with_folders(const json& /*in*/, json& out) {
  if (!out.contains("trackers")) return;
  json kept = json::array();
  for (const json& name : out["trackers"]) {
    if (name != "tensorboard" && name != "aim") kept.push_back(name);
  }
  out["trackers"] = kept;
}

}  // namespace

std::vector<Decision> tracking_rules() {
  std::vector<Decision> rules = {
      {"tracking", "values that are none",
       "HF Accelerate takes any Python object as a value and drops it or writes its address; in "
       "C++ it does not compile",
       &logs_an_object, &refuse},
      {"tracking", "all, without a folder",
       "HF Accelerate's \"all\" takes trackers that need a logging_dir even where there is none, "
       "and fails when they start; ours leaves them out and says so",
       &asks_for_all_without_folder, &leave_out_those_with_folders},
  };
  for (const auto& vendor : {bridge_tracking_rules(), dvclive_tracking_rules(),
                             mlflow_tracking_rules(), tensorboard_tracking_rules()}) {
    rules.insert(rules.end(), vendor.begin(), vendor.end());
  }
  return rules;
}

}  // namespace accelerate::golden
