#include "launch/dialogue/questionnaire.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/log/absl_check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "launch/settings/endpoint.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::dialogue {
namespace {

using Words = std::vector<std::string>;

// A kind of machines: what the menu calls it, its word in a file, what its devices are called.
struct MachineType {
  const char* title;
  const char* word;
  const char* devices;
};

constexpr MachineType kMachineTypes[] = {
    {"no distributed training", "NO", "devices"},
    {"multi-CPU", "MULTI_CPU", "CPUs"},
    {"multi-XPU (never tried on hardware)", "MULTI_XPU", "XPUs"},
    {"multi-HPU (never tried on hardware)", "MULTI_HPU", "HPUs"},
    {"multi-GPU", "MULTI_GPU", "GPUs"},
    {"multi-NPU (never tried on hardware)", "MULTI_NPU", "NPUs"},
    {"multi-MLU (never tried on hardware)", "MULTI_MLU", "MLUs"},
    {"multi-SDAA (never tried on hardware)", "MULTI_SDAA", "SDAAs"},
    {"multi-MUSA (never tried on hardware)", "MULTI_MUSA", "MUSAs"},
    {"TPU (never tried on hardware)", "XLA", "TPU cores"},
    {"Neuron (never tried on hardware)", "MULTI_NEURON", "Neuron cores"},
    {"simulated cluster", "NO", "devices"},
};
constexpr size_t kNone = 0;
constexpr size_t kMultiCpu = 1;
constexpr size_t kMultiGpu = 4;
constexpr size_t kTpu = 9;
constexpr size_t kNeuron = 10;
constexpr size_t kSimulated = 11;

const Words kDataParallelInstances = {"ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4dn.24xlarge"};

// The question of an option.
std::string text_of(const settings::Setting& row) {
  std::string text = row.question.text;
  if (text != "?") return text;
  text = absl::StrCat(row.help, "?");
  text[0] = absl::ascii_toupper(text[0]);
  return text;
}

// Refuses all but whole numbers from `least` to `most`.
Prompter::Check between(int64_t least, int64_t most, const char* expected) {
  return [=](const std::string& answer) {
    int64_t number = 0;
    if (absl::SimpleAtoi(answer, &number) && number >= least && number <= most) {
      return absl::OkStatus();
    }
    return invalid(expected, least, " to ", most, ", not \"", answer, "\"");
  };
}

// The devices that a file or a person lists; 0 for all of them.
size_t listed_devices(absl::string_view ids) {
  if (ids.empty() || ids == "all") return 0;
  const std::vector<absl::string_view> list = absl::StrSplit(ids, ',', absl::SkipWhitespace());
  return list.size();
}

// What the machine or earlier answers add to a question.
struct Local {
  std::string text = {};
  std::optional<std::string> proposal = {};
  Prompter::Check check = {};
};

class Questionnaire {
 public:
  Questionnaire(Prompter& ask, const Surroundings& surroundings, settings::ConfigFile& config,
                Works works)
      : ask_(ask), here_(surroundings), config_(config), works_(works) {
    const auto is_file = [this](const std::string& answer) {
      std::error_code ignored;
      if (std::filesystem::is_regular_file(expanded(answer), ignored)) return absl::OkStatus();
      return invalid("there is no file ", answer);
    };
    local_["cpu"].proposal = here_.machine.devices == 0 ? "yes" : "no";
    local_["simulate"].check = here_.check_cluster;
    local_["main_process_ip"].check = &settings::check_host;
    local_["main_process_port"].check = between(1, 65535, "expected a port from ");
    local_["deepspeed_config_file"].check = is_file;
    local_["tpu_name"].proposal = here_.tpu_name;
  }

  void fill() {
    if (ask_.ask_choice("Where do you train?", {"this machine", "AWS SageMaker"}) == 0) {
      put("compute_environment", "LOCAL_MACHINE");
      ask_cluster();
    } else {
      put("compute_environment", "AMAZON_SAGEMAKER");
      ask_sagemaker();
    }
  }

 private:
  // After an error the defaults of the further questions are not answers, but decide what follows.
  void put(absl::string_view name, absl::string_view text) {
    answers_[std::string(name)] = std::string(text);
    if (ask_.status().ok()) put_value(config_, name, text);
  }
  void put_bool(absl::string_view name, bool value) { put(name, value ? "true" : "false"); }
  std::string answer(absl::string_view name) const {
    const auto found = answers_.find(std::string(name));
    return found == answers_.end() ? "" : found->second;
  }
  int64_t number(absl::string_view name) const {
    int64_t number = 0;
    return absl::SimpleAtoi(answer(name), &number) ? number : 0;
  }

