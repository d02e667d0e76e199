// `accelerate launch [OPTIONS] PROGRAM [ARGS...]`: starts a program once per rank.
//
// Settings (launch/settings) become a plan (launch/plan), and the plan is carried out, or only
// shown with --dry-run. The program and its arguments are those of the invocation: CLI11 would take
// `[1,2]` for a list. Mirrors: accelerate commands/launch.py.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <variant>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/environment.h"
#include "launch/agent/agent.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/commands/simulated_run.h"
#include "launch/plan/launch_plan.h"
#include "launch/process/child_process.h"
#include "launch/process/replace_file.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"
#include "launch/settings/validate.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::launcher::commands {

using plan::CommandPlan;
using plan::kModuleLoader;
using plan::LaunchPlan;
using settings::ConfigFile;
using settings::Settings;
using settings::TypedFlags;
namespace {

constexpr char kName[] = "launch";

struct Options {
  TypedFlags typed;
  std::vector<std::string> program;  // for the help alone
  bool help_markdown = false;
  bool print_all = false;
};

// The program takes this one's place, terminal and signals included.
int become(Invocation& invocation, const std::vector<std::string>& argv,
           const process::EnvironmentOverlay& overlay) {
  const absl::StatusOr<std::string> program = find_program(invocation, argv[0]);
  absl::Status failed = program.status();
  if (program.ok()) {
    invocation.out.flush();
    process::ExecImage image(*program, argv,
                             process::apply_overlay(invocation.environment, overlay));
    failed = process::exec_error(image, image.exec());
  }
  return fail_to_start(invocation, kName, failed);
}

int run_ranks(Invocation& invocation, const agent::AgentOptions& options) {
  const absl::StatusOr<int> exit_code = agent::run_agent(options, invocation.environment);
  if (exit_code.ok()) return *exit_code;
  return fail_to_start(invocation, kName, exit_code.status());
}

// Several commands at the same time are looked after as ranks are: their lines have numbers, and
// where one fails the others are stopped.
agent::AgentOptions at_the_same_time(const CommandPlan& plan) {
  std::string script = absl::StrCat("case $", env::kLocalRank, " in\n");
  for (size_t i = 0; i < plan.commands.size(); ++i) {
    absl::StrAppend(&script, i, ") exec ", shell_line(plan.commands[i]), " ;;\n");
  }
  return {.command = {"/bin/sh", "-c", absl::StrCat(script, "esac")},
          .environment = plan.environment,
          .processes_per_node = static_cast<int>(plan.commands.size())};
}

int run_command_plan(Invocation& invocation, const CommandPlan& plan) {
  const std::string& tool = plan.commands[0][0];
  if (!find_program(invocation, tool).ok()) {
    return fail(invocation, kName,
                absl::StrCat(plan.kind, " needs the program ", tool,
                             ", which is not in PATH; install it, or see with --dry_run what it "
                             "would be given"),
                kExitNotFound);
  }
  for (const auto& [name, lines] : plan.variable_files) {
    if (absl::Status ok = update_variable_file(name, lines); !ok.ok()) {
      return fail(invocation, kName, ok);
    }
  }
  if (plan.commands.size() > 1) return run_ranks(invocation, at_the_same_time(plan));
  return become(invocation, plan.commands[0], plan.environment);
}

// The ARN of the role of that name, which the program aws is asked for.
absl::StatusOr<std::string> arn_of_role(const std::string& name, const std::string& aws,
                                        std::vector<std::string> words,
                                        std::vector<std::string> environment) {
  words.insert(words.end(),
               {"iam", "get-role", "--role-name", name, "--query", "Role.Arn", "--output", "text"});
  const process::ExecImage image(aws, std::move(words), std::move(environment));
  const absl::StatusOr<ChildResult> child = run_in_child([&](int fd) {
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    image.exec();
  });
  if (!child.ok()) return child.status();
  for (absl::string_view line : absl::StrSplit(child->output, '\n')) {
    if (child->exit_code == 0 && absl::StartsWith(line, "arn:")) return std::string(line);
  }
  return absl::NotFoundError(absl::StrCat(
      "iam_role_name: ", name, " is not an ARN, and aws iam get-role does not find that role: ",
      absl::StrReplaceAll(absl::StripAsciiWhitespace(child->output), {{"\n", " "}}),
      "; give the ARN of a role, or the name of one that is there"));
}

// The program aws starts the job, with credentials of its own or those that were typed. Jobs have
// different names: the moment is part of them, as in HF Accelerate.
int start_sagemaker_job(Invocation& invocation, const plan::SageMakerPlan& plan) {
  nlohmann::ordered_json job = plan.job;
  const absl::StatusOr<std::string> aws = find_program(invocation, plan.aws[0]);
  if (!aws.ok()) {
    return fail(invocation, kName,
                "a SageMaker job needs the program aws, which is not in PATH; install it, or "
                "write the job with --dry_run to a file, and give that elsewhere to aws "
                "sagemaker create-training-job --cli-input-json",
                kExitNotFound);
  }
  const std::vector<std::string> environment =
      process::apply_overlay(invocation.environment, plan.environment);
  if (const std::string role = job["RoleArn"]; !absl::StartsWith(role, "arn:")) {
    const absl::StatusOr<std::string> arn = arn_of_role(role, *aws, plan.aws, environment);
    if (!arn.ok()) return fail(invocation, kName, arn.status());
    job["RoleArn"] = *arn;
  }
  job["TrainingJobName"] =
      absl::StrCat(job["TrainingJobName"].get<std::string>(), "-",
                   absl::FormatTime("%Y-%m-%d-%H-%M-%S", absl::Now(), absl::UTCTimeZone()));
  std::vector<std::string> words = plan.aws;
  words.insert(words.end(), {"sagemaker", "create-training-job", "--cli-input-json",
                             accelerate::internal::exact_json_text(job)});
  const absl::StatusOr<int> exit_code = process::run_program(words, environment);
  return exit_code.ok() ? *exit_code : fail(invocation, kName, exit_code.status());
}

void note(Invocation& invocation, const std::vector<std::string>& notes) {
  for (const std::string& text : notes) {
    invocation.err << "accelerate " << called_name(invocation, kName) << ": note: " << text << "\n";
  }
}

int run_simulated(Invocation& invocation, const plan::SimulationPlan& plan, bool is_quiet) {
  const std::string& program = plan.process.argv[0];
  const absl::StatusOr<std::string> found = find_program(invocation, program);
  if (!found.ok()) return fail_to_start(invocation, kName, found.status());
  if (const std::string report = report_of(plan, invocation.environment); !report.empty()) {
    const std::optional<std::string> other = program_of_report(report);
    if (!is_quiet && other && *other != std::filesystem::path(program).filename()) {
      note(invocation, {absl::StrCat(report, " has a report of ", *other, ", which that of ",
                                     program, " replaces")});
    }
    if (absl::Status ok = prepare_report(report); !ok.ok()) return fail(invocation, kName, ok);
  }
  const SimulationMark mark;
  process::EnvironmentOverlay overlay = plan.process.environment;
  mark.add_to(overlay);
  invocation.out.flush();
  const absl::StatusOr<int> code = process::run_program(
      plan.process.argv, process::apply_overlay(invocation.environment, overlay));
  if (!code.ok()) return fail_to_start(invocation, kName, code.status());
  if (*code == 0) return check_simulated(mark, plan, is_quiet, invocation);
  pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (*code == 128 + SIGPIPE && poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) {
    return fail(invocation, kName, "standard output was closed; stopped the program", *code);
  }
  return *code;
}

int carry_out(Invocation& invocation, const LaunchPlan& plan, bool is_quiet) {
  return std::visit(
      absl::Overload(
          [&](const agent::AgentOptions& options) { return run_ranks(invocation, options); },
          [&](const plan::SimulationPlan& plan) {
            return run_simulated(invocation, plan, is_quiet);
          },
          [&](const plan::TaskPlan& plan) {
            return become(invocation, plan.process.argv, plan.process.environment);
          },
          [&](const CommandPlan& plan) { return run_command_plan(invocation, plan); },
          [&](const plan::SageMakerPlan& plan) { return start_sagemaker_job(invocation, plan); }),
      plan.action);
}

// A cluster that names devices computes on them: --cpu is about real ones, and --tpu asks for ranks
// that it must have.
absl::Status check_devices(const Settings& settings) {
  if (!settings.is_set("simulate")) return absl::OkStatus();
  const auto has = [&settings](const char* name) {
    return settings.is_typed(name) && settings.flag(name);
  };
  const auto spec = simulator::ClusterSpec::parse(settings.text("simulate"));
  if (!spec.ok()) return absl::OkStatus();
  const auto refuse = [&settings](const char* why) {
    return invalid(settings.describe("simulate"), why);
  };
  if (has("cpu") && spec->device) {
    return refuse(
        " and --cpu exclude each other: the ranks of this cluster compute on the devices that it "
        "names; leave --cpu out, or name no device, as in 2x4");
  }
  if (has("tpu") && (!spec->device || spec->device->family != "tpu")) {
    return refuse(
        " and --tpu exclude each other: this cluster has no TPUs; leave --tpu out, or name some, "
        "as in tpu-v4:2x2x1");
  }
  return absl::OkStatus();
}

// What a run is made from.
struct Inputs {
  Settings settings;
  settings::Machine machine;
  settings::Job job;
};

// Errors: what is wrong with the command line, the configuration file or the environment.
absl::StatusOr<Inputs> inputs(const TypedFlags& typed, const Invocation& invocation) {
  Inputs inputs;
  ACCELERATE_ASSIGN_OR_RETURN(inputs.settings, launch_settings(typed, invocation.environment));
  ACCELERATE_RETURN_IF_ERROR(settings::check_status(inputs.settings));
  ACCELERATE_RETURN_IF_ERROR(check_devices(inputs.settings));
  // A simulated cluster is not a part of the job that it is started in.
  if (!inputs.settings.is_set("simulate")) {
    ACCELERATE_ASSIGN_OR_RETURN(inputs.job, settings::find_job(invocation.environment));
  }
  inputs.machine = settings::this_machine(invocation.environment);
  ACCELERATE_RETURN_IF_ERROR(settings::complete(inputs.settings, inputs.machine, inputs.job));
  ACCELERATE_RETURN_IF_ERROR(check_ranks(inputs.settings, inputs.job));
  return inputs;
}

absl::StatusOr<LaunchPlan> plan_of(const Inputs& inputs, const TypedFlags& typed,
                                   const Invocation& invocation) {
  const std::vector<std::string> typed_options = settings::typed_words(typed);
  // The loader comes with this program; elsewhere PATH has to have it.
  const std::string loader = companion_path(invocation.executable, kModuleLoader);
  return plan::make_plan(
      {.settings = inputs.settings,
       .machine = inputs.machine,
       .job = inputs.job,
       .command = invocation.program,
       .environment = invocation.environment,
       .typed_options = typed_options,
       .module_loader = settings::file_exists(loader) ? loader : kModuleLoader,
       .executable = invocation.executable.empty() ? "accelerate" : invocation.executable});
}

bool has_program(const Invocation& invocation) {
  return !invocation.program.empty() && !invocation.program[0].empty();
}

int fail_without_program(Invocation& invocation) {
  return refuse(invocation, kName,
                "no program given; usage: accelerate launch [OPTIONS] PROGRAM [ARGS...]");
}

// The program on several clusters. Each run's settings are the others with another cluster.
int run_on_clusters(const TypedFlags& typed, Invocation& invocation) {
  const char* const name = typed.contains("sweep") ? "sweep" : "fit";
  for (const char* other : {"fit", "simulate", "seeds", "print_config", "dry_run"}) {
    if (other != std::string_view(name) && typed.contains(other)) {
      return refuse(invocation, kName,
                    absl::StrCat("--", name, " and --", other, " exclude each other"));
    }
  }
  if (!has_program(invocation)) return fail_without_program(invocation);
  TypedFlags one_run = typed;
  const auto take = [&](const char* flag) {
    const auto node = one_run.extract(flag);
    return node.empty() ? std::string() : node.mapped().back();
  };
  ClusterSweep sweep = {
      .clusters = take("sweep"), .largest = take("fit"), .plan = nullptr, .csv = take("csv")};
  if (const auto report = typed.find("report"); report != typed.end()) {
    sweep.report = report->second.back();
  }
  if (const std::string tokens = take("tokens_per_sample");
      !tokens.empty() &&
      (!absl::SimpleAtoi(tokens, &sweep.tokens_per_sample) || sweep.tokens_per_sample < 1)) {
    return refuse(invocation, kName,
                  absl::StrCat("--tokens_per_sample=", tokens, ": expected at least 1"));
  }
  sweep.plan = [&](const std::string& cluster) -> absl::StatusOr<plan::SimulationPlan> {
    TypedFlags simulated = one_run;
    simulated["simulate"] = {cluster};
    ACCELERATE_ASSIGN_OR_RETURN(const Inputs made, inputs(simulated, invocation));
    ACCELERATE_ASSIGN_OR_RETURN(LaunchPlan plan, plan_of(made, simulated, invocation));
    return std::get<plan::SimulationPlan>(std::move(plan.action));
  };
  return run_sweep(sweep, invocation);
}

int run(const Options& options, Invocation& invocation) {
  if (options.help_markdown) {
    invocation.out << settings::options_markdown();
    return finish(invocation);
  }
  if (options.typed.contains("sweep") || options.typed.contains("fit")) {
    return run_on_clusters(options.typed, invocation);
  }
  const absl::StatusOr<Inputs> made = inputs(options.typed, invocation);
  if (!made.ok()) return fail(invocation, kName, made.status(), kExitBadCommandLine);
  const Settings& settings = made->settings;
  if (!settings.flag("quiet")) note(invocation, settings.notes());
  if (settings.flag("print_config")) {
    invocation.out << settings.to_text(options.print_all);
    return finish(invocation);
  }
  if (!has_program(invocation)) return fail_without_program(invocation);
  const absl::StatusOr<LaunchPlan> plan = plan_of(*made, options.typed, invocation);
  if (!plan.ok()) return fail_or_refuse(invocation, kName, plan.status());
  if (!settings.flag("quiet")) {
    note(invocation, plan->notes);
    for (const std::string& idle :
         {settings::note_on_mesh(settings), settings::note_on_semantics(settings)}) {
      if (!idle.empty()) note(invocation, {idle});
    }
    const std::string defaults = settings::note_on_defaults(settings);
    if (invocation.is_interactive && !defaults.empty()) {
      note(invocation, {absl::StrCat("using defaults for ", defaults,
                                     "; set them with flags or `accelerate config`")});
    }
  }
  if (settings.flag("dry_run")) {
    invocation.out << plan::to_text(*plan) << settings::mesh_text(settings)
                   << settings::pipeline_text(settings).value_or("");
    return finish(invocation);
  }
  if (settings.is_set("seeds")) {
    if (settings.is_set("report")) {
      const absl::Status ok = prepare_report(settings.text("report"));
      if (!ok.ok()) return fail(invocation, kName, ok);
    }
    return run_seeds({.plan = std::get<plan::SimulationPlan>(plan->action),
                      .seeds = *settings::parse_seeds(settings.text("seeds")),
                      .is_quiet = settings.flag("quiet")},
                     invocation);
  }
  return carry_out(invocation, *plan, settings.flag("quiet"));
}

void declare(CLI::App& app, Options& options) {
  app.usage("Usage: accelerate launch [OPTIONS] PROGRAM [ARGS...]");
  app.footer(
      "Everything after PROGRAM belongs to the program. Option names may be spelt with _ or -.\n"
      "A flag wins over the configuration file, that over the environment, that over the default.\n"
      "Exit code: the first failing rank's own; 128+N after signal N; 2 for a bad command line;\n"
      "126 if PROGRAM cannot be executed, 127 if it is not found; 1 if the launcher itself fails.");
  settings::declare_flags(app, options.typed);
  app.add_flag("--help_markdown", options.help_markdown, "")->group("");
  app.add_flag("--print_config_all", options.print_all, "")->group("");
  add_value(app, "PROGRAM", options.program, "", "the program and its arguments");
}

}  // namespace

