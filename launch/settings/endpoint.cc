#include "launch/settings/endpoint.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/host_address.h"

namespace accelerate::launcher::settings {
namespace {

template <typename... Parts>
absl::Status bad(absl::string_view text, const Parts&... parts) {
  return invalid("\"", text, "\" ", parts...);
}

bool all_digits(absl::string_view text) {
  return !text.empty() && std::ranges::all_of(text, absl::ascii_isdigit);
}

std::optional<uint16_t> port_of(absl::string_view text) {
  int number = 0;
  if (!all_digits(text) || !absl::SimpleAtoi(text, &number) || number > UINT16_MAX) {
    return std::nullopt;
  }
  return static_cast<uint16_t>(number);
}

// Reads a text with several colons and without brackets.
absl::StatusOr<Endpoint> parse_unbracketed(absl::string_view text, Ambiguous ambiguous) {
  const size_t last = text.rfind(':');
  const absl::string_view head = text.substr(0, last);
  const absl::string_view tail = text.substr(last + 1);
  const bool has_port = all_digits(tail) && internal::is_ipv6_address(head);
  const std::string with_port = absl::StrCat("[", head, "]:", tail);
  if (!internal::is_ipv6_address(text)) {
    if (has_port) {
      return bad(text, "is an IPv6 address with a port, which needs brackets: ", with_port);
    }
    return bad(text, "is neither HOST:PORT nor an IPv6 address, as in [fe80::1%eth0]:29500");
  }
  if (has_port && ambiguous == Ambiguous::kRefused) {
    return bad(text, "is an IPv6 address, or one with a port: write [", text, "] or ", with_port);
  }
  return Endpoint{std::string(text), std::nullopt};
}

absl::StatusOr<Endpoint> parse_bracketed(absl::string_view text) {
  const size_t close = text.find(']');
  if (close == absl::string_view::npos) return bad(text, "has a bracket that is not closed");
  const absl::string_view host = text.substr(1, close - 1);
  if (!internal::is_ipv6_address(host)) {
    return bad(text, "has no IPv6 address in its brackets, as in [fe80::1%eth0]:29500");
  }
  Endpoint endpoint{std::string(host), std::nullopt};
  absl::string_view rest = text.substr(close + 1);
  if (rest.empty()) return endpoint;
  if (!absl::ConsumePrefix(&rest, ":")) return bad(text, "is not [ADDRESS]:PORT");
  endpoint.port = port_of(rest);
  if (!endpoint.port) return bad(text, "has no port from 0 to 65535 after its last colon");
  return endpoint;
}

}  // namespace

absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text, Ambiguous ambiguous) {
  ACCELERATE_RETURN_IF_ERROR(internal::check_blanks(text));
  if (absl::StartsWith(text, "[")) return parse_bracketed(text);
  const auto colons = std::ranges::count(text, ':');
  if (colons > 1) return parse_unbracketed(text, ambiguous);
  Endpoint endpoint{std::string(text.substr(0, text.find(':'))), std::nullopt};
  if (endpoint.host.empty()) return bad(text, "names no machine: expected HOST:PORT");
  ACCELERATE_RETURN_IF_ERROR(internal::check_host_name(endpoint.host, text));
  if (colons == 0) return endpoint;
  endpoint.port = port_of(text.substr(text.find(':') + 1));
  if (!endpoint.port) return bad(text, "has no port from 0 to 65535 after its colon");
  return endpoint;
}

absl::StatusOr<Endpoint> endpoint_of(const Settings& settings) {
  const bool has_endpoint = settings.is_set("rdzv_endpoint");
  const char* name = has_endpoint ? "rdzv_endpoint" : "main_process_ip";
  const bool has_port =
      settings.is_set("main_process_port") && !settings.text("main_process_port").empty();
  const uint16_t port = static_cast<uint16_t>(settings.number("main_process_port"));
  Endpoint endpoint;
  if (const std::string text = settings.text(name); has_endpoint || !text.empty()) {
    const Ambiguous ambiguous = has_endpoint ? Ambiguous::kRefused : Ambiguous::kAddress;
    ACCELERATE_ASSIGN_OR_RETURN(endpoint,
                                in_file(settings.describe(name), parse_endpoint(text, ambiguous)));
  }
  if (!has_endpoint && has_port && endpoint.port && *endpoint.port != port) {
    return invalid(settings.describe(name), " and ", settings.describe("main_process_port"),
                   " name two ports; leave one out");
  }
  if (!endpoint.port && has_port) endpoint.port = port;
  return endpoint;
}

}  // namespace accelerate::launcher::settings
