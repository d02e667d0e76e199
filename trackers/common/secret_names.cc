#include "trackers/common/secret_names.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace accelerate::trackers {
namespace {

bool is_letter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }
bool is_upper(char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); }

// In lower case. "API_KEY", "apiKey" and "api-key-2" end in "key".
std::string last_word(std::string_view name) {
  size_t end = name.size();
  while (end > 0 && !is_letter(name[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && is_letter(name[begin - 1])) {
    --begin;
    const bool is_hump = begin > 0 && is_upper(name[begin]) && !is_upper(name[begin - 1]);
    if (is_hump) break;
  }
  return absl::AsciiStrToLower(std::string(name.substr(begin, end - begin)));
}

bool is_secret_word(std::string_view word) {
  static constexpr std::string_view kWords[] = {"key", "keys", "pat"};
  static constexpr std::string_view kEnds[] = {"apikey",     "accesskey", "secretkey",
                                               "privatekey", "password",  "passwd",
                                               "passphrase", "secret",    "credential"};
  if (std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords)) return true;
  if (word.ends_with("token")) return true;
  if (word.ends_with('s')) word.remove_suffix(1);
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return word.ends_with(end); });
}

TrackerValue without_secrets(std::string_view name, const TrackerValue& value) {
  if (is_secret_name(name)) return "***";
  if (const auto* const dict = value.get_if<TrackerDict>()) {
    TrackerDict shown;
    for (const auto& [key, entry] : *dict) shown.emplace_back(key, without_secrets(key, entry));
    return shown;
  }
  if (const auto* const list = value.get_if<TrackerList>()) {
    TrackerList shown;
    for (const TrackerValue& entry : *list) shown.push_back(without_secrets("", entry));
    return shown;
  }
  return value;
}

}  // namespace

bool is_secret_name(std::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(name), '/');
  return std::any_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return is_secret_word(last_word(part)); });
}

std::string without_url_secrets(std::string_view text) {
  static constexpr std::string_view kScheme = "://";
  std::string result;
  for (size_t found; (found = text.find(kScheme)) != text.npos;) {
    const size_t begin = found + kScheme.size();
    result += text.substr(0, begin);
    text.remove_prefix(begin);
    const std::string_view host = text.substr(0, text.find_first_of("/?# \t\r\n\"'<>,"));
    if (const size_t at = host.rfind('@'); at != host.npos) {
      result += "***";
      text.remove_prefix(at);
    }
  }
  result += text;
  return result;
}

std::string shown_value(std::string_view name, const TrackerValue& value) {
  return without_url_secrets(value_text(without_secrets(name, value)));
}

}  // namespace accelerate::trackers
