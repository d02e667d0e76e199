#include "trackers/common/secrets.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "trackers/common/formats.h"

namespace accelerate::trackers {
namespace {

// Shorter values are words like "true", and would mask half of every text.
constexpr size_t kShortest = 6;

bool is_letter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }
bool is_upper(char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); }

// The last word in lower case: "API_KEY", "apiKey" and "api-key-2" end in "key".
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
  const TrackerValue plain = without_secrets(name, value);
  const auto* tensor = plain.get_if<TensorValue>();
  const bool is_number = tensor != nullptr && tensor->sizes.empty() && tensor->values.size() == 1;
  return without_url_secrets(value_text(is_number ? listify(plain) : plain));
}

Secrets::Secrets(const Environment& environment, const TrackerDict& kwargs) {
  for (const auto& [name, value] : environment.variables()) add(is_secret_name(name), value);
  add(false, kwargs);
  // The longest first: masking a secret that is a part of another would leave the rest of that one.
  std::sort(values_.begin(), values_.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
}

void Secrets::add(bool is_secret, const TrackerValue& value) {
  if (const auto* const text = value.get_if<std::string>()) {
    if (is_secret && text->size() >= kShortest) values_.push_back(*text);
  } else if (const auto* const list = value.get_if<TrackerList>()) {
    for (const TrackerValue& entry : *list) add(is_secret, entry);
  } else if (const auto* const dict = value.get_if<TrackerDict>()) {
    for (const auto& [name, entry] : *dict) add(is_secret || is_secret_name(name), entry);
  }
}

std::string Secrets::mask(std::string_view text) const {
  std::string result = without_url_secrets(text);
  for (const std::string& value : values_) {
    absl::StrReplaceAll({{value, "***"}}, &result);
  }
  return result;
}

}  // namespace accelerate::trackers
