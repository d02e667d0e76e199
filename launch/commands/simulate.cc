// `accelerate simulate SPEC [OPTIONS] PROGRAM [ARGS...]`: launch on a simulated cluster.
//
// `expand_arguments` makes `launch --simulate SPEC ...` of it; this file has its help and the error
// for a missing SPEC.

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "launch/commands/commands.h"

namespace accelerate::launch::commands {
namespace {

constexpr char kName[] = "simulate";

RunCommand declare(CLI::App& app) {
  app.usage("Usage: accelerate simulate SPEC [OPTIONS] PROGRAM [ARGS...]");
  app.footer(
      "The same as accelerate launch --simulate SPEC [OPTIONS] PROGRAM [ARGS...]; its options are\n"
      "launch's. SPEC is nodes x devices and their kind: 2x4, 2x4:h100.");
  app.allow_extras();
  return [](Invocation& invocation) {
    return fail(invocation, kName,
                absl::InvalidArgumentError("the cluster comes first: accelerate simulate SPEC "
                                           "[OPTIONS] PROGRAM [ARGS...], as in 2x4:h100"),
                kExitBadCommandLine);
  };
}

}  // namespace

const Command kSimulate = {kName, "Start a program on a simulated cluster.", declare};

}  // namespace accelerate::launch::commands
