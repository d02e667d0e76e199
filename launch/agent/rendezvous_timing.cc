#include "launch/agent/rendezvous_timing.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "launch/settings/value_text.h"

namespace accelerate::launch::agent {

absl::StatusOr<RendezvousTiming> rendezvous_timing(
    const std::map<std::string, std::string>& pairs) {
  RendezvousTiming timing;
  const std::map<std::string, absl::Duration*> durations = {
      {"timeout", &timing.join_timeout},
      {"join_timeout", &timing.join_timeout},
      {"last_call_timeout", &timing.last_call_timeout},
      {"close_timeout", &timing.close_timeout},
      {"read_timeout", &timing.read_timeout},
      {"keep_alive_interval", &timing.keep_alive_interval}};
  for (const auto& [key, value] : pairs) {
    const auto bad = [&](const char* wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv_conf ", key, "=", value, " is not ", wanted));
    };
    if (const auto found = durations.find(key); found != durations.end()) {
      double seconds = 0;
      // Four months; what is longer is a typing error, and infinity no time at all.
      constexpr double kMost = 1e7;
      if (!absl::SimpleAtod(value, &seconds) || !(seconds >= 0) || seconds > kMost) {
        return bad("a number of seconds");
      }
      *found->second = absl::Seconds(seconds);
    } else if (key == "keep_alive_max_attempt") {
      if (!absl::SimpleAtoi(value, &timing.keep_alive_max_attempt) ||
          timing.keep_alive_max_attempt < 1) {
        return bad("a count of at least 1");
      }
    } else if (key == "is_host") {
      bool is_host = false;
      if (!absl::SimpleAtob(value, &is_host)) return bad("true or false");
      timing.is_host = is_host;
    } else if (key != "rank" && key != "store_type") {
      std::vector<std::string> keys = {"keep_alive_max_attempt", "is_host"};
      for (const auto& [name, duration] : durations) keys.push_back(name);
      std::sort(keys.begin(), keys.end());
      return absl::InvalidArgumentError(absl::StrCat("--rdzv_conf: unknown key ", key,
                                                     did_you_mean(key, keys),
                                                     "; known keys: ", absl::StrJoin(keys, ", ")));
    }
  }
  if (timing.keep_alive_interval <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--rdzv_conf keep_alive_interval has to be above 0");
  }
  return timing;
}

}  // namespace accelerate::launch::agent