  // Question::when.
  bool holds(const char* condition) const {
    if (condition == nullptr) return true;
    for (const absl::string_view part : absl::StrSplit(condition, '&')) {
      if (!holds_part(part)) return false;
    }
    return true;
  }
  bool holds_part(absl::string_view part) const {
    const bool is_unanswered = absl::ConsumePrefix(&part, "!");
    const size_t equals = part.find('=');
    absl::string_view name = part.substr(0, equals);
    const bool differs = absl::ConsumeSuffix(&name, "!");
    const auto found = answers_.find(std::string(name));
    if (equals == part.npos) return (found == answers_.end()) == is_unanswered;
    if (found == answers_.end()) return false;
    const Words values = absl::StrSplit(part.substr(equals + 1), '|');
    return absl::c_linear_search(values, found->second) != differs;
  }
  bool passes(const char* guard) {
    if (guard == nullptr) return true;
    return *guard == '!' ? !ask_.ask_yes_no(guard + 1, true) : asks(guard);
  }
  Words choices_of(const settings::Setting& row) const {
    const char* const list = row.question.choices;
    Words choices;
    for (const absl::string_view each : absl::StrSplit(list != nullptr ? list : "", '|')) {
      const std::vector<std::string> parts = absl::StrSplit(each, '@');
      if (parts.size() == 1 || holds(parts[1].c_str())) choices.push_back(parts[0]);
    }
    if (list != nullptr) return choices;
    const std::vector<absl::string_view> all = row.choice_list();
    return {all.begin(), all.end()};
  }
  // `~` stands for the home folder, as in a shell.
  std::string expanded(const std::string& answer) const {
    const bool is_at_home = absl::StartsWith(answer, "~/") && !here_.home.empty();
    return is_at_home ? absl::StrCat(here_.home, answer.substr(1)) : answer;
  }
  bool asks(const std::string& question) { return ask_.ask_yes_no(question, false); }

  // Asks for an option as its row says, if the condition of its question holds, and puts the answer
  // where the schema has it. An empty answer to a question without default is refused, to others it
  // sets nothing.
  std::string ask(absl::string_view name) {
    const settings::Setting& row = settings::setting(name);
    if (!holds(row.question.when) || !passes(row.question.guard)) return "";
    std::string answer = answer_to(row, local_[std::string(name)]);
    if (row.question.is_path) answer = expanded(answer);
    if (!answer.empty()) put(name, answer);
    return answer;
  }
  std::string answer_to(const settings::Setting& row, const Local& local) {
    const std::string text = local.text.empty() ? text_of(row) : local.text;
    std::optional<std::string> proposal = local.proposal;
    if (!proposal && row.question.proposal != nullptr) proposal = row.question.proposal;
    if (proposal == "yes" || proposal == "no") {
      return ask_.ask_yes_no(text, proposal == "yes") ? "true" : "false";
    }
    const Words choices = choices_of(row);
    if (row.type == settings::ValueType::kBools) {
      Words parts;
      for (const std::string& part : choices) {
        parts.push_back(asks(absl::StrCat(text, part, "?")) ? "true" : "false");
      }
      return absl::StrJoin(parts, ",");
    }
    if (!choices.empty()) {
      const auto proposed = std::ranges::find(choices, proposal.value_or(""));
      const bool is_there = proposed != choices.end();
      return choices[ask_.ask_choice(text, choices, is_there ? proposed - choices.begin() : 0)];
    }
    if (row.type != settings::ValueType::kInt) {
      return ask_.ask_text(text, proposal, [&](const std::string& answer) {
        absl::Status ok = settings::check_value(row, answer);
        return ok.ok() && local.check ? local.check(answer) : ok;
      });
    }
    if (local.check) return ask_.ask_text(text, proposal, local.check);
    int64_t otherwise = 0;
    const bool is_proposed = absl::SimpleAtoi(proposal.value_or(""), &otherwise);
    return absl::StrCat(ask_.ask_number(text, is_proposed ? std::optional(otherwise) : std::nullopt,
                                        row.has_range() ? row.least : 0));
  }
  // Those of a group that have a question, in the order of the table.
  void ask_group(settings::Group group) {
    for (const settings::Setting& row : settings::all_settings()) {
      if (row.group != group || row.question.text == nullptr) continue;
      // An option of all runs, which stands elsewhere.
      const bool is_after_steps = row.name == absl::string_view("gradient_clipping");
      if (is_after_steps && holds(row.question.when)) ask("gradient_accumulation_steps");
      ask(row.name);
      const bool is_size = row.has_range() && !answer(row.name).empty();
      if (group == settings::Group::kParallelism && is_size) mesh_ *= number(row.name);
    }
  }

