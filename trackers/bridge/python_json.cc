#include "trackers/bridge/python_json.h"

#include <cmath>

#include "absl/functional/overload.h"
#include "absl/strings/escaping.h"
#include "trackers/common/png.h"

namespace accelerate::trackers {
namespace {

using nlohmann::json;

json number(double value) {
  if (std::isnan(value)) return {{"float", "nan"}};
  if (std::isinf(value)) return {{"float", value > 0 ? "inf" : "-inf"}};
  return value;
}

template <typename List>
json list(const List& values) {
  json result = json::array();
  for (const auto& value : values) result.push_back(to_json(value));
  return result;
}

template <typename Dict>
json pairs(const Dict& dict) {
  json result = json::array();
  for (const auto& [name, value] : dict) result.push_back(json::array({name, to_json(value)}));
  return result;
}

json tensor(const TensorValue& value) {
  json values = json::array();
  for (const double element : value.values) values.push_back(number(element));
  return {{"tensor", value.sizes}, {"dtype", value.dtype}, {"values", std::move(values)}};
}

}  // namespace

json to_json(const TrackerValue& value) {
  return std::visit(
      absl::Overload(
          [](std::monostate) -> json { return nullptr; }, [](bool truth) -> json { return truth; },
          [](int64_t integer) -> json { return integer; }, [](double real) { return number(real); },
          [](const std::string& text) -> json { return text; },
          [](const TensorValue& elements) { return tensor(elements); },
          [](const TrackerList& values) { return list(values); },
          [](const TrackerDict& dict) -> json { return {{"dict", pairs(dict)}}; }),
      value.variant());
}

json to_json(const PythonValue& value) {
  return std::visit(
      absl::Overload([](const TrackerValue& plain) { return to_json(plain); },
                     [](const TrackerImage& image) -> json {
                       return {{"png", absl::Base64Escape(encode_png(image))}};
                     },
                     [](const std::shared_ptr<const PythonCall>& made) { return to_json(*made); },
                     [](const PythonList& values) { return list(values); },
                     [](const PythonDict& dict) -> json { return {{"dict", pairs(dict)}}; }),
      value.variant());
}

json to_json(const PythonCall& call) {
  json result = {{"call", call.path}};
  if (!call.args.empty()) result["args"] = list(call.args);
  if (!call.kwargs.empty()) result["kwargs"] = pairs(call.kwargs);
  if (!call.if_none.empty()) result["if_none"] = call.if_none;
  if (call.optional) result["optional"] = true;
  return result;
}

}  // namespace accelerate::trackers
