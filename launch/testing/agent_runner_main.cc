// Runs an agent with options that a test spells out: NAME=VALUE words, then `--` and the command.
// The launcher's own flags are tested where they are parsed.

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "launch/agent/agent.h"

namespace accelerate::launcher::agent {
namespace {

int number(const std::string& text) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    std::cerr << "agent_runner: " << text << " is not a number\n";
    std::exit(64);
  }
  return value;
}

StreamsByRank streams(const std::string& text) {
  return {.fallback = static_cast<Streams>(number(text))};
}

void set(AgentOptions& options, const std::string& name, const std::string& value) {
  if (name == "rendezvous") {
    options.rendezvous = value == "static" ? RendezvousKind::kStatic : RendezvousKind::kElastic;
  } else if (name == "processes") {
    options.processes_per_node = number(value);
  } else if (name == "nodes") {
    const std::vector<std::string> ends = absl::StrSplit(value, ':');
    options.min_nodes = number(ends.front());
    options.max_nodes = number(ends.back());
  } else if (name == "node_rank") {
    options.node_rank = number(value);
  } else if (name == "host") {
    options.endpoint_host = value;
  } else if (name == "port") {
    options.endpoint_port = static_cast<uint16_t>(number(value));
  } else if (name == "run_id") {
    options.run_id = value;
  } else if (name == "max_restarts") {
    options.max_restarts = number(value);
  } else if (name == "log_dir") {
    options.log_dir = value;
  } else if (name == "redirects") {
    options.redirects = streams(value);
  } else if (name == "tee") {
    options.tee = streams(value);
  } else if (name == "only") {
    for (const std::string& rank : std::vector<std::string>(absl::StrSplit(value, ','))) {
      options.local_ranks_filter.insert(number(rank));
    }
  } else if (name == "devices") {
    options.devices_needed = number(value);
  } else if (name == "quiet") {
    options.quiet = value == "1";
  } else if (name == "preflight") {
    options.preflight = value == "1";
  } else if (name == "kill_grace_ms") {
    options.kill_grace = absl::Milliseconds(number(value));
  } else {
    options.rdzv_conf[name] = value;
  }
}

int run(int argc, char** argv) {
  AgentOptions options;
  int i = 1;
  for (; i < argc && std::string(argv[i]) != "--"; ++i) {
    const std::vector<std::string> pair = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    set(options, pair.front(), pair.back());
  }
  for (++i; i < argc; ++i) options.command.emplace_back(argv[i]);
  std::vector<std::string> environment;
  for (char** word = environ; *word != nullptr; ++word) environment.emplace_back(*word);
  const absl::StatusOr<int> exit_code = run_agent(options, environment);
  if (exit_code.ok()) return *exit_code;
  std::cerr << "accelerate launch: " << exit_code.status().message() << "\n";
  return 1;
}

}  // namespace
}  // namespace accelerate::launcher::agent

int main(int argc, char** argv) { return accelerate::launcher::agent::run(argc, argv); }