  // Whether launch takes the run for one rank a device, which needs two: one device needs no
  // distributed training.
  bool is_multi_device() const {
    const std::string type = answer("distributed_type");
    return absl::StartsWith(type, "MULTI_") && type != "MULTI_CPU";
  }
  // The devices of this machine, if it is of the kind that was chosen.
  int devices_here() const {
    const std::string kind = absl::AsciiStrToUpper(here_.machine.device_kind);
    const bool is_chosen = kMachineTypes[type_].word == absl::StrCat("MULTI_", kind) ||
                           (type_ == kTpu && kind == "TPU");
    return is_chosen ? here_.machine.devices : 0;
  }
  // Whether to go on about a setting. One that is not in this version is only named.
  bool wants(absl::string_view name, const std::string& question = "") {
    const settings::Setting& row = settings::setting(name);
    const std::string text = question.empty() ? text_of(row) : question;
    if (works_(row)) return asks(text);
    ask_.skip(text, "not in this version");
    return false;
  }

  void ask_cluster() {
    Words titles;
    for (const MachineType& type : kMachineTypes) titles.push_back(type.title);
    type_ = ask_.ask_choice("Which kind of machine do you use?", titles);
    put("distributed_type", kMachineTypes[type_].word);
    if (type_ == kSimulated) {
      ask("simulate");
    } else if (type_ != kNone && type_ != kTpu) {
      ask_machines();
    }
    ask_cpu();
    ask_compile();
    if (type_ != kMultiCpu && type_ != kTpu) ask_engines();
    ask_processes();
    if (type_ == kTpu) ask_tpu();
    ask_precision();
  }

  void ask_machines() {
    ask("num_machines");
    machines_ = number("num_machines");
    if (machines_ > 1) {
      local_["machine_rank"].check = between(0, machines_ - 1, "expected ");
      if (ask("machine_rank") == "0") local_["main_process_ip"].proposal = here_.host_name;
      ask("main_process_ip");
      ask("main_process_port");
      if (ask("same_network") == "false") ask("rdzv_backend");
    }
    ask("debug");
  }

  void ask_cpu() {
    if (type_ == kNone) {
      ask("cpu");
      return;
    }
    put_bool("cpu", type_ == kMultiCpu);
    if (type_ == kMultiCpu) ask("mpirun_hostfile");
  }

  void ask_compile() {
    if (wants("dynamo_backend", "Compile the model (torch.compile)?")) {
      ask_group(settings::Group::kCompile);
    }
  }

  // At most one engine that shards.
  void ask_engines() {
    if (type_ != kNeuron && wants("use_deepspeed")) {
      put("distributed_type", "DEEPSPEED");
      ask_group(settings::Group::kDeepSpeed);
    } else if (type_ != kNone && type_ != kNeuron && wants("use_fsdp")) {
      ask_fsdp();
    } else if (type_ == kMultiGpu && wants("use_megatron_lm")) {
      put("distributed_type", "MEGATRON_LM");
      ask_group(settings::Group::kMegatron);
      model_ranks_ = number("megatron_lm_tp_degree") * number("megatron_lm_pp_degree");
    }
  }

  void ask_fsdp() {
    put("distributed_type", "FSDP");
    ask_group(settings::Group::kFsdp);
    const bool is_second = answer("fsdp_version") == "2";
    if (!is_second && answer("fsdp_cpu_ram_efficient_loading") == "true") {
      put_bool("fsdp_sync_module_states", true);
    }
    if (!is_second || !wants("use_parallelism_config")) return;
    local_["parallelism_config_dp_shard_size"].proposal = absl::StrCat(std::max(2, devices_here()));
    ask_group(settings::Group::kParallelism);
  }

