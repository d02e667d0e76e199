#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/save_state_layout_model.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }
bool is_layout(const json& in) { return is_kind(in, "layout"); }
bool is_rotation(const json& in) { return is_kind(in, "rotation"); }

bool is_action(const json& in, const char* beginning) {
  return is_kind(in, "error") && absl::StartsWith(string_field(in, "action"), beginning);
}

// The contents of each file of that kind, with its number.
template <typename Change>
void change_files(json& out, const std::string& kind, Change&& change) {
  if (out.contains("error")) return;
  for (auto& [name, file] : out.at("files").items()) {
    const std::string stem = stem_of(name);
    absl::string_view number = stem;
    if (!absl::ConsumePrefix(&number, kind) || !file.contains("value")) continue;
    size_t index = 0;
    if (number.empty() || (absl::ConsumePrefix(&number, "_") && absl::SimpleAtoi(number, &index))) {
      change(file["value"], index);
    }
  }
}

size_t number_of(const json& in, const char* list) { return field(in, list).size(); }

// ---- Files

json our_weights(const json& in, const std::string& stem, const json& state_dict) {
  // Only the first of tied tensors is written.
  size_t index = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(stem, "model_"), &index)) index = 0;  // "model"
  const bool is_tied = field(in, "models").at(index) == "tied";
  static constexpr std::pair<const char*, const char*> kDtypes[] = {
      {"float32", "F32"}, {"bfloat16", "BF16"}, {"int64", "I64"}};
  json tensors = json::object();
  for (const auto& [name, tensor] : state_dict.items()) {
    if (is_tied && name == "head.weight") continue;
    const auto text = tensor.get<std::string>();
    const size_t shape = text.find('[');
    for (const auto& [theirs, ours] : kDtypes) {
      if (absl::StrContains(text, absl::StrCat(" ", theirs, "["))) {
        tensors[name] = {ours, json::parse(text.substr(shape))};
      }
    }
  }
  return {
      {"format", "safetensors"}, {"metadata", {{"format", "pt"}}}, {"tensors", std::move(tensors)}};
}

// Keys are text.
json with_text_keys(const json& states) {
  json renamed = json::object();
  for (const auto& [key, state] : states.items()) {
    renamed[std::string(absl::StripPrefix(key, "int:"))] = state;
  }
  return renamed;
}

bool holds_tensors(const std::string& file) {
  const std::string stem = stem_of(file);
  return absl::StartsWith(stem, "model") || absl::StartsWith(stem, "optimizer") ||
         absl::StartsWith(stem, "random_states");
}

void expect_our_formats(const json& in, json& out) {
  if (out.contains("error")) return;
  json& files = out.at("files");
  if (files.is_array()) {
    // Names alone, of a training that made a step.
    std::set<std::string> names;
    for (const json& file : files) {
      const auto name = file.get<std::string>();
      names.insert(our_file_name(name, holds_tensors(name)));
    }
    files = names;
    return;
  }
  json ours = json::object();
  for (const auto& [name, file] : files.items()) {
    if (string_field(file, "format") == "safetensors") {
      ours[name] = file;
      continue;
    }
    json value = field(file, "value");
    if (absl::StartsWith(name, "pytorch_model")) {
      const std::string stem = stem_of(name);
      ours[stem + ".safetensors"] = our_weights(in, stem, value);
      continue;
    }
    if (value.contains("state")) value["state"] = with_text_keys(value["state"]);
    const bool tensors = has_tensor(value);
    ours[our_file_name(name, tensors)] = {{"format", tensors ? "safetensors" : "json"},
                                          {"value", std::move(value)}};
  }
  files = std::move(ours);
}

bool lists_files(const json& in) { return is_layout(in) || is_action(in, "save_twice"); }

// The files of a rank alone, besides random states.
std::vector<std::string> files_of_rank(const json& in, int rank, size_t models,
                                       bool is_inside_window) {
  std::vector<std::string> names;
  auto add = [&names, rank](const char* kind, size_t count, const char* of, const char* extension) {
    for (size_t i = 0; i < count; ++i) {
      const std::string number = i == 0 ? "" : absl::StrCat("_", i);
      names.push_back(absl::StrCat(kind, number, of, rank, extension));
    }
  };
  if (ranks_field(in, "world_size") > 1) {
    // Inside a window the buffers of the other ranks are their own.
    for (size_t i = 0; i < models; ++i) {
      const bool has_own_buffers =
          is_inside_window && rank > 0 && in.contains("models") && in["models"].at(i) == "bn";
      names.push_back(absl::StrCat("replica_state", i == 0 ? "" : absl::StrCat("_", i), "_rank",
                                   rank, has_own_buffers ? ".safetensors" : ".json"));
    }
  }
  if (is_inside_window) add("gradients", models, "_rank", ".safetensors");
  return names;
}

