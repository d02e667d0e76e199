// `accelerate env`: the facts about the machine that a bug report needs.
//
// Mirrors: accelerate commands/env.py.
// Differs: compiler, build and MPI stand for Python and NumPy; missing parts are listed as such;
//          LibTorch is the one that the installed self-test links.

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/version.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/estimate/architecture.h"
#include "launch/settings/config_file.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "env";
constexpr char kNotFound[] = "not found";

// What the programs of this installation are made of, as far as it can be found out.
struct Libraries {
  std::string libtorch;  // its version; empty: not found
  std::string file;      // of libtorch_cpu
  /// The program that links it, or why it was not loaded; may be empty.
  std::string linked_by;
  std::string error;
  /// The backends of collectives, sorted; unset: unknown.
  std::optional<std::vector<std::string>> backends;
  std::string hwloc;  // its version; empty: unknown
};

// LibTorch is that of the programs of this installation; without one, what the machine has. The
// backends and hwloc are those that the self-test says it has.
Libraries find_libraries(const Invocation& invocation) {
  Libraries found;
  const std::string program = companion_path(invocation.executable, kSelfTest);
  if (const std::string file = linked_library(program, "libtorch_cpu.so"); !file.empty()) {
    found.file = file;
    found.linked_by = program;
  } else {
    const LibraryProbe probe = probe_torch_library("libtorch_cpu.so", invocation.environment);
    found.file = probe.path;
    if (!probe.is_loadable) found.error = probe.error;
  }
  found.libtorch = libtorch_version(found.file);
  const auto said = output_of({program, kSelfTestVersions});
  const nlohmann::json versions =
      accelerate::internal::parse_json(said.value_or(""), /*allow_exceptions=*/false);
  if (versions.is_object()) {
    found.libtorch = versions.value("libtorch", found.libtorch);
    found.backends = versions.value("backends", std::vector<std::string>());
    found.hwloc = versions.value("hwloc", found.hwloc);
  }
  return found;
}

std::string libtorch_text(const Libraries& libraries) {
  if (libraries.file.empty()) return kNotFound;
  if (!libraries.error.empty()) {
    return absl::StrCat("not loadable: ", libraries.file, ": ", libraries.error);
  }
  return absl::StrCat(
      libraries.libtorch.empty() ? "unknown" : libraries.libtorch, " (", libraries.file,
      libraries.linked_by.empty() ? "" : absl::StrCat(", which ", libraries.linked_by, " links"),
      ")");
}

std::string unknown_text() {
  return absl::StrCat("unknown: ", kSelfTest, ", which comes with this program, does not run");
}

std::string backends_text(const Libraries& libraries) {
  return libraries.backends ? absl::StrJoin(*libraries.backends, ", ") : unknown_text();
}

std::string hwloc_text(const Libraries& libraries) {
  return libraries.hwloc.empty() ? unknown_text() : absl::StrCat("API ", libraries.hwloc);
}

std::string mpi_text() {
  for (const char* program : {"mpirun", "mpiexec"}) {
    const std::optional<std::string> said = output_of({program, "--version"});
    if (said) {
      return std::string(absl::StripAsciiWhitespace(said->substr(0, said->find('\n'))));
    }
  }
  return kNotFound;
}

// The lines of a configuration, each after a tab and a dash; or what is wrong with it.
std::string config_text(const std::string& path) {
  const absl::StatusOr<settings::ConfigFile> config = settings::load_config_file(path);
  if (absl::IsNotFound(config.status())) return absl::StrCat(" ", kNotFound, " (", path, ")\n");
  if (!config.ok()) return absl::StrCat(" ", config.status().message(), "\n");
  std::string text = absl::StrCat(" (", path, ")\n");
  for (absl::string_view line :
       absl::StrSplit(settings::config_to_yaml(*config), '\n', absl::SkipWhitespace())) {
    absl::StrAppend(&text, "\t- ", line, "\n");
  }
  return text;
}

