#include "trackers/common/json_value.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <variant>

#include "absl/functional/overload.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

ordered_json element(const TensorValue& tensor, double value) {
  if (tensor.dtype == "bool") return value != 0;
  constexpr double kEndOfInts = 9223372036854775808.0;
  const bool fits = value >= -kEndOfInts && value < kEndOfInts;  // uint64 may not
  const bool is_whole = fits && tensor.dtype.find("int") != std::string::npos;
  return is_whole ? ordered_json(static_cast<int64_t>(value)) : json_number(value);
}

// The elements below the first `depth` indices, which begin at `*next`.
ordered_json nested(const TensorValue& tensor, size_t depth, size_t* next) {
  if (depth == tensor.sizes.size()) return element(tensor, tensor.values[(*next)++]);
  ordered_json list = ordered_json::array();
  for (int64_t i = 0; i < tensor.sizes[depth]; ++i) list.push_back(nested(tensor, depth + 1, next));
  return list;
}

ordered_json tensor_json(const TensorValue& tensor) {
  const int64_t count =
      std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), int64_t{1}, std::multiplies<>());
  size_t next = 0;
  if (count == static_cast<int64_t>(tensor.values.size())) return nested(tensor, 0, &next);
  ordered_json list = ordered_json::array();
  for (const double value : tensor.values) list.push_back(element(tensor, value));
  return list;
}

}  // namespace

ordered_json json_number(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return number;
}

ordered_json json_value(const TrackerDict& dict) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, value] : dict) object[name] = json_value(value);
  return object;
}

ordered_json json_value(const TrackerValue& value) {
  return std::visit(
      absl::Overload([](std::monostate) -> ordered_json { return nullptr; },
                     [](double number) -> ordered_json { return json_number(number); },
                     [](const TensorValue& tensor) -> ordered_json { return tensor_json(tensor); },
                     [](const TrackerList& list) -> ordered_json {
                       ordered_json array = ordered_json::array();
                       for (const TrackerValue& entry : list) array.push_back(json_value(entry));
                       return array;
                     },
                     [](const TrackerDict& dict) -> ordered_json { return json_value(dict); },
                     [](const auto& simple) -> ordered_json { return simple; }),
      value.variant());
}

std::string json_text(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

std::string valid_utf8(const std::string& text) {
  return ordered_json::parse(json_text(text)).get<std::string>();
}

}  // namespace accelerate::trackers
