/// Names and addresses of machines, and the place of a rendezvous, as people and tools write them.
///
/// Errors:  InvalidArgument with the text that was given, why it cannot be, and how it is written.
/// Threads: pure functions.
/// Mirrors: nothing; torch.distributed's parse_rendezvous_endpoint takes more for an address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/host_address.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher::settings {

struct Endpoint {
  /// A name or an address; IPv6 without brackets. Empty: not set.
  std::string host;
  std::optional<uint16_t> port;
};

using accelerate::check_host;

/// What `fe80::1:2` is, which reads as an address and as an address with a port.
enum class Ambiguous { kRefused, kAddress };

/// "h", "h:1", "10.0.0.1:1", "[::1]:1", "[::1]", "::1". An IPv6 address with a port has brackets.
absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text,
                                        Ambiguous ambiguous = Ambiguous::kRefused);

/// The endpoint from --rdzv_endpoint, else from --main_process_ip and --main_process_port. Errors
/// also where two of them contradict each other.
absl::StatusOr<Endpoint> endpoint_of(const Settings& settings);

}  // namespace accelerate::launcher::settings
