/// DeepSpeed's file of machines, and the filters on it.
///
/// A line names a machine and its slots, `worker-1 slots=4`; `#` begins a comment. A filter names
/// machines, and slots of them: `worker-1@worker-2:0,2`.
/// Errors:  InvalidArgument naming the line or the part of the filter.
/// Threads: pure functions.
/// Mirrors: the hostfile of deepspeed/launcher/runner.py.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::launch::plan {

/// Machines in the order of the file, with the numbers of their slots.
using Hosts = std::vector<std::pair<std::string, std::vector<int>>>;

absl::StatusOr<Hosts> parse_hostfile(absl::string_view text);

/// What is left: only what `include` names, or all but what `exclude` names; at most one of them
/// may be there. A machine of which no slot is left is left out.
absl::StatusOr<Hosts> filter_hosts(const Hosts& hosts, absl::string_view include,
                                   absl::string_view exclude);

}  // namespace accelerate::launch::plan
