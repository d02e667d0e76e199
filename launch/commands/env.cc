// `accelerate env`: the facts about the machine that a bug report needs.
//
// Mirrors: accelerate commands/env.py.
// Differs: compiler, build and MPI stand for Python and NumPy; missing parts are listed as such;
//          LibTorch is the one that the installed self-test links.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/version.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/estimate/architecture.h"
#include "launch/settings/config_file.h"

namespace accelerate::launch::commands {
namespace {

constexpr char kName[] = "env";
constexpr char kNotFound[] = "not found";

// That of the programs of this installation; without one, what the machine has.
std::string libtorch_text(const Invocation& invocation) {
  const std::string program = companion_path(invocation.executable, kSelfTest);
  if (const std::string file = linked_library(program, "libtorch_cpu.so"); !file.empty()) {
    const std::string version = libtorch_version(file);
    return absl::StrCat(version.empty() ? "unknown" : version, " (", file, ", which ", program,
                        " links)");
  }
  const LibraryProbe probe = probe_torch_library("libtorch_cpu.so", invocation.environment);
  if (!probe.is_loadable) {
    return probe.path.empty() ? kNotFound
                              : absl::StrCat("not loadable: ", probe.path, ": ", probe.error);
  }
  const std::string version = libtorch_version(probe.path);
  return absl::StrCat(version.empty() ? "unknown" : version, " (", probe.path, ")");
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

std::string hwloc_text() {
  void* library = dlopen("libhwloc.so.15", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return kNotFound;
  const auto version = reinterpret_cast<unsigned (*)()>(dlsym(library, "hwloc_get_api_version"));
  std::string text = "unknown";
  if (version != nullptr) {
    const unsigned number = version();
    text = absl::StrCat("API ", number >> 16, ".", number >> 8 & 0xFF, ".", number & 0xFF);
  }
  dlclose(library);
  return text;
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

int run(const std::string& config_file, Invocation& invocation) {
  const std::vector<std::string> devices = device_texts();
  std::ostream& out = invocation.out;
  out << "Copy this into your report:\n\n"
      << "- `Accelerate` version: " << kAccelerateVersion << "\n"
      << "- Platform: " << platform_text() << "\n"
      << "- `accelerate` executable: " << invocation.executable << "\n"
      << "- Compiler: " << compiler_text() << "\n"
      << "- Build: " << build_options_text() << "\n"
      << "- LibTorch version: " << libtorch_text(invocation) << "\n"
      << "- MPI: " << mpi_text() << "\n"
      << "- hwloc: " << hwloc_text() << "\n"
      << "- System RAM: " << estimate::bytes_text(memory_bytes()) << "\n"
      << "- CPU: " << cpu_text() << "\n"
      << "- Devices: " << (devices.empty() ? "none" : absl::StrJoin(devices, ", ")) << "\n"
      << "- `Accelerate` " << (config_file.empty() ? "default config:" : "config passed:")
      << config_text(config_file.empty() ? settings::found_default_config(invocation.environment)
                                         : config_file)
      << std::flush;
  return finish(invocation);
}

RunCommand declare(CLI::App& app) {
  auto config_file = std::make_shared<std::string>();
  app.add_option("--config_file", *config_file, "the configuration to show, not the default one")
      ->type_name("PATH");
  return [config_file](Invocation& invocation) { return run(*config_file, invocation); };
}

}  // namespace

const Command kEnv = {kName, "Print versions, machine and configuration for a report.", declare};

}  // namespace accelerate::launch::commands
