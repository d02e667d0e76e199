/// `accelerate perf bench PROGRAM [ARGS...] --pair BASE`: two builds of a Google Benchmark program,
/// measured in turn.
///
/// Threads: the main thread.
#pragma once

#include "launch/commands/commands.h"

namespace accelerate::launcher::commands {

/// A command below another one.
struct Subcommand {
  const CLI::App* app;  ///< knows whether it was parsed
  RunCommand run;
};

/// Declares it below `perf`, which owns `app`.
Subcommand declare_bench(CLI::App& perf);

}  // namespace accelerate::launcher::commands
