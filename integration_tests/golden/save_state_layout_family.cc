// Checkpoints of the whole training: the files of one, the rotation of many, and mistakes.
//
// Files are written to a disk in memory, which outlives the ranks: what loads is another run. The
// answers name the contents that HF Accelerate's files have as well.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/safetensors.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/save_state_layout_model.h"
#include "integration_tests/golden/save_state_layout_training.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using simulator::SimDisk;

constexpr char kRoot[] = "/sim";
constexpr char kCheckpoint[] = "/sim/ck";
constexpr char kProject[] = "/sim/proj";
constexpr char kCheckpoints[] = "/sim/proj/checkpoints";

std::string to_ours(const std::string& path) {
  return absl::StrReplaceAll(path, {{"<ROOT>", kRoot}});
}
std::string to_theirs(const std::string& path) {
  return absl::StrCat("<ROOT>", absl::StripPrefix(path, kRoot));
}

// ---- What is in a folder

std::string description_of(const at::Tensor& tensor) {
  return absl::StrCat("tensor ", name_of(tensor.scalar_type()), "[",
                      absl::StrJoin(tensor.sizes().vec(), ", "), "]");
}

// A model's file.
json described_weights(const SafetensorsFile& file) {
  json tensors = json::object();
  for (const SafetensorsEntry& entry : file.header().tensors) {
    tensors[entry.name] = {entry.dtype, entry.shape};
  }
  return {{"format", "safetensors"},
          {"metadata", file.header().metadata.value_or(SafetensorsMetadata())},
          {"tensors", std::move(tensors)}};
}

// Values and tensors in one tree.
json described_state(const SafetensorsFile& file) {
  json value = json::parse(file.header().metadata.value().at("values"));
  for (const auto& [name, tensor] : internal::value_or_throw(file.read_all())) {
    json* place = &value;
    for (const absl::string_view key : absl::StrSplit(name, '.'))
      place = &(*place)[std::string(key)];
    *place = description_of(tensor);
  }
  return value;
}

void keep_only(json& value, std::initializer_list<const char*> names) {
  json kept = json::object();
  for (const char* name : names) {
    if (value.contains(name)) kept[name] = value[name];
  }
  value = std::move(kept);
}

json described_file(SimDisk& disk, const std::string& folder, const std::string& name) {
  const std::string path = join_path(folder, name);
  const bool is_json = absl::EndsWith(name, ".json");
  json file = {{"format", is_json ? "json" : "safetensors"}};
  // HF Accelerate has none of these files.
  for (const char* own : {"manifest", "gradients", "replica_state"}) {
    if (absl::StartsWith(name, own)) return file;
  }
  if (is_json) {
    file["value"] = json::parse(internal::value_or_throw(read_file(disk, path)));
  } else {
    const auto tensors = internal::value_or_throw(SafetensorsFile::open(disk, path));
    if (absl::StartsWith(name, "model")) return described_weights(tensors);
    file["value"] = described_state(tensors);
  }
  json& value = file["value"];
  if (absl::StartsWith(name, "optimizer")) {
    keep_only(value, {"state", "param_groups"});
    // HF Accelerate finds parameters by their order alone.
    for (json& group : value.at("param_groups")) group.erase("param_names");
  }
  if (absl::StartsWith(name, "scheduler") || absl::StartsWith(name, "scaler")) {
    value.erase("accelerate");
  }
  if (absl::StartsWith(name, "random_states")) keep_only(value, {"step", "torch"});
  return file;
}

json described_folder(SimDisk& disk, const std::string& folder) {
  json described = json::object();
  for (const std::string& name : internal::value_or_throw(disk.list(folder))) {
    described[name] = described_file(disk, folder, name);
  }
  return described;
}

// ---- Accelerators

ProjectConfiguration project_of(const json& project, bool has_folder) {
  expect_fields(project,
                {"automatic_checkpoint_naming", "total_limit", "iteration", "save_on_each_node"});
  ProjectConfiguration configuration;
  if (has_folder) configuration.project_dir = kProject;
  if (project.contains("automatic_checkpoint_naming")) {
    configuration.automatic_checkpoint_naming = bool_field(project, "automatic_checkpoint_naming");
  }
  if (project.contains("total_limit")) {
    configuration.total_limit = optional_int_field(project, "total_limit");
  }
  if (project.contains("iteration")) configuration.iteration = int_field(project, "iteration");
  if (project.contains("save_on_each_node")) {
    configuration.save_on_each_node = bool_field(project, "save_on_each_node");
  }
  return configuration;
}

std::vector<std::string> names_in(const json& in, const char* list) {
  return field(in, list).get<std::vector<std::string>>();
}

