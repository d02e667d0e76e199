#include "trackers/bridge/secrets.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "trackers/common/secret_names.h"

namespace accelerate::trackers {
namespace {

// Shorter ones are words like "true", which would mask half of every text.
constexpr size_t kShortest = 6;

}  // namespace

Secrets::Secrets(const Environment& environment, const TrackerDict& kwargs) {
  for (const auto& [name, value] : environment.variables()) add(is_secret_name(name), value);
  add(false, kwargs);
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
