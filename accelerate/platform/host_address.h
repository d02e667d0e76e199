/// Names and addresses of machines, as people and tools write them.
///
/// Errors:  InvalidArgument with the text that was given, and how it is written.
/// Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// Whether the text can be a machine's name, or its address: "node-7", "10.0.0.1", "fe80::1%eth0".
/// An address has neither brackets nor a port.
absl::Status check_host(absl::string_view text);

namespace internal {

/// The parts of check_host, for texts that have more than a host. `given`: the text that has the
/// name.
absl::Status check_blanks(absl::string_view text);
absl::Status check_host_name(absl::string_view name, absl::string_view given);
/// Also with the interface of a link-local one, as in fe80::1%eth0.
bool is_ipv6_address(absl::string_view text);

}  // namespace internal
}  // namespace accelerate
