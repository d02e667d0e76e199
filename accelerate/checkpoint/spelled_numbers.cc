#include "accelerate/checkpoint/spelled_numbers.h"

#include <cmath>
#include <limits>
#include <string>

namespace accelerate::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void spell(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (auto& item : value) spell(item);
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::isnan(number)) {
      value = "nan";
    } else if (std::isinf(number)) {
      value = number > 0 ? "inf" : "-inf";
    }
  }
}

void read(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (auto& item : value) read(item);
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (text == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (text == "inf") {
      value = kInfinity;
    } else if (text == "-inf") {
      value = -kInfinity;
    }
  }
}

}  // namespace

nlohmann::ordered_json spell_numbers(nlohmann::ordered_json value) {
  spell(value);
  return value;
}

nlohmann::ordered_json read_numbers(nlohmann::ordered_json value) {
  read(value);
  return value;
}

}  // namespace accelerate::internal