// The same facts for programs. What is unknown or not there is null.
nlohmann::ordered_json json_report(const std::string& config_path, const Libraries& libraries,
                                   const Invocation& invocation) {
  using Json = nlohmann::ordered_json;
  const auto known = [](const std::string& text) {
    return text.empty() || text == kNotFound ? Json() : Json(text);
  };
  Json report = {{"version", kAccelerateVersion},
                 {"platform", platform_text()},
                 {"executable", invocation.executable},
                 {"compiler", compiler_text()},
                 {"build", build_options_text()}};
  report["libtorch"] = {{"version", known(libraries.libtorch)},
                        {"file", known(libraries.file)},
                        {"linked_by", known(libraries.linked_by)},
                        {"error", known(libraries.error)}};
  report["backends"] = libraries.backends ? Json(*libraries.backends) : Json();
  report["mpi"] = known(mpi_text());
  report["hwloc"] = libraries.hwloc.empty() ? Json() : Json(hwloc_text(libraries));
  report["memory_bytes"] = static_cast<int64_t>(memory_bytes());
  report["cpu"] = cpu_text();
  report["devices"] = device_texts();
  const absl::StatusOr<settings::ConfigFile> config = settings::load_config_file(config_path);
  report["config"] = {{"file", config_path}, {"values", Json()}, {"error", Json()}};
  if (config.ok()) {
    report["config"]["values"] = config->values;
  } else if (!absl::IsNotFound(config.status())) {
    report["config"]["error"] = std::string(config.status().message());
  }
  return report;
}

struct Options {
  std::string config_file;
  bool json = false;
};

int run(const Options& options, Invocation& invocation) {
  const Libraries libraries = find_libraries(invocation);
  const std::string config_path = options.config_file.empty()
                                      ? settings::found_default_config(invocation.environment)
                                      : options.config_file;
  std::ostream& out = invocation.out;
  if (options.json) {
    // Text of the machine's may be in any encoding.
    out << json_text(json_report(config_path, libraries, invocation), 2) << "\n";
    return finish(invocation);
  }
  const std::vector<std::string> devices = device_texts();
  out << "Copy this into your bug report:\n\n"
      << "- `Accelerate` version: " << kAccelerateVersion << "\n"
      << "- Platform: " << platform_text() << "\n"
      << "- `accelerate` executable: " << invocation.executable << "\n"
      << "- Compiler: " << compiler_text() << "\n"
      << "- Build: " << build_options_text() << "\n"
      << "- LibTorch version: " << libtorch_text(libraries) << "\n"
      << "- Backends: " << backends_text(libraries) << "\n"
      << "- MPI: " << mpi_text() << "\n"
      << "- hwloc: " << hwloc_text(libraries) << "\n"
      << "- System RAM: " << estimate::bytes_text(memory_bytes()) << "\n"
      << "- CPU: " << cpu_text() << "\n"
      << "- Devices: " << (devices.empty() ? "none" : absl::StrJoin(devices, ", ")) << "\n"
      << "- `Accelerate` " << (options.config_file.empty() ? "default config:" : "config passed:")
      << config_text(config_path) << std::flush;
  return finish(invocation);
}

void declare(CLI::App& app, Options& options) {
  add_value(app, "--config_file", options.config_file, "PATH",
            "the configuration to show, not the default one");
  app.add_flag("--json", options.json, "print one JSON object, for programs");
}

}  // namespace

std::string version_text(const Invocation& invocation) {
  const Libraries libraries = find_libraries(invocation);
  return absl::StrCat("accelerate ", kAccelerateVersion, "\nLibTorch ", libtorch_text(libraries),
                      "\nBackends: ", backends_text(libraries), "\n");
}

const Command kEnv = {kName, "Print versions, machine and configuration for a bug report.",
                      with_options<declare, run>};

}  // namespace accelerate::launcher::commands
