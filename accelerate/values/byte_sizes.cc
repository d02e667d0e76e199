#include "accelerate/values/byte_sizes.h"

#include <cmath>
#include <optional>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "accelerate/base/number_text.h"

namespace accelerate {
namespace {

struct Unit {
  std::string_view name;  // in upper case
  double bytes;
  bool may_be_bits;
};
constexpr Unit kUnits[] = {{"GIB", 1 << 30, false}, {"MIB", 1 << 20, false},
                           {"KIB", 1 << 10, false}, {"GB", 1e9, true},
                           {"MB", 1e6, true},       {"KB", 1e3, true}};

constexpr double kTooLarge = 9223372036854775808.0;  // 2^63

// Absent for NaN and for negative numbers, which are not sizes.
std::optional<int64_t> parse_size(std::string_view size) {
  const std::string upper = absl::AsciiStrToUpper(std::string(size));
  for (const Unit& unit : kUnits) {
    if (!upper.ends_with(unit.name)) continue;
    const auto number = parse_float(size.substr(0, size.size() - unit.name.size()));
    if (!number) return std::nullopt;
    const double bytes = std::trunc(*number * unit.bytes);
    if (!(bytes >= 0 && bytes < kTooLarge)) return std::nullopt;
    const bool bits = unit.may_be_bits && size.back() == 'b';
    return static_cast<int64_t>(bytes) / (bits ? 8 : 1);
  }
  return std::nullopt;
}

}  // namespace

int64_t convert_file_size_to_int(std::string_view size) {
  const std::optional<int64_t> bytes = parse_size(size);
  TORCH_CHECK_VALUE(bytes, "\"", size,
                    "\" is not a size; give a number of bytes, or a text with a unit such as "
                    "\"5.0GB\" or \"512MiB\"");
  return *bytes;
}

int64_t convert_file_size_to_int(int64_t size) {
  TORCH_CHECK_VALUE(size >= 0, "a size cannot be negative, got ", size);
  return size;
}

std::string convert_bytes(int64_t size) { return byte_text(size); }

double dtype_byte_size(c10::ScalarType dtype) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Bool:
    case ScalarType::UInt1: return 1.0 / 8;
    case ScalarType::UInt2:
    case ScalarType::QUInt2x4: return 2.0 / 8;
    case ScalarType::UInt3: return 3.0 / 8;
    case ScalarType::UInt4:
    case ScalarType::QUInt4x2: return 4.0 / 8;
    case ScalarType::UInt5: return 5.0 / 8;
    case ScalarType::UInt6: return 6.0 / 8;
    case ScalarType::UInt7: return 7.0 / 8;
    default: return static_cast<double>(c10::elementSize(dtype));
  }
}

double dtype_byte_size(CustomDtype dtype) {
  switch (dtype) {
    case CustomDtype::kFp8: return 1;
    case CustomDtype::kInt4: return 1.0 / 2;
    case CustomDtype::kInt2: return 1.0 / 4;
  }
  TORCH_CHECK_VALUE(false, "no such CustomDtype: ", static_cast<int>(dtype));
}

}  // namespace accelerate