  void ask_processes() {
    if (type_ == kNone) {
      put("num_processes", "1");
    } else if (type_ != kSimulated) {
      const int64_t step = std::lcm(machines_, std::max<int64_t>(1, model_ranks_));
      const int64_t least = std::max<int64_t>(is_multi_device() && machines_ == 1 ? 2 : 1, step);
      const auto is_spread = [this, least, step](const std::string& answer) {
        int64_t ranks = 0;
        const bool is_number = absl::SimpleAtoi(answer, &ranks);
        if (is_number && mesh_ > 1 && ranks != mesh_) {
          return invalid("the mesh has ", mesh_, " ranks, and not ", answer);
        }
        if (is_number && ranks >= least && ranks % step == 0) return absl::OkStatus();
        return invalid("expected a whole number of at least ", least,
                       step > 1 ? absl::StrCat(" that ", step, " divides") : "", ", not \"", answer,
                       "\"");
      };
      const int64_t devices = devices_here() * machines_ / step * step;
      const int64_t proposal = mesh_ > 1 ? mesh_ : std::max(least, devices);
      const char* const what = type_ == kMultiCpu ? "ranks" : kMachineTypes[type_].devices;
      local_["num_processes"] = {.text = absl::StrCat("How many ", what, " over all machines?"),
                                 .proposal = absl::StrCat(proposal),
                                 .check = is_spread};
      ask("num_processes");
    }
    const bool has_devices = type_ != kMultiCpu && type_ != kTpu && type_ != kSimulated &&
                             (type_ != kNone || answer("cpu") == "false");
    if (has_devices && machines_ == 1) {
      const bool needs_two = is_multi_device();
      const auto is_enough = [needs_two](const std::string& answer) {
        if (!needs_two || listed_devices(answer) != 1) return absl::OkStatus();
        return invalid("several ranks need at least two devices, not \"", answer, "\"");
      };
      local_["gpu_ids"] = {
          .text = absl::StrCat("Which ", kMachineTypes[type_].devices, ", as in 0,2"),
          .proposal = "all",
          .check = is_enough};
      ask("gpu_ids");
    }
    if (type_ == kMultiGpu) ask("enable_cpu_affinity");
  }

  void ask_tpu() {
    ask("main_training_function");
    if (ask("tpu_use_cluster") == "false") return;
    const std::string pod = ask("tpu_name");
    ask("tpu_zone");
    ask("tpu_use_sudo");
    if (asks("Run commands on the workers first?")) {
      ask(asks("Are they in a file?") ? "command_file" : "commands");
    }
    // Without any name there is no pod to start on.
    if (ask("vm").empty() && pod.empty()) put_bool("tpu_use_cluster", false);
    ask("env");
  }

  void ask_precision() {
    if (answers_.contains("deepspeed_config_file")) return;
    const std::string precision = ask("mixed_precision");
    if (precision == "bf16" && type_ == kTpu) put_bool("downcast_bf16", wants("downcast_bf16"));
    if (precision == "fp8") ask_group(settings::Group::kFp8);
  }

  std::string choose(absl::string_view name, const std::string& question, const Words& choices) {
    put(name, choices[ask_.ask_choice(question, choices)]);
    return answer(name);
  }