void expect_more_files(const json& in, json& out) {
  if (out.contains("error")) return;
  std::vector<std::string> names = {"manifest.json"};
  bool is_inside_window = false;
  size_t models = 1;
  if (is_layout(in)) {
    const json& sequence = out.at("sync_gradients_sequence");
    is_inside_window = !sequence.empty() && sequence.back() == false;
    models = number_of(in, "models");
  }
  for (int rank = 0; rank < ranks_field(in, "world_size"); ++rank) {
    for (std::string& name : files_of_rank(in, rank, models, is_inside_window)) {
      names.push_back(std::move(name));
    }
  }
  json& files = out.at("files");
  for (const std::string& name : names) {
    if (files.is_array()) {
      files.push_back(name);
    } else {
      files[name] = {{"format", absl::EndsWith(name, ".json") ? "json" : "safetensors"}};
    }
  }
  if (files.is_array()) std::sort(files.begin(), files.end());
}

// ---- What is in them

void leave_out_options_of_pytorch(const json& /*in*/, json& out) {
  change_files(out, "optimizer", [](json& value, size_t /*index*/) {
    for (json& group : value.at("param_groups")) {
      for (const char* option : {"foreach", "fused", "capturable", "differentiable", "maximize"}) {
        group.erase(option);
      }
    }
  });
}

int64_t synchronised_steps(const json& out) {
  const json& sequence = out.at("sync_gradients_sequence");
  return std::count(sequence.begin(), sequence.end(), json(true));
}

void count_steps_in_integers(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  const int64_t steps = synchronised_steps(out);
  change_files(out, "optimizer", [steps](json& value, size_t /*index*/) {
    for (json& state : value.at("state")) {
      if (state.contains("step")) state["step"] = steps;
    }
  });
}

// The one-cycle schedule that drives the group.
void take_cycle_from_group(const json& group, json& schedule) {
  if (!schedule.contains("_schedule_phases")) return;
  const json phases = schedule["_schedule_phases"];
  schedule.erase("_schedule_phases");
  schedule.erase("use_beta1");
  schedule["three_phase"] = phases.size() == 3;
  schedule["pct_start"] =
      (double_field(phases.at(0), "end_step") + 1) / double_field(schedule, "total_steps");
  for (const char* name : {"max_lr", "min_lr", "initial_lr", "max_momentum", "base_momentum"}) {
    schedule[absl::StrCat(name, "s")] = json::array({field(group, name)});
  }
}