absl::StatusOr<Settings> launch_settings(const TypedFlags& typed,
                                         absl::Span<const std::string> environment) {
  std::optional<ConfigFile> config;
  std::string path;
  if (const auto named = typed.find("config_file"); named != typed.end()) {
    path = named->second.back();
  } else if (!typed.contains("cpu") && !typed.contains("no_default_config") &&
             process::environment_value(environment, kNoDefaultConfig).empty()) {
    std::error_code ignored;
    path = settings::found_default_config(environment);
    if (!std::filesystem::is_regular_file(path, ignored)) path.clear();
  }
  if (!path.empty()) {
    ACCELERATE_ASSIGN_OR_RETURN(config, settings::load_config_file(path));
  }
  return Settings::resolve(typed, config ? &*config : nullptr, environment);
}

absl::StatusOr<int> ranks_of_cluster(const std::string& text) {
  ACCELERATE_ASSIGN_OR_RETURN(const simulator::ClusterSpec cluster,
                              simulator::ClusterSpec::parse(text));
  ACCELERATE_RETURN_IF_ERROR(simulator::internal::check_devices(cluster, text));
  return cluster.world_size();
}

absl::Status check_ranks(const Settings& settings, const settings::Job& job) {
  if (!settings.is_set("simulate")) {
    // Slurm counts the ranks of a job's script anew, and mpirun those of its hostfile.
    const bool is_counted = job.kind == settings::JobKind::kNone && !settings.is_sagemaker() &&
                            !settings.is_set("mpirun_hostfile");
    return is_counted ? settings::check_mesh_size(settings, settings.number("num_processes"))
                      : absl::OkStatus();
  }
  const absl::StatusOr<int> ranks = ranks_of_cluster(settings.text("simulate"));
  if (ranks.ok()) return settings::check_mesh_size(settings, *ranks);
  return invalid(settings.describe("simulate"), ": ", ranks.status().message());
}

const Command kLaunch = {kName, "Start a program once per rank and look after the ranks.",
                         with_options<declare, run>};

absl::Status update_variable_file(const std::string& path, const std::vector<std::string>& lines) {
  std::set<std::string> names;
  for (const std::string& line : lines) names.insert(line.substr(0, line.find('=')));
  std::string text;
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) {
    if (!names.contains(line.substr(0, line.find('=')))) absl::StrAppend(&text, line, "\n");
  }
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
  return process::replace_file(path, text, 0600);
}

}  // namespace accelerate::launcher::commands
