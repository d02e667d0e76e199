/// The rendezvous endpoint from the settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"

namespace accelerate::launch::plan {

/// The default port.
inline constexpr uint16_t kUsualPort = 29500;

struct Endpoint {
  /// A name or an address; IPv6 without brackets. Empty: not set.
  std::string host;
  std::optional<uint16_t> port;
};

/// "h", "h:1", "[::1]:1", "::1".
/// Errors: InvalidArgument for a bad port.
absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text);

/// The port of a run on one machine: 0, any free one, in place of one that is in use, with a note.
uint16_t free_or_any(uint16_t port, const settings::Machine& machine,
                     std::vector<std::string>* notes);

/// The endpoint from --rdzv_endpoint, else from --main_process_ip and --main_process_port.
absl::StatusOr<Endpoint> endpoint_of(const settings::Settings& settings);

}  // namespace accelerate::launch::plan
