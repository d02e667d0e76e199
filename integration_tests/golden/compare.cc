#include "integration_tests/golden/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "accelerate/base/json_text.h"
#include "integration_tests/golden/errors.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr size_t kMaxLine = 200;

std::string on_one_line(const json& value) {
  std::string text;
  if (is_error(value)) {
    text = "error: " + value["error"].value("message", value["error"].dump());
  } else {
    text = json_text(value);
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kMaxLine) text = text.substr(0, kMaxLine - 3) + "...";
  return text;
}

bool same_number(const json& expected, const json& got, const Tolerance& tolerance) {
  if (expected.is_number_float() || got.is_number_float()) {
    const double a = expected.get<double>();
    const double b = got.get<double>();
    const double allowed =
        std::max(tolerance.absolute, tolerance.relative * std::max(std::abs(a), std::abs(b)));
    return a == b || std::abs(a - b) <= allowed;
  }
  const bool negative = !expected.is_number_unsigned() && expected.get<int64_t>() < 0;
  const bool got_negative = !got.is_number_unsigned() && got.get<int64_t>() < 0;
  return negative == got_negative && expected.get<uint64_t>() == got.get<uint64_t>();
}

bool same_scalar(const json& expected, const json& got, const Tolerance& tolerance) {
  if (expected.is_number() && got.is_number()) return same_number(expected, got, tolerance);
  return expected.type() == got.type() && expected == got;
}

bool is_flat(const json& list) {
  return std::none_of(list.begin(), list.end(),
                      [](const json& element) { return element.is_structured(); });
}

bool is_hash_dependent(const json& expected) {
  return expected.is_object() && expected.value("hash_dependent", false) &&
         expected.contains("variants");
}

// With all lists in one order.
json as_sets(json value) {
  if (!value.is_structured()) return value;
  for (json& each : value) each = as_sets(std::move(each));
  if (value.is_array()) std::sort(value.begin(), value.end());
  return value;
}

// Appends to `path` on its way down and restores it, unless it finds something.
class Walk {
 public:
  explicit Walk(const Tolerance& tolerance) : tolerance_(tolerance) {}

  std::optional<Difference> compare(const json& expected, const json& got) {
    if (is_hash_dependent(expected)) return compare_variants(expected, got);
    if (is_error(expected)) {
      if (!is_error(got)) return differ(expected, got);
      return compare_errors(expected["error"], got["error"]);
    }
    if (is_error(got)) return differ(expected, got);
    if (expected.is_object() && got.is_object()) return compare_objects(expected, got);
    if (expected.is_array() && got.is_array()) return compare_lists(expected, got);
    if (same_scalar(expected, got, tolerance_)) return std::nullopt;
    return differ(expected, got);
  }

 private:
  std::optional<Difference> differ(const json& expected, const json& got) const {
    return Difference{path_, on_one_line(expected), on_one_line(got)};
  }

  // Any of them will do.
  std::optional<Difference> compare_variants(const json& expected, const json& got) {
    const bool as_set = expected.value("equal_as_sets", false);
    std::optional<Difference> first;
    for (const json& variant : expected["variants"]) {
      const std::string before = path_;
      auto difference = as_set ? compare(as_sets(variant), as_sets(got)) : compare(variant, got);
      path_ = before;
      if (!difference) return std::nullopt;
      if (!first) first = std::move(difference);
    }
    return first ? first : differ(expected, got);
  }

  // Compares what stands under "error".
  std::optional<Difference> compare_errors(const json& expected, const json& got) const {
    const auto why = error_difference(expected, got);
    if (!why) return std::nullopt;
    auto difference = differ({{"error", expected}}, {{"error", got}});
    difference->got += " (" + *why + ")";
    return difference;
  }

  std::optional<Difference> compare_objects(const json& expected, const json& got) {
    for (const auto& [key, value] : expected.items()) {
      const std::string before = path_;
      path_ += (path_.empty() ? "" : ".") + key;
      auto found = got.find(key);
      if (found == got.end()) return Difference{path_, on_one_line(value), "nothing"};
      const bool is_exception =
          key == "error" && value.is_object() && found->is_object() && found->contains("ours");
      auto difference = is_exception ? compare_errors(value, *found) : compare(value, *found);
      if (difference) return difference;
      path_ = before;
    }
    for (const auto& [key, value] : got.items()) {
      if (expected.contains(key)) continue;
      path_ += (path_.empty() ? "" : ".") + key;
      return Difference{path_, "nothing", on_one_line(value)};
    }
    return std::nullopt;
  }

  std::optional<Difference> compare_lists(const json& expected, const json& got) {
    // A list of numbers is read as a whole.
    const bool whole = is_flat(expected) && is_flat(got);
    for (size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
      const std::string before = path_;
      path_ += "[" + std::to_string(i) + "]";
      auto difference = compare(expected[i], got[i]);
      if (difference && !whole) return difference;
      path_ = before;
      if (difference) return differ(expected, got);
    }
    if (expected.size() != got.size()) return differ(expected, got);
    return std::nullopt;
  }

  Tolerance tolerance_;
  std::string path_;
};

}  // namespace

bool is_error(const json& expected) {
  return expected.is_object() && expected.size() == 1 && expected.contains("error") &&
         expected["error"].is_object();
}

std::optional<Difference> first_difference(const json& expected, const json& got,
                                           const Tolerance& tolerance) {
  return Walk(tolerance).compare(expected, got);
}

}  // namespace accelerate::golden
