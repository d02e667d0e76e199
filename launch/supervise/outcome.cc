#include "launch/supervise/outcome.h"

#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace accelerate::launch::supervise {

std::string describe(const RankExit& exit) {
  std::string who = absl::StrCat("rank ", exit.rank, " (pid ", exit.pid, ", local rank ",
                                 exit.local_rank, " on ", host_name(), ")");
  if (exit.signal != 0) return absl::StrCat(who, " was killed by ", describe_signal(exit.signal));
  return absl::StrCat(who, " exited with code ", exit.code);
}

std::string describe_signal(int signal) {
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "this machine";
  return name;
}

}  // namespace accelerate::launch::supervise
