#include "simulator/hardware/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate::simulator {
namespace {

// A unit is 10^exponent * factor of the base; factors are powers of two, so that they are exact.
struct Unit {
  absl::string_view name;
  int exponent;
  double factor;
};

struct DimensionInfo {
  const char* description;
  double max;
  bool whole;
  /// Earlier units are preferred when formatting.
  std::vector<Unit> units;
};

const DimensionInfo& info_of(Dimension dimension) {
  // By Dimension.
  static const auto& infos = *new std::vector<DimensionInfo>{
      {.description = "a size such as 80GiB",
       .max = 0x1p53,  // Doubles hold every whole number up to this one.
       .whole = true,
       .units = {{"TiB", 0, 0x1p40},
                 {"GiB", 0, 0x1p30},
                 {"MiB", 0, 0x1p20},
                 {"KiB", 0, 0x1p10},
                 {"B", 0, 1},
                 {"TB", 12, 1},
                 {"GB", 9, 1},
                 {"MB", 6, 1},
                 {"kB", 3, 1},
                 {"KB", 3, 1},
                 {"", 0, 1}}},
      {.description = "a bandwidth such as 25GB/s or 200Gbps",
       .max = 1e18,
       .whole = false,
       .units = {{"TB/s", 12, 1},
                 {"GB/s", 9, 1},
                 {"MB/s", 6, 1},
                 {"kB/s", 3, 1},
                 {"B/s", 0, 1},
                 {"Tbps", 12, 0.125},
                 {"Gbps", 9, 0.125},
                 {"Mbps", 6, 0.125}}},
      {.description = "a time such as 5us",
       .max = 3.6e12,  // An hour, for one link or one launch.
       .whole = true,
       .units = {{"s", 9, 1}, {"ms", 6, 1}, {"us", 3, 1}, {"ns", 0, 1}}},
      {.description = "a rate such as 989TFLOPS",
       .max = 1e21,
       .whole = false,
       .units = {{"PFLOPS", 15, 1}, {"TFLOPS", 12, 1}, {"GFLOPS", 9, 1}, {"FLOPS", 0, 1}}},
  };
  return infos[static_cast<size_t>(dimension)];
}

std::string unit_list(Dimension dimension) {
  std::vector<absl::string_view> names;
  for (const Unit& unit : info_of(dimension).units) {
    if (!unit.name.empty()) names.push_back(unit.name);
  }
  return absl::StrJoin(names, ", ");
}

// The length of digits with at most one point between them; std::from_chars accepts more.
size_t number_length(absl::string_view text) {
  size_t length = 0;
  while (length < text.size() && absl::ascii_isdigit(text[length])) ++length;
  if (length == 0 || length + 1 >= text.size() || text[length] != '.' ||
      !absl::ascii_isdigit(text[length + 1])) {
    return length;
  }
  ++length;
  while (length < text.size() && absl::ascii_isdigit(text[length])) ++length;
  return length;
}

// The shift is made in decimal, before rounding to a double.
double scaled(absl::string_view number, const Unit& unit) {
  const std::string shifted = absl::StrCat(number, "e", unit.exponent);
  double value = 0;
  const auto [end, error] = std::from_chars(shifted.data(), shifted.data() + shifted.size(), value);
  if (error != std::errc()) return HUGE_VAL;
  return value * unit.factor;
}

std::string shortest(double value) {
  char buffer[400];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  return std::string(buffer, end);
}

}  // namespace

double max_quantity(Dimension dimension) { return info_of(dimension).max; }

bool may_be_zero(Dimension dimension) { return dimension == Dimension::kNanoseconds; }

Quantity parse_quantity(absl::string_view text, Dimension dimension) {
  const DimensionInfo& info = info_of(dimension);
  const size_t length = number_length(text);
  if (length == 0) return {.position = 0, .expected = info.description};
  const absl::string_view number = text.substr(0, length);
  const absl::string_view name = text.substr(length);
  const auto unit = std::ranges::find(info.units, name, &Unit::name);
  if (unit == info.units.end()) {
    return {.position = length, .expected = absl::StrCat("a unit: ", unit_list(dimension))};
  }
  const double value = scaled(number, *unit);
  if (value == 0 && !may_be_zero(dimension)) {
    return {.position = 0, .expected = absl::StrCat(info.description, ", above zero")};
  }
  if (value > info.max) {
    return {.position = 0,
            .expected =
                absl::StrCat(info.description, ", at most ", format_quantity(info.max, dimension))};
  }
  if (info.whole && value != std::floor(value)) {
    return {.position = 0,
            .expected = absl::StrCat("a whole number of ",
                                     dimension == Dimension::kBytes ? "bytes" : "nanoseconds")};
  }
  return {.value = value};
}

std::string format_quantity(double value, Dimension dimension) {
  const DimensionInfo& info = info_of(dimension);
  std::string best;
  for (const Unit& unit : info.units) {
    const bool is_base = unit.exponent == 0 && unit.factor == 1;
    const double in_unit = value / unit.factor / std::pow(10.0, unit.exponent);
    if (in_unit < 1 && !is_base) continue;
    const std::string number = shortest(in_unit);
    // Sizes in fractions of a unit are hard to read: 81MiB, not 0.0791GiB.
    const bool fraction = number.find('.') != std::string::npos;
    if (fraction && info.whole) continue;
    if (scaled(number, unit) != value) continue;  // Rounding in the division.
    std::string text = absl::StrCat(number, unit.name);
    // "1234567B" rather than "1234567", because people read reports.
    if (!unit.name.empty() && (best.empty() || text.size() < best.size())) best = std::move(text);
  }
  return best;
}

}  // namespace accelerate::simulator
