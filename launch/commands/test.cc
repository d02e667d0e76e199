// `accelerate test`: starts the self-test program with the configuration that a training would
// have.
//
// Mirrors: accelerate commands/test.py.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/process/child_process.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "test";

struct Options {
  std::string config_file;
  std::vector<std::string> launch_words;
};

int run(const Options& options, Invocation& invocation) {
  const absl::StatusOr<std::string> program = find_companion(invocation, "self-test", kSelfTest);
  if (!program.ok()) return fail_to_start(invocation, kName, program.status());
  std::vector<std::string> line = {invocation.executable, "launch"};
  if (!options.config_file.empty()) {
    line.insert(line.end(), {"--config_file", options.config_file});
  }
  line.insert(line.end(), options.launch_words.begin(), options.launch_words.end());
  line.push_back(*program);
  const absl::StatusOr<int> exit_code = process::run_program(line, invocation.environment);
  if (!exit_code.ok()) return fail(invocation, kName, exit_code.status());
  if (*exit_code != 0) {
    return fail(invocation, kName,
                absl::StrCat("the self-test failed with exit code ", *exit_code, "; see above"),
                *exit_code);
  }
  invocation.out << "The self-test passed: this configuration is ready for training.\n";
  return finish(invocation);
}

void declare(CLI::App& app, Options& options) {
  app.footer("Words after -- are options of accelerate launch: accelerate test -- --simulate 2x4");
  add_value(app, "--config_file", options.config_file, "PATH", "the configuration to test with");
  add_value(app, "launch_options", options.launch_words, "",
            "options of accelerate launch, after --");
}

}  // namespace

const Command kTest = {kName, "Test a configuration with a small training.",
                       with_options<declare, run>};

}  // namespace accelerate::launcher::commands
