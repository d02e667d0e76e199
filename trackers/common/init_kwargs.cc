#include "trackers/common/init_kwargs.h"

#include <stdexcept>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

constexpr size_t kMaxShown = 80;

std::string shown(std::string_view name, const TrackerValue& value) {
  const std::string type(type_name(value));
  if (is_secret_name(name)) return absl::StrCat("a ", type);
  std::string text = without_url_secrets(value_text(value));
  if (text.size() > kMaxShown) text = absl::StrCat(text.substr(0, kMaxShown), "...");
  if (type == "str") text = absl::StrCat("\"", text, "\"");
  return absl::StrCat(text, " of type ", type);
}

}  // namespace

InitKwargs::InitKwargs(std::string_view tracker, const TrackerDict& kwargs, std::string_view what)
    : tracker_(tracker), kwargs_(kwargs), what_(what) {}

std::optional<double> InitKwargs::number(std::string_view name) {
  const TrackerValue* const value = read(name);
  if (value == nullptr) return std::nullopt;
  // number() takes a bool for 0 or 1, as Python does; here it is a mistake.
  if (value->get_if<bool>() != nullptr || !value->number()) refuse(name, "a number");
  return value->number();
}

std::optional<std::vector<std::string>> InitKwargs::texts(std::string_view name) {
  static constexpr std::string_view kWanted = "a list of texts";
  const TrackerValue* const value = read(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = value->get_if<std::string>()) return std::vector{*text};
  const auto* const list = value->get_if<TrackerList>();
  if (list == nullptr) refuse(name, kWanted);
  std::vector<std::string> texts;
  for (const TrackerValue& entry : *list) {
    const auto* const text = entry.get_if<std::string>();
    if (text == nullptr) refuse(name, kWanted);
    texts.push_back(*text);
  }
  return texts;
}

std::optional<TrackerValue> InitKwargs::any(std::string_view name) {
  const TrackerValue* const value = read(name);
  if (value == nullptr) return std::nullopt;
  return *value;
}

void InitKwargs::refuse(std::string_view name, std::string_view wanted) const {
  const TrackerValue* const value = find(kwargs_, name);
  throw std::invalid_argument(absl::StrCat(
      "tracker ", tracker_, ": `", std::string(name), "` in its ", what_, " must be ",
      std::string(wanted), ", not ", value == nullptr ? "absent" : shown(name, *value)));
}

void InitKwargs::finish() const {
  for (const auto& [name, value] : kwargs_) {
    if (absl::c_linear_search(known_, name)) continue;
    throw std::invalid_argument(absl::StrCat(
        "tracker ", tracker_, ": `", name, "` in its ", what_, " is not known; it knows ",
        known_.empty() ? "none" : absl::StrJoin(known_, ", ")));
  }
}

const TrackerValue* InitKwargs::read(std::string_view name) {
  if (!absl::c_linear_search(known_, name)) known_.emplace_back(name);
  const TrackerValue* const value = find(kwargs_, name);
  // None stands for the default, as in Python.
  return value == nullptr || value->is_none() ? nullptr : value;
}

void refuse_log_kwargs(std::string_view tracker, const TrackerDict& kwargs) {
  InitKwargs(tracker, kwargs, "log_kwargs").finish();
}

}  // namespace accelerate::trackers
