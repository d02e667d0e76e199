#include "launch/commands/invocation.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launch {

std::optional<std::string> variable(const Invocation& invocation, absl::string_view name) {
  const std::string prefix = absl::StrCat(name, "=");
  for (const std::string& word : invocation.environment) {
    if (absl::StartsWith(word, prefix)) return word.substr(prefix.size());
  }
  return std::nullopt;
}

int fail(Invocation& invocation, absl::string_view command, const absl::Status& status,
         int exit_code) {
  invocation.err << "accelerate " << command << ": " << status.message() << std::endl;
  return exit_code;
}

int finish(Invocation& invocation) {
  invocation.out.flush();
  return invocation.out ? 0 : kExitLauncherFailed;
}

}  // namespace accelerate::launch