  void ask_sagemaker() {
    const bool has_profile =
        ask_.ask_choice("How does the job get its credentials?",
                        {"an AWS profile", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"}) == 0;
    if (has_profile) ask("profile");
    for (const char* name : {"region", "iam_role_name", "image_uri", "sagemaker_inputs_file",
                             "sagemaker_metrics_file"}) {
      ask(name);
    }
    const bool is_alone =
        choose("distributed_type", "Which distributed mode?", {"NO", "DATA_PARALLEL"}) == "NO";
    ask_compile();
    if (is_alone) {
      ask("ec2_instance_type");
    } else {
      choose("ec2_instance_type", "Type of the machines?", kDataParallelInstances);
    }
    for (const char* name : {"debug", "num_machines", "mixed_precision"}) ask(name);
  }

  Prompter& ask_;
  const Surroundings& here_;
  settings::ConfigFile& config_;
  const Works works_;
  std::map<std::string, Local> local_;
  std::map<std::string, std::string> answers_;
  size_t type_ = kNone;
  int64_t machines_ = 1;
  int64_t mesh_ = 1;         // its ranks
  int64_t model_ranks_ = 1;  // that have one model together, for Megatron-LM
};

using Json = nlohmann::ordered_json;

constexpr char kDistributedType[] = "distributed_type";

// Where the file has the setting, and nothing of it there: keys have several spellings.
Json& cleared_map(settings::ConfigFile& config, const settings::Setting& row) {
  const settings::SectionName* section = settings::find_section(row.section);
  Json& map = section != nullptr ? config.values[section->key] : config.values;
  if (!map.is_object()) map = Json::object();
  for (auto it = map.begin(); it != map.end();) {
    it = settings::find_key(row.section, it.key()) == &row ? map.erase(it) : std::next(it);
  }
  return map;
}

// A text that files have as a number or a truth value, as HF Accelerate writes it.
Json plain_text(const settings::Setting& row, absl::string_view text) {
  int64_t number = 0;
  if (row.choices != nullptr && absl::SimpleAtoi(text, &number)) return number;
  if (row.default_value != nullptr && absl::string_view(row.default_value) == "true") {
    if (const absl::StatusOr<bool> value = settings::parse_bool(text); value.ok()) return *value;
  }
  return std::string(text);
}

Json typed(const settings::Setting& row, absl::string_view text) {
  switch (row.type) {
    case settings::ValueType::kFlag:
    case settings::ValueType::kBool: return *settings::parse_bool(text);
    case settings::ValueType::kInt: {
      int64_t number = 0;
      ABSL_CHECK(absl::SimpleAtoi(text, &number)) << row.name << "=" << text;
      return number;
    }
    case settings::ValueType::kFloat: {
      double number = 0;
      ABSL_CHECK(absl::SimpleAtod(text, &number)) << row.name << "=" << text;
      return number;
    }
    case settings::ValueType::kTexts: {
      std::vector<std::string> parts;
      for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
        parts.emplace_back(absl::StripAsciiWhitespace(part));
      }
      return parts;
    }
    case settings::ValueType::kText: return plain_text(row, text);
    case settings::ValueType::kBools: return std::string(text);
  }
  return nullptr;
}

// A key of some file, or a setting's name.
const settings::Setting* find_row(absl::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  if (parts.size() == 2) {
    const settings::SectionName* named = settings::find_section(parts[0]);
    return named != nullptr ? settings::find_key(named->section, parts[1]) : nullptr;
  }
  for (const settings::Section section : {settings::Section::kTop, settings::Section::kSageMaker}) {
    if (const settings::Setting* row = settings::find_key(section, name)) return row;
  }
  const settings::Setting* row = settings::find_setting(name);
  return row != nullptr && row->has_key() ? row : nullptr;
}

absl::Status check(const settings::Setting& row, const std::string& text) {
  if (absl::string_view(row.name) != kDistributedType) return settings::check_value(row, text);
  std::vector<std::string> types;
  for (const auto& list :
       {settings::distributed_types(), settings::sagemaker_distributed_types()}) {
    types.insert(types.end(), list.begin(), list.end());
  }
  if (std::ranges::find(types, text) != types.end()) return absl::OkStatus();
  return invalid("expected one of ", absl::StrJoin(types, ", "), ", not \"", text, "\"");
}

}  // namespace

absl::Status ask_configuration(Prompter& prompter, const Surroundings& surroundings,
                               settings::ConfigFile& config, Works works) {
  Questionnaire(prompter, surroundings, config, works).fill();
  return prompter.status();
}

std::vector<std::string> assignments_of(const settings::ConfigFile& config) {
  std::vector<std::string> assignments;
  const auto add = [&](const std::string& key, const Json& value) {
    std::vector<std::string> texts;
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
      texts.push_back(item.is_string() ? item.get<std::string>() : json_text(item));
    }
    if (!value.is_null()) assignments.push_back(absl::StrCat(key, "=", absl::StrJoin(texts, ",")));
  };
  for (const auto& [key, value] : config.values.items()) {
    if (!value.is_object()) {
      add(key, value);
      continue;
    }
    for (const auto& [inner, inner_value] : value.items()) {
      add(absl::StrCat(key, ".", inner), inner_value);
    }
  }
  return assignments;
}

void put_value(settings::ConfigFile& config, absl::string_view name, absl::string_view text) {
  const settings::Setting& row = settings::setting(name);
  cleared_map(config, row)[row.key_name()] = typed(row, text);
}

absl::Status set_value(settings::ConfigFile& config, absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    return invalid("--set ", assignment, ": expected KEY=VALUE, as in num_processes=4");
  }
  const std::string key =
      absl::StrReplaceAll(absl::StripAsciiWhitespace(assignment.substr(0, equals)), {{"-", "_"}});
  std::string text(absl::StripAsciiWhitespace(assignment.substr(equals + 1)));
  const settings::Setting* row = find_row(key);
  if (row == nullptr) {
    std::vector<std::string> keys;
    for (const settings::Setting& each : settings::all_settings()) {
      if (each.has_key()) keys.push_back(each.key_name());
    }
    return invalid("--set ", assignment, ": unknown key ", key,
                   did_you_mean(key.substr(key.find('.') + 1), keys));
  }
  text = settings::schema_text(*row, text);
  if (text.empty()) {
    cleared_map(config, *row);
    return absl::OkStatus();
  }
  if (!settings::is_utf8(text)) {
    return invalid("--set ", key, ": the value is not UTF-8");
  }
  ACCELERATE_RETURN_IF_ERROR(in_file(absl::StrCat("--set ", assignment), check(*row, text)));
  put_value(config, row->name, text);
  return absl::OkStatus();
}

}  // namespace accelerate::launcher::dialogue
