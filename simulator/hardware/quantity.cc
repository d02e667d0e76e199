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

// Earlier units are preferred when formatting.
const std::vector<Unit>& units_of(Dimension dimension) {
  static const auto* bytes = new std::vector<Unit>{
      {"TiB", 0, 0x1p40}, {"GiB", 0, 0x1p30}, {"MiB", 0, 0x1p20}, {"KiB", 0, 0x1p10},
      {"B", 0, 1},        {"TB", 12, 1},      {"GB", 9, 1},       {"MB", 6, 1},
      {"kB", 3, 1},       {"KB", 3, 1},       {"", 0, 1}};
  static const auto* bytes_per_second = new std::vector<Unit>{
      {"TB/s", 12, 1}, {"GB/s", 9, 1},      {"MB/s", 6, 1},     {"kB/s", 3, 1},
      {"B/s", 0, 1},   {"Tbps", 12, 0.125}, {"Gbps", 9, 0.125}, {"Mbps", 6, 0.125}};
  static const auto* nanoseconds =
      new std::vector<Unit>{{"s", 9, 1}, {"ms", 6, 1}, {"us", 3, 1}, {"ns", 0, 1}};
  static const auto* flops_per_second = new std::vector<Unit>{
      {"PFLOPS", 15, 1}, {"TFLOPS", 12, 1}, {"GFLOPS", 9, 1}, {"FLOPS", 0, 1}};
  switch (dimension) {
    case Dimension::kBytes: return *bytes;
    case Dimension::kBytesPerSecond: return *bytes_per_second;
    case Dimension::kNanoseconds: return *nanoseconds;
    case Dimension::kFlopsPerSecond: return *flops_per_second;
  }
  return *bytes;
}

const char* description_of(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes: return "a size such as 80GiB";
    case Dimension::kBytesPerSecond: return "a bandwidth such as 25GB/s or 200Gbps";
    case Dimension::kNanoseconds: return "a time such as 5us";
    case Dimension::kFlopsPerSecond: return "a rate such as 989TFLOPS";
  }
  return "a quantity";
}

bool is_whole(Dimension dimension) {
  return dimension == Dimension::kBytes || dimension == Dimension::kNanoseconds;
}

std::string unit_list(Dimension dimension) {
  std::vector<absl::string_view> names;
  for (const Unit& unit : units_of(dimension)) {
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

double max_quantity(Dimension dimension) {
  switch (dimension) {
    // Doubles hold every whole number up to this one.
    case Dimension::kBytes: return 0x1p53;
    // An hour, for one link or one launch.
    case Dimension::kNanoseconds: return 3.6e12;
    case Dimension::kBytesPerSecond: return 1e18;
    case Dimension::kFlopsPerSecond: return 1e21;
  }
  return 0;
}

Quantity parse_quantity(absl::string_view text, Dimension dimension) {
  const size_t length = number_length(text);
  if (length == 0) return {.position = 0, .expected = description_of(dimension)};
  const absl::string_view number = text.substr(0, length);
  const absl::string_view name = text.substr(length);
  const std::vector<Unit>& units = units_of(dimension);
  const auto unit = std::find_if(units.begin(), units.end(),
                                 [name](const Unit& each) { return each.name == name; });
  if (unit == units.end()) {
    return {.position = length, .expected = absl::StrCat("a unit: ", unit_list(dimension))};
  }
  const double value = scaled(number, *unit);
  if (value <= 0) {
    return {.position = 0, .expected = absl::StrCat(description_of(dimension), ", above zero")};
  }
  if (value > max_quantity(dimension)) {
    return {.position = 0,
            .expected = absl::StrCat(description_of(dimension), ", at most ",
                                     format_quantity(max_quantity(dimension), dimension))};
  }
  if (is_whole(dimension) && value != std::floor(value)) {
    return {.position = 0,
            .expected = absl::StrCat("a whole number of ",
                                     dimension == Dimension::kBytes ? "bytes" : "nanoseconds")};
  }
  return {.value = value};
}

std::string format_quantity(double value, Dimension dimension) {
  std::string best;
  for (const Unit& unit : units_of(dimension)) {
    const bool is_base = unit.exponent == 0 && unit.factor == 1;
    const double in_unit = value / unit.factor / std::pow(10.0, unit.exponent);
    if (in_unit < 1 && !is_base) continue;
    const std::string number = shortest(in_unit);
    // Sizes in fractions of a unit are hard to read: 81MiB, not 0.0791GiB.
    const bool fraction = number.find('.') != std::string::npos;
    if (fraction && is_whole(dimension)) continue;
    if (scaled(number, unit) != value) continue;  // Rounding in the division.
    std::string text = absl::StrCat(number, unit.name);
    // "1234567B" rather than "1234567", because people read reports.
    if (!unit.name.empty() && (best.empty() || text.size() < best.size())) best = std::move(text);
  }
  return best;
}

}  // namespace accelerate::simulator