// Rank 0's answer.
json ask_first_rank(int ranks, const std::shared_ptr<SimDisk>& disk,
                    const std::function<json()>& make) {
  return ask_ranks(ranks, [&](int /*rank*/) { return make(); }, /*num_nodes=*/1, disk).at(0);
}

// ---- kind=layout

json run_layout(const json& in) {
  expect_fields(in, {"kind", "world_size", "models", "optimizers", "schedulers", "dataloaders",
                     "custom", "steps", "gradient_accumulation_steps", "use_seedable_sampler",
                     "safe_serialization", "scaler", "project"});
  AcceleratorOptions options;
  if (in.contains("gradient_accumulation_steps")) {
    options.gradient_accumulation_steps = int_field(in, "gradient_accumulation_steps");
  }
  if (in.contains("use_seedable_sampler")) {
    options.dataloader_config.use_seedable_sampler = bool_field(in, "use_seedable_sampler");
  }
  if (in.contains("scaler") && bool_field(in, "scaler")) {
    options.mixed_precision = PrecisionType::kFp16;
  }
  if (in.contains("project")) options.project_config = project_of(in["project"], true);
  const LayoutObjects objects{.models = names_in(in, "models"),
                              .optimizers = names_in(in, "optimizers"),
                              .schedulers = names_in(in, "schedulers"),
                              .dataloaders = names_in(in, "dataloaders"),
                              .custom = count_field(in, "custom")};
  const int64_t steps = in.contains("steps") ? count_field(in, "steps") : 0;
  const bool safe = bool_field(in, "safe_serialization");
  const int ranks = ranks_field(in, "world_size");
  const auto disk = std::make_shared<SimDisk>();

  json out = ask_first_rank(ranks, disk, [&]() -> json {
    LayoutTraining training(options, objects, /*first_custom=*/10);
    json sequence = json::array();
    for (int64_t i = 0; i < steps; ++i) sequence.push_back(training.micro_step());
    Accelerator& accelerator = training.accelerator();
    const int64_t step = accelerator.step();
    const std::string folder = accelerator.save_state(kCheckpoint, {.safe_serialization = safe});
    return {{"step_before_save", step},
            {"sync_gradients_sequence", std::move(sequence)},
            {"returned", to_theirs(folder)},
            {"iteration_after_save", accelerator.save_iteration()}};
  });
  if (out.contains("error")) return out;
  const std::string folder = to_ours(out.at("returned"));
  out["files"] = described_folder(*disk, folder);
  out["load"] = ask_first_rank(ranks, disk, [&]() -> json {
    LayoutTraining training(options, objects);
    Accelerator& accelerator = training.accelerator();
    accelerator.load_state(folder);
    return {{"step_after_load", accelerator.step()},
            {"iteration_after_load", accelerator.save_iteration()},
            {"custom_values", training.custom_values()}};
  });
  return out;
}

// ---- kind=rotation

const LayoutObjects kPlain = {
    .models = {"linear"}, .optimizers = {"adam"}, .schedulers = {"step"}, .custom = 1};

// By the first rank, while the others wait.
void put_into_checkpoints(Accelerator& accelerator, const std::string& name, bool is_file) {
  if (accelerator.is_main_process()) {
    FileSystem& files = accelerator.runtime().files();
    const std::string path = join_path(kCheckpoints, name);
    internal::check_ok(files.make_directories(is_file ? kCheckpoints : path));
    if (is_file) internal::check_ok(write_file(files, path, ""));
  }
  accelerator.wait_for_everyone();
}

json act(Accelerator& accelerator, const std::string& action) {
  if (action == "save") return {{"returned", to_theirs(accelerator.save_state())}};
  if (auto folder = argument_of(action, "save")) {
    return {{"returned", to_theirs(accelerator.save_state(to_ours(*folder)))}};
  }
  if (action == "load") return {{"loaded", to_theirs(accelerator.load_state())}};
  if (auto folder = argument_of(action, "load")) {
    return {{"loaded", to_theirs(accelerator.load_state(to_ours(*folder)))}};
  }
  if (auto name = argument_of(action, "mkdir")) {
    put_into_checkpoints(accelerator, *name, /*is_file=*/false);
  } else if (auto name = argument_of(action, "touch")) {
    put_into_checkpoints(accelerator, *name, /*is_file=*/true);
  } else if (auto number = new_iteration(action)) {
    accelerator.set_save_iteration(*number);
  } else if (action != "new") {
    throw CaseError("unknown action \"" + action + "\"");
  }
  return json::object();
}

