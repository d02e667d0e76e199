#include "launch/commands/arguments.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace accelerate::launch {
namespace {

constexpr const char* kLinks[] = {"accelerate-config", "accelerate-estimate-memory",
                                  "accelerate-launch", "accelerate-merge-weights"};

}  // namespace

absl::Span<const char* const> link_names() { return kLinks; }

std::vector<std::string> expand_arguments(absl::string_view argv0,
                                          absl::Span<const std::string> args) {
  std::vector<std::string> expanded;
  absl::string_view program = argv0.substr(argv0.rfind('/') + 1);
  for (const absl::string_view link : kLinks) {
    if (program != link) continue;
    absl::ConsumePrefix(&program, "accelerate-");
    expanded.emplace_back(program);
  }
  expanded.insert(expanded.end(), args.begin(), args.end());
  // Anything else that begins with `simulate` is a question about it, or a mistake.
  if (expanded.size() > 1 && expanded[0] == "simulate" && !expanded[1].empty() &&
      expanded[1][0] != '-') {
    expanded[0] = "launch";
    expanded.insert(expanded.begin() + 1, "--simulate");
  }
  return expanded;
}

}  // namespace accelerate::launch
