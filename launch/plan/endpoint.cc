#include "launch/plan/endpoint.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace accelerate::launch::plan {

absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text) {
  Endpoint endpoint;
  absl::string_view port;
  bool has_port = false;
  if (absl::string_view rest = text; absl::ConsumePrefix(&rest, "[")) {
    const size_t close = rest.find(']');
    if (close == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": the bracket is not closed"));
    }
    endpoint.host = std::string(rest.substr(0, close));
    port = rest.substr(close + 1);
    has_port = absl::ConsumePrefix(&port, ":");
    if (!has_port && !port.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not HOST:PORT"));
    }
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    endpoint.host = std::string(text.substr(0, text.find(':')));
    port = text.substr(text.find(':') + 1);
    has_port = true;
  } else {
    endpoint.host = std::string(text);
  }
  if (!has_port) return endpoint;
  int number = 0;
  if (!absl::SimpleAtoi(port, &number) || number < 0 || number > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": the port is not a whole number from 0 to 65535"));
  }
  endpoint.port = static_cast<uint16_t>(number);
  return endpoint;
}

uint16_t free_or_any(uint16_t port, const settings::Machine& machine,
                     std::vector<std::string>* notes) {
  if (port == 0 || !machine.is_port_in_use(port)) return port;
  notes->push_back(
      absl::StrCat("port ", port, " is in use; the ranks of this machine meet at a free one"));
  return 0;
}

absl::StatusOr<Endpoint> endpoint_of(const settings::Settings& settings) {
  const char* name = settings.is_set("rdzv_endpoint") ? "rdzv_endpoint" : "main_process_ip";
  absl::StatusOr<Endpoint> endpoint = parse_endpoint(settings.text(name));
  if (!endpoint.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", endpoint.status().message()));
  }
  if (!endpoint->port && settings.is_set("main_process_port")) {
    endpoint->port = static_cast<uint16_t>(settings.number("main_process_port"));
  }
  return endpoint;
}

}  // namespace accelerate::launch::plan