void move_schedules(const json& in, json& out) {
  if (out.contains("error")) return;
  const size_t optimizers = number_of(in, "optimizers");
  json groups = json::array();
  groups.get_ref<json::array_t&>().resize(optimizers);
  change_files(out, "optimizer", [&groups](json& value, size_t index) {
    json& group = value.at("param_groups").at(0);
    groups.at(index) = group;
    for (const char* left : {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"}) {
      group.erase(left);
    }
  });
  change_files(out, "scheduler", [&](json& value, size_t index) {
    value.erase("verbose");
    value.erase("_get_lr_called_within_step");
    take_cycle_from_group(groups.at(index % optimizers), value);
  });
}

void name_generators_by_their_kind(const json& in, json& out) {
  for (int rank = 0; rank < ranks_field(in, "world_size"); ++rank) {
    change_files(out, absl::StrCat("random_states_", rank), [](json& value, size_t /*index*/) {
      value.erase("random_state");
      value.erase("numpy_random_seed");
      value["torch"] = value.at("torch_manual_seed");
      value.erase("torch_manual_seed");
    });
  }
}

bool has_scaler(const json& in) { return is_layout(in) && in.value("scaler", false); }

void count_growth(const json& in, json& out) {
  if (out.contains("error") || number_of(in, "optimizers") == 0) return;
  const int64_t steps = synchronised_steps(out);
  change_files(out, "scaler",
               [steps](json& value, size_t /*index*/) { value["_growth_tracker"] = steps; });
}

// ---- Rotation

template <typename Predicate>
bool any_action(const json& in, Predicate&& predicate) {
  if (!is_rotation(in)) return false;
  const json& actions = field(in, "actions");
  return std::any_of(actions.begin(), actions.end(),
                     [&](const json& action) { return predicate(action.get<std::string>()); });
}

bool loads(const json& in) {
  return is_layout(in) ||
         any_action(in, [](const std::string& action) { return absl::StartsWith(action, "load"); });
}

bool has_foreign_entries(const json& in) {
  return any_action(in, [](const std::string& action) {
    return absl::StartsWith(action, "mkdir:") || absl::StartsWith(action, "touch:");
  });
}

bool begins_again_with_a_limit(const json& in) {
  return is_rotation(in) && !field(in, "project").value("total_limit", json()).is_null() &&
         any_action(in, [](const std::string& action) {
           return action == "new" || new_iteration(action).has_value();
         });
}

void expect_our_trace(const json& in, json& out) {
  if (!out.contains("trace")) return;
  json trace = expected_trace(in);
  // How HF Accelerate puts errors does not matter.
  for (size_t i = 0; i < trace.size(); ++i) {
    const json& recorded = out["trace"].at(i);
    if (trace[i].contains("error") && recorded.contains("error")) {
      trace[i]["error"] = recorded["error"];
    }
  }
  out["trace"] = std::move(trace);
}

void go_on_after_loading(const json& in, json& out) {
  if (is_rotation(in)) return expect_our_trace(in, out);
  if (!out.contains("error")) {
    out.at("load")["iteration_after_load"] = out.at("iteration_after_save");
  }
}

// ---- Errors

bool loses_random_states(const json& in) { return is_action(in, "rm:random_states_"); }

void refuse(const json& /*in*/, json& out) {
  expect_our_error(out, {"CheckpointError"}, {"is missing"});
}

bool registers(const json& in) { return is_action(in, "register_"); }

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  if (out.contains("error")) out = {{"refused_by_compiler", true}};
}

}  // namespace

std::vector<Decision> save_state_layout_rules() {
  return {
      {"save_state_layout", "no pickle",
       "HF Accelerate pickles everything but weights, and weights as well when it is told to; ours "
       "are safetensors where there are tensors, else JSON, under the same names",
       &lists_files, &expect_our_formats},
      {"save_state_layout", "more files",
       "HF Accelerate saves neither the place in the data, nor what DDP keeps, nor gradients of a "
       "window that is not complete, and no list of files; ours does",
       &lists_files, &expect_more_files},
      {"save_state_layout", "options of PyTorch's implementation",
       "HF Accelerate's optimizers have options that say how PyTorch computes; LibTorch's have "
       "none",
       &is_layout, &leave_out_options_of_pytorch},
      {"save_state_layout", "step counters",
       "HF Accelerate's optimizers count their steps in float32 tensors; LibTorch's in integers",
       &is_layout, &count_steps_in_integers},
      {"save_state_layout", "arguments of schedules",
       "HF Accelerate's schedulers leave arguments in the optimizer's groups; ours keep them",
       &is_layout, &move_schedules},
      {"save_state_layout", "states of generators",
       "HF Accelerate saves those of Python and NumPy, which are not there, and calls PyTorch's "
       "torch_manual_seed; ours has the name of the generator's kind",
       &is_layout, &name_generators_by_their_kind},
      {"save_state_layout", "growth of the loss scale",
       "in these cases HF Accelerate's scaler was attached by hand and used by nobody; ours comes "
       "with fp16 and counts the steps that were made",
       &has_scaler, &count_growth},
      {"save_state_layout", "iteration after loading",
       "HF Accelerate leaves `iteration` as it was, and the next save fails; ours goes on after "
       "the highest number",
       &loads, &go_on_after_loading},
      {"save_state_layout", "other entries among the checkpoints",
       "HF Accelerate counts, removes and loads whatever is there, and fails where it cannot; ours "
       "only looks at checkpoints that are complete",
       &has_foreign_entries, &expect_our_trace},
      {"save_state_layout", "rotation after the save",
       "HF Accelerate removes old checkpoints before it knows that it can save; ours afterwards",
       &begins_again_with_a_limit, &expect_our_trace},
      {"save_state_layout", "missing random states",
       "HF Accelerate goes on without them; that is an error, as with every file",
       &loses_random_states, &refuse},
      {"save_state_layout", "objects without a state",
       "HF Accelerate raises an error where an object without state_dict and load_state_dict is "
       "registered; here the compiler refuses the call",
       &registers, &leave_it_to_the_compiler},
  };
}

}  // namespace accelerate::golden
