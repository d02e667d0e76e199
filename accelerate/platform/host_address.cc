#include "accelerate/platform/host_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace accelerate {
namespace {

constexpr size_t kLongestName = 253;
constexpr size_t kLongestLabel = 63;

template <typename... Parts>
absl::Status bad_host(absl::string_view text, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", parts...));
}

bool is_plain_letter(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

bool is_ipv4_address(absl::string_view text) {
  in_addr ignored;
  return inet_pton(AF_INET, std::string(text).c_str(), &ignored) == 1;
}

}  // namespace

namespace internal {

bool is_ipv6_address(absl::string_view text) {
  const size_t percent = text.find('%');
  if (percent != absl::string_view::npos) {
    const absl::string_view scope = text.substr(percent + 1);
    if (scope.empty() || !std::all_of(scope.begin(), scope.end(), is_plain_letter)) return false;
  }
  in6_addr ignored;
  return inet_pton(AF_INET6, std::string(text.substr(0, percent)).c_str(), &ignored) == 1;
}

absl::Status check_blanks(absl::string_view text) {
  const bool has_blank = std::any_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isspace(c) || absl::ascii_iscntrl(c);
  });
  return has_blank ? bad_host(text, "has a blank in it") : absl::OkStatus();
}

absl::Status check_host_name(absl::string_view name, absl::string_view given) {
  if (!std::all_of(name.begin(), name.end(), is_plain_letter)) {
    return bad_host(given, "is not the name of a machine: letters, digits, \"-\", \"_\" and \".\"");
  }
  const bool is_number = std::all_of(name.begin(), name.end(),
                                     [](char c) { return c == '.' || absl::ascii_isdigit(c); });
  if (is_number && absl::StrContains(name, '.') && !is_ipv4_address(name)) {
    return bad_host(given, "is not an IPv4 address: four numbers from 0 to 255");
  }
  if (is_number && !name.empty() && !absl::StrContains(name, '.')) {
    return bad_host(given, "is a number, and not the name of a machine");
  }
  absl::string_view labels = name;
  absl::ConsumeSuffix(&labels, ".");
  for (const absl::string_view label : absl::StrSplit(labels, '.')) {
    if (label.empty() || label.size() > kLongestLabel || label[0] == '-' ||
        name.size() > kLongestName) {
      return bad_host(given, "is not the name of a machine: each of its parts has 1 to ",
                      kLongestLabel, " characters, and a letter or a digit first");
    }
  }
  return absl::OkStatus();
}

}  // namespace internal

absl::Status check_host(absl::string_view text) {
  if (text.empty()) return bad_host(text, "is not the name of a machine");
  if (absl::Status ok = internal::check_blanks(text); !ok.ok()) return ok;
  if (text.find_first_of(":%[]") == absl::string_view::npos) {
    return internal::check_host_name(text, text);
  }
  return internal::is_ipv6_address(text)
             ? absl::OkStatus()
             : bad_host(text, "is not an IPv6 address, as in fe80::1 or fe80::1%eth0");
}

}  // namespace accelerate
