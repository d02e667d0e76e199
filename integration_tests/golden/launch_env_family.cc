// Launches up to the moment when something would be started, and what they are made from.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/runtime/env_parsing.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "launch/commands/commands.h"
#include "launch/plan/launch_plan.h"
#include "launch/process/process_plan.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"
#include "launch/settings/schema.h"
#include "launch/settings/settings.h"
#include "launch/settings/validate.h"

namespace accelerate::golden {
namespace {

namespace commands = launcher::commands;
using nlohmann::json;
// NOLINTBEGIN: what is replayed are these namespaces.
using namespace launcher::agent;
using namespace launcher::plan;
using namespace launcher::settings;
// NOLINTEND
using launcher::process::environment_value;
using launcher::process::EnvironmentOverlay;
using launcher::process::find_in_environment;
using launcher::settings::Machine;

// The port that is free on the recorded machine.
constexpr uint16_t kFreePort = 45678;

json to_plain(const nlohmann::ordered_json& value) { return json::parse(value.dump()); }

std::vector<std::string> environment_of(const json& in) {
  std::vector<std::string> words = {"PATH=/usr/bin", "HOME=/root"};
  if (!in.contains("env")) return words;
  for (const auto& [name, value] : in["env"].items()) {
    words.push_back(absl::StrCat(name, "=", value.get<std::string>()));
  }
  return words;
}

Machine machine_of(const json& in) {
  Machine machine;
  const json none = json::object();
  const json& described = in.contains("machine") ? in["machine"] : none;
  expect_fields(described, {"gpus", "physical_cores", "mpi", "ports_in_use", "fp8", "deepspeed",
                            "tpu", "p2p", "bf16"});
  machine.devices = described.value("gpus", 0);
  machine.device_kind = machine.devices > 0 ? "gpu" : "cpu";
  if (described.contains("tpu") && described["tpu"] != false) machine.device_kind = "tpu";
  const int cores = described.value("physical_cores", 8);
  machine.count_physical_cores = [cores] { return cores; };
  machine.has_peer_access = described.value("p2p", true);
  const json mpi = described.contains("mpi") ? described["mpi"] : json();
  machine.find_mpi = [mpi]() -> std::optional<MpiProgram> {
    if (mpi.is_null()) return std::nullopt;
    return MpiProgram{.name = "mpirun",
                      .flavour = mpi == "openmpi" ? MpiFlavour::kOpenMpi : MpiFlavour::kOther};
  };
  std::vector<int> ports;
  if (described.contains("ports_in_use")) ports = described["ports_in_use"].get<std::vector<int>>();
  machine.is_port_in_use = [ports](uint16_t port) {
    return std::find(ports.begin(), ports.end(), port) != ports.end();
  };
  machine.find_free_port = [] { return kFreePort; };
  return machine;
}

// The changes of the overlay for a child.
void describe_environment(const EnvironmentOverlay& overlay,
                          const std::vector<std::string>& environment, json* out) {
  (*out)["env_set"] = json::object();
  (*out)["env_removed"] = json::array();
  for (const auto& [name, value] : overlay) {
    const std::optional<std::string> before = find_in_environment(environment, name);
    if (value && before != value) (*out)["env_set"][name] = *value;
    if (!value && before) (*out)["env_removed"].push_back(name);
  }
}

std::string streams_text(const StreamsByRank& streams) {
  std::string text = absl::StrCat(static_cast<int>(streams.fallback));
  std::vector<std::string> parts;
  for (const auto& [rank, value] : streams.by_local_rank) {
    parts.push_back(absl::StrCat(rank, ":", static_cast<int>(value)));
  }
  return parts.empty() ? text : absl::StrJoin(parts, ",");
}

// Ranks in torchrun's words: what differs from its defaults.
json describe_agent(const AgentOptions& options, const Settings& settings,
                    const std::vector<std::string>& environment) {
  json out;
  describe_environment(options.environment, environment, &out);
  if (settings.flag("tpu")) {
    out["starts"] = "tpu ranks";
    out["nproc_per_node"] = options.processes_per_node;
    out["cmd"] = options.command;
    return out;
  }
  const bool is_alone = options.processes_per_node == 1 && options.max_nodes == 1;
  if (is_alone) {
    out["starts"] = "process";
    out["cmd"] = options.command;
    return out;
  }
  out["starts"] = "torchrun";
  json& torchrun = out["torchrun"];
  if (options.processes_per_node > 1) {
    torchrun["nproc_per_node"] = absl::StrCat(options.processes_per_node);
  }
  if (options.max_nodes > 1) {
    torchrun["nnodes"] = absl::StrCat(options.max_nodes);
    torchrun["master_addr"] = options.endpoint_host;
  }
  if (options.node_rank.value_or(0) > 0) torchrun["node_rank"] = *options.node_rank;
  if (options.endpoint_port != 0) torchrun["master_port"] = absl::StrCat(options.endpoint_port);
  if (settings.text("rdzv_backend") != "static") {
    torchrun["rdzv_backend"] = settings.text("rdzv_backend");
  }
  if (settings.is_set("rdzv_conf")) torchrun["rdzv_conf"] = settings.text("rdzv_conf");
  if (options.max_restarts != 0) torchrun["max_restarts"] = options.max_restarts;
  const double interval = absl::ToDoubleSeconds(options.monitor_interval);
  if (interval != 0.1) torchrun["monitor_interval"] = interval;
  if (options.role != "default") torchrun["role"] = options.role;
  if (!options.log_dir.empty()) torchrun["log_dir"] = options.log_dir;
  if (streams_text(options.tee) != "0") torchrun["tee"] = streams_text(options.tee);
  torchrun["training_script"] = options.command[0];
  torchrun["training_script_args"] =
      std::vector<std::string>(options.command.begin() + 1, options.command.end());
  return out;
}

// What of a SageMaker job follows from the file and the command line.
json describe_job(const json& job) {
  const json& algorithm = job.at("AlgorithmSpecification");
  return {{"starts", "sagemaker"},
          {"image", algorithm.at("TrainingImage")},
          {"cmd", algorithm.at("ContainerEntrypoint")},
          {"args", algorithm.value("ContainerArguments", json::array())},
          {"role", job.at("RoleArn")},
          {"instance", job.at("ResourceConfig").at("InstanceType")},
          {"instances", job["ResourceConfig"].at("InstanceCount")},
          {"hyperparameters", job.value("HyperParameters", json::object())},
          {"env_set", job.at("Environment")}};
}

json describe(const LaunchPlan& plan, const Settings& settings,
              const std::vector<std::string>& environment) {
  json out;
  if (const auto* agent = std::get_if<AgentOptions>(&plan.action)) {
    out = describe_agent(*agent, settings, environment);
  } else if (const auto* command = std::get_if<CommandPlan>(&plan.action)) {
    if (command->kind == "tpu pod") return {{"starts", "tpu pod"}};
    out["starts"] = "process";
    out["cmd"] = command->commands[0];
    describe_environment(command->environment, environment, &out);
  } else if (const auto* sagemaker = std::get_if<SageMakerPlan>(&plan.action)) {
    return describe_job(to_plain(sagemaker->job));
  } else {
    throw CaseError("a plan that no recorded launch has");
  }
  if (const std::string note = note_on_defaults(settings); !note.empty()) {
    for (const absl::string_view pair : absl::StrSplit(note, ", ")) {
      const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
      out["defaulted"][parts[0]] = parts[1];
    }
  }
  return out;
}

absl::StatusOr<std::optional<ConfigFile>> config_of(const json& in, const TypedFlags& typed) {
  if (const auto named = typed.find("config_file"); named != typed.end()) {
    absl::StatusOr<ConfigFile> config = load_config_file(named->second.back());
    if (!config.ok()) return config.status();
    return *std::move(config);
  }
  if (!in.contains("config_file")) return std::nullopt;
  // The default file does not count for --cpu.
  if (bool_field_or(in, "config_is_default", false) && typed.contains("cpu")) return std::nullopt;
  const std::string format = in.value("config_format", "yaml");
  if (format != "yaml" && format != "json") throw CaseError("config_format: unknown " + format);
  absl::StatusOr<ConfigFile> config =
      parse_config(string_field(in, "config_file"),
                   format == "json" ? ConfigFormat::kJson : ConfigFormat::kYaml, "cfg." + format);
  if (!config.ok()) return config.status();
  return *std::move(config);
}

// What the command says without a program; nothing is started.
json refusal_of_no_program(const std::vector<std::string>& environment) {
  CLI::App app;
  const commands::RunCommand run = commands::kLaunch.declare(app);
  std::istringstream in;
  std::ostringstream out, err;
  commands::Invocation invocation{in, out, err, environment};
  if (run(invocation) != commands::kExitBadCommandLine) throw CaseError("argv: no program");
  return status_error(absl::InvalidArgumentError(err.str()));
}

json run_launch(const json& in) {
  expect_fields(
      in, {"kind", "argv", "env", "machine", "config_file", "config_format", "config_is_default"});
  const auto argv = field(in, "argv").get<std::vector<std::string>>();
  CLI::App app;
  TypedFlags typed;
  declare_flags(app, typed);
  absl::StatusOr<LaunchWords> words = split_launch_words(app, argv);
  if (!words.ok()) return status_error(words.status());
  std::reverse(words->options.begin(), words->options.end());
  try {
    app.parse(words->options);
  } catch (const CLI::ParseError& error) {
    return status_error(absl::InvalidArgumentError(error.what()));
  }
  const std::vector<std::string> environment = environment_of(in);
  if (words->program.empty()) return refusal_of_no_program(environment);
  absl::StatusOr<std::optional<ConfigFile>> config = config_of(in, typed);
  if (!config.ok()) return status_error(config.status());
  absl::StatusOr<Settings> settings =
      Settings::resolve(typed, *config ? &**config : nullptr, environment);
  if (!settings.ok()) return status_error(settings.status());
  // As the command does before anything else.
  if (const absl::Status ok = check_status(*settings); absl::IsUnimplemented(ok)) {
    throw Missing("settings of launch that are not in this version");
  } else if (!ok.ok()) {
    return status_error(ok);
  }
  const Machine machine = machine_of(in);
  const absl::StatusOr<Job> job = find_job(environment);
  if (!job.ok()) return status_error(job.status());
  if (absl::Status ok = complete(*settings, machine, *job); !ok.ok()) return status_error(ok);
  const absl::StatusOr<LaunchPlan> plan = make_plan({.settings = *settings,
                                                     .machine = machine,
                                                     .job = *job,
                                                     .command = words->program,
                                                     .environment = environment,
                                                     .typed_options = {}});
  if (!plan.ok()) return status_error(plan.status());
  return describe(*plan, *settings, environment);
}

json run_config_load(const json& in) {
  expect_fields(in, {"kind", "text", "ext"});
  const bool is_json = in.value("ext", "yaml") == "json";
  const absl::StatusOr<ConfigFile> config = parse_config(
      string_field(in, "text"), is_json ? ConfigFormat::kJson : ConfigFormat::kYaml, "cfg");
  if (!config.ok()) return status_error(config.status());
  return {{"class", config->is_sagemaker() ? "SageMakerConfig" : "ClusterConfig"},
          {"fields", to_plain(all_fields(*config))},
          {"rewritten_yaml", config_to_yaml(*config)}};
}

json run_write_basic_config(const json& in) {
  expect_fields(in, {"kind", "gpus", "mixed_precision", "file_exists"});
  const TemporaryFolder folder;
  const std::string path = folder.path("default_config.yaml");
  if (in.value("file_exists", false)) std::ofstream(path) << "{}\n";
  const absl::StatusOr<bool> written =
      write_basic_config(in.value("mixed_precision", "no"), path,
                         {.device_kind = "gpu", .devices = in.value("gpus", 0)});
  if (!written.ok()) return status_error(written.status());
  if (!*written) return {{"written", false}};
  const absl::StatusOr<ConfigFile> config = load_config_file(path);
  if (!config.ok()) return status_error(config.status());
  return {{"written", true}, {"fields", to_plain(all_fields(*config))}};
}

json run_env_file(const json& in) {
  expect_fields(in, {"kind", "vars"});
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& [name, value] : field(in, "vars").items()) {
    variables.emplace_back(name, value.get<std::string>());
  }
  return {{"lines", convert_dict_to_env_variables(variables)}};
}

json run_config_keys(const json& in) {
  expect_fields(in, {"kind"});
  json keys = json::array();
  for (const std::string& key : known_keys(Section::kTop)) {
    const Setting* row = find_key(Section::kTop, key);
    if (row == nullptr || row->origin != SettingOrigin::kOurs) keys.push_back(key);
  }
  return {{"keys", std::move(keys)}};
}

// The spellings that the command line takes for an option.
void add_names(const CLI::Option& option, const Setting& row, json& names) {
  for (const std::string& name : option.get_lnames()) {
    // torchrun's names are further ones.
    if (row.other_flag == nullptr || name != row.other_flag) names.push_back("--" + name);
  }
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
}

json run_parser_flags(const json& in) {
  expect_fields(in, {"kind"});
  CLI::App app;
  TypedFlags typed;
  declare_flags(app, typed);
  json flags = json::object();
  for (const Setting& row : all_settings()) {
    if (row.origin != SettingOrigin::kPeer) continue;
    json& flag = flags[row.name];
    const CLI::Option* const option = app.get_option(absl::StrCat("--", row.flag_name()));
    flag["takes_value"] = option->get_items_expected_max() > 0;
    flag["names"] = json::array();
    add_names(*option, row, flag["names"]);
    if (row.negated_flag != nullptr) {
      add_names(*app.get_option(absl::StrCat("--", row.negated_flag)), row, flag["names"]);
    }
    std::sort(flag["names"].begin(), flag["names"].end());
    flag["number"] = row.type == ValueType::kInt     ? "int"
                     : row.type == ValueType::kFloat ? "float"
                                                     : "no";
    flag["default"] = row.default_value == nullptr ? json() : json(row.default_value);
    flag["choices"] = json::array();
    for (absl::string_view choice : row.choice_list()) flag["choices"].push_back(choice);
  }
  return {{"flags", std::move(flags)}};
}

json run_sagemaker_args(const json& in) {
  expect_fields(in, {"kind", "args"});
  const absl::StatusOr<nlohmann::ordered_json> parameters =
      sagemaker_hyperparameters(field(in, "args").get<std::vector<std::string>>());
  if (!parameters.ok()) return status_error(parameters.status());
  return {{"hyperparameters", to_plain(*parameters)}};
}

json run_case(const json& in) {
  static constexpr std::pair<const char*, json (*)(const json&)> kKinds[] = {
      {"launch", &run_launch},
      {"config_load", &run_config_load},
      {"write_basic_config", &run_write_basic_config},
      {"env_file", &run_env_file},
      {"config_keys", &run_config_keys},
      {"parser_flags", &run_parser_flags},
      {"sagemaker_args", &run_sagemaker_args},
  };
  const std::string kind = string_field(in, "kind");
  for (const auto& [known, run] : kKinds) {
    if (kind == known) return run(in);
  }
  throw CaseError("unknown kind \"" + kind + "\"");
}

const FamilyRegistration kRegistration("launch_env", &run_case);

}  // namespace
}  // namespace accelerate::golden
