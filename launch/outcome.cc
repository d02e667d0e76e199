#include "launch/outcome.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace accelerate::launch {

std::string describe(const RankExit& exit) {
  std::string who = absl::StrCat("rank ", exit.rank, " (pid ", exit.pid, ")");
  if (exit.signal != 0) return absl::StrCat(who, " was killed by ", describe_signal(exit.signal));
  return absl::StrCat(who, " exited with code ", exit.code);
}

std::string describe_signal(int signal) {
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

}  // namespace accelerate::launch
