#include "trackers/common/json_value.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <variant>

#include "absl/functional/overload.h"
#include "accelerate/base/json_text.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

TrackerValue element(const TensorValue& tensor, double value) {
  if (tensor.dtype == "bool") return value != 0;
  constexpr double kEndOfInts = 9223372036854775808.0;
  const bool fits = value >= -kEndOfInts && value < kEndOfInts;  // a uint64 may be larger
  if (fits && tensor.dtype.find("int") != std::string::npos) return static_cast<int64_t>(value);
  return value;
}

// The elements below the first `depth` indices, beginning with element `*next`.
TrackerValue elements(const TensorValue& tensor, size_t depth, size_t* next) {
  if (depth == tensor.sizes.size()) return element(tensor, tensor.values[(*next)++]);
  TrackerList list;
  for (int64_t i = 0; i < tensor.sizes[depth]; ++i) {
    list.push_back(elements(tensor, depth + 1, next));
  }
  return list;
}

// A tensor whose sizes do not fit its elements becomes a flat list.
TrackerValue elements(const TensorValue& tensor) {
  const int64_t count =
      std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), int64_t{1}, std::multiplies<>());
  size_t next = 0;
  if (count == static_cast<int64_t>(tensor.values.size())) return elements(tensor, 0, &next);
  TrackerList list;
  for (const double value : tensor.values) list.push_back(element(tensor, value));
  return list;
}

using Number = ordered_json (*)(double);

ordered_json convert(const TrackerValue& value, Number number);

ordered_json convert(const TrackerDict& dict, Number number) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, value] : dict) object[name] = convert(value, number);
  return object;
}

ordered_json convert(const TrackerValue& value, Number number) {
  return std::visit(
      absl::Overload([](std::monostate) -> ordered_json { return nullptr; },
                     [&](double real) { return number(real); },
                     [&](const TensorValue& tensor) { return convert(elements(tensor), number); },
                     [&](const TrackerList& list) {
                       ordered_json array = ordered_json::array();
                       for (const TrackerValue& entry : list)
                         array.push_back(convert(entry, number));
                       return array;
                     },
                     [&](const TrackerDict& dict) { return convert(dict, number); },
                     [](const auto& simple) -> ordered_json { return simple; }),
      value.variant());
}

}  // namespace

TrackerValue listify(const TrackerValue& value) {
  if (const auto* tensor = value.get_if<TensorValue>()) return elements(*tensor);
  if (const auto* dict = value.get_if<TrackerDict>()) {
    TrackerDict result;
    for (const auto& [name, entry] : *dict) result.emplace_back(name, listify(entry));
    return result;
  }
  if (const auto* list = value.get_if<TrackerList>()) {
    TrackerList result;
    for (const TrackerValue& entry : *list) result.push_back(listify(entry));
    return result;
  }
  return value;
}

ordered_json json_number(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return number;
}

ordered_json json_value(const TrackerDict& dict) { return convert(dict, json_number); }

ordered_json json_value(const TrackerValue& value) { return convert(value, json_number); }

std::string json_text(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

std::string valid_utf8(const std::string& text) {
  return ordered_json::parse(json_text(text)).get<std::string>();
}

std::string yaml_text(const TrackerDict& values) {
  return accelerate::yaml_text(convert(values, [](double real) { return ordered_json(real); }));
}

}  // namespace accelerate::trackers