json sorted_checkpoints(FileSystem& files) {
  const auto names = files.list(kCheckpoints);
  if (!names.ok()) return nullptr;
  json sorted = *names;
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

json run_rotation(const json& in) {
  expect_fields(in, {"kind", "world_size", "project", "actions", "project_dir"});
  const bool has_folder = !in.contains("project_dir") || bool_field(in, "project_dir");
  AcceleratorOptions options;
  options.project_config = project_of(field(in, "project"), has_folder);
  const auto actions = field(in, "actions").get<std::vector<std::string>>();
  const auto disk = std::make_shared<SimDisk>();
  json trace = json::array();
  while (trace.size() < actions.size()) {
    // Until the next accelerator is to be a new one.
    const size_t begin = trace.size();
    const auto end = std::find(actions.begin() + static_cast<int64_t>(begin) + 1, actions.end(),
                               std::string("new"));
    const json part_of_trace = ask_first_rank(ranks_field(in, "world_size"), disk, [&]() -> json {
      LayoutTraining training(options, kPlain);
      Accelerator& accelerator = training.accelerator();
      json results = json::array();
      for (auto action = actions.begin() + static_cast<int64_t>(begin); action != end; ++action) {
        json result = part([&] { return act(accelerator, *action); });
        accelerator.wait_for_everyone();
        result["checkpoints"] = sorted_checkpoints(accelerator.runtime().files());
        result["iteration"] = accelerator.save_iteration();
        results.push_back(std::move(result));
        accelerator.wait_for_everyone();
      }
      return results;
    });
    if (!part_of_trace.is_array()) return part_of_trace;
    for (const json& result : part_of_trace) trace.push_back(result);
  }
  return {{"trace", std::move(trace)}};
}

// ---- kind=error

// The state that is saved, its files, and the state that is loaded.
struct Script {
  LayoutObjects saved = kPlain;
  LayoutObjects loaded = kPlain;
  std::string save_folder = kCheckpoint;
  std::string load_folder = kCheckpoint;
  int saves = 1;
  bool loads = true;
  LoadStateOptions options = {};
  std::function<void(SimDisk& disk)> before = [](SimDisk& /*disk*/) {};
  std::function<void(SimDisk& disk)> between = [](SimDisk& /*disk*/) {};
};

std::vector<std::string>* list_of(LayoutObjects& objects, absl::string_view kind) {
  if (absl::StartsWith(kind, "model")) return &objects.models;
  if (absl::StartsWith(kind, "optimizer")) return &objects.optimizers;
  if (absl::StartsWith(kind, "scheduler")) return &objects.schedulers;
  return nullptr;
}

// Loads more or fewer objects of a kind than there are in the checkpoint.
bool change_number(LayoutObjects& objects, absl::string_view kind, int64_t number) {
  if (absl::StartsWith(kind, "custom")) {
    objects.custom = number;
    return true;
  }
  std::vector<std::string>* list = list_of(objects, kind);
  if (list == nullptr) return false;
  list->resize(static_cast<size_t>(number), list->front());
  // Without models there is nothing to optimize, and without optimizers no schedule.
  if (objects.models.empty()) objects.optimizers.clear();
  if (objects.optimizers.empty()) objects.schedulers.clear();
  return true;
}

// Removes what HF Accelerate calls so.
void remove_file(SimDisk& disk, const std::string& theirs) {
  for (const bool has_tensors : {false, true}) {
    const std::string path = join_path(kCheckpoint, our_file_name(theirs, has_tensors));
    if (disk.remove(path).ok()) return;
  }
  throw CaseError("rm: there is no file for " + theirs);
}

template <typename... Names>
bool is_one_of(const std::string& action, const Names&... names) {
  return ((action == names) || ...);
}

bool apply_number(const std::string& action, Script& script) {
  static constexpr std::pair<const char*, int64_t> kNumbers[] = {
      {"load_two_", 2}, {"load_more_", 2}, {"load_no_", 0}, {"load_without_", 0}};
  return std::any_of(std::begin(kNumbers), std::end(kNumbers), [&](const auto& number) {
    absl::string_view kind = action;
    return absl::ConsumePrefix(&kind, number.first) &&
           change_number(script.loaded, kind, number.second);
  });
}

Script script_of(const std::string& action) {
  Script script;
  absl::string_view rest = action;
  if (action == "save_twice_same_dir") {
    script.saves = 2;
    script.loads = false;
  } else if (auto file = argument_of(action, "rm")) {
    script.between = [file = *file](SimDisk& disk) { remove_file(disk, file); };
  } else if (absl::ConsumePrefix(&rest, "load_map_location_")) {
    if (rest != "none") script.options.map_location = std::string(rest);
  } else if (absl::ConsumePrefix(&rest, "load_wrong_arch")) {
    script.loaded.models = {"bn"};
    if (!is_one_of(std::string(rest), "", "_strict", "_not_strict")) {
      throw CaseError("unknown action \"" + action + "\"");
    }
    script.options.strict = rest != "_not_strict";
  } else if (is_one_of(action, "extra_custom_file", "load_fewer_custom")) {
    script.saved.custom = 2;
  } else if (is_one_of(action, "save_no_dir", "save_none", "save_none_manual",
                       "save_without_dir")) {
    script.save_folder.clear();
  } else if (is_one_of(action, "save_to_file", "save_over_file", "save_file")) {
    script.before = [](SimDisk& disk) { internal::check_ok(write_file(disk, kCheckpoint, "")); };
  } else if (is_one_of(action, "load_no_dir", "load_none", "load_none_manual",
                       "load_without_dir")) {
    script.load_folder.clear();
  } else if (action == "custom_like_name_ignored") {
    script.between = [](SimDisk& disk) {
      for (const char* name : {"custom_checkpoint_x.json", "my_custom_checkpoint_0.json"}) {
        internal::check_ok(write_file(disk, join_path(kCheckpoint, name), "{}"));
      }
    };
  } else if (is_one_of(action, "load_missing", "load_missing_dir", "load_missing_folder",
                       "load_nonexistent", "load_nonexistent_dir")) {
    script.load_folder = "/sim/missing";
  } else if (is_one_of(action, "load_empty", "load_empty_dir")) {
    script.load_folder = "/sim/empty";
    script.between = [](SimDisk& disk) { internal::check_ok(disk.make_directories("/sim/empty")); };
  } else if (is_one_of(action, "load_file", "load_from_file")) {
    script.load_folder = "/sim/file";
    script.between = [](SimDisk& disk) { internal::check_ok(write_file(disk, "/sim/file", "")); };
  } else if (!apply_number(action, script)) {
    throw CaseError("unknown action \"" + action + "\"");
  }
  return script;
}

template <typename Object>
concept Registers = requires(Accelerator& accelerator, Object& object) {
  accelerator.register_for_checkpointing(object);
};

json refused_registration(const std::string& what) {
  struct OnlySaves {
    StateDict state_dict() const { return {}; }
  };
  struct OnlyLoads {
    void load_state_dict(const StateDict& /*state*/) {}
  };
  static_assert(!Registers<decltype([] {})> && !Registers<int> && !Registers<std::string> &&
                !Registers<json> && !Registers<OnlySaves> && !Registers<OnlyLoads>);
  static_assert(Registers<CustomValue>);
  if (is_one_of(what, "lambda", "int", "str", "string", "dict", "none", "no_state_dict",
                "only_state_dict", "only_load_state_dict", "invalid")) {
    return refused_by_compiler();
  }
  throw CaseError("unknown object to register: \"" + what + "\"");
}

json run_error(const json& in) {
  expect_fields(in, {"kind", "world_size", "action"});
  const std::string action = string_field(in, "action");
  absl::string_view registered = action;
  if (absl::ConsumePrefix(&registered, "register_")) {
    return refused_registration(std::string(registered));
  }
  const Script script = script_of(action);
  const int ranks = ranks_field(in, "world_size");
  const auto disk = std::make_shared<SimDisk>();
  script.before(*disk);
  json out = ask_first_rank(ranks, disk, [&]() -> json {
    LayoutTraining training({}, script.saved, /*first_custom=*/10);
    training.micro_step();
    Accelerator& accelerator = training.accelerator();
    for (int i = 0; i < script.saves; ++i) accelerator.save_state(script.save_folder);
    json saved = {{"ok", true}};
    if (script.saves > 1) saved["iteration"] = accelerator.save_iteration();
    return saved;
  });
  if (out.contains("error")) return out;
  if (!script.loads) {
    out["files"] = internal::value_or_throw(disk->list(kCheckpoint));
    return out;
  }
  script.between(*disk);
  return ask_first_rank(ranks, disk, [&]() -> json {
    LayoutTraining training({}, script.loaded);
    training.accelerator().load_state(script.load_folder, script.options);
    return {{"ok", true}};
  });
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "layout") return run_layout(in);
  if (kind == "rotation") return run_rotation(in);
  if (kind == "error") return run_error(in);
  throw CaseError("unknown kind \"" + kind + "\"");
}

const FamilyRegistration kRegistration("save_state_layout", &run_case);

}  // namespace
}  // namespace accelerate::golden
