/// Amounts of memory: in text, and per element.
///
/// Threads: pure functions.
/// Mirrors: accelerate utils/modeling.py, convert_file_size_to_int and dtype_byte_size;
///          utils/other.py, convert_bytes.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "accelerate/base/enums.h"
#include "accelerate/base/number_text.h"

namespace accelerate {

/// Bytes: a number with KB, MB or GB (powers of 1000) or KiB, MiB or GiB (of 1024), the unit in any
/// case. A small b at the end of the former means bits: "1Gb" is 125000000. Fractions of a byte are
/// cut off. Errors: c10::ValueError for anything else, for negative numbers, and above 2^63 - 1.
int64_t convert_file_size_to_int(std::string_view size);
/// The number itself. Errors: c10::ValueError for a negative one.
int64_t convert_file_size_to_int(int64_t size);
int64_t convert_file_size_to_int(std::floating_point auto size) = delete;

/// "1023 bytes", "1.0 KB", "117.74 MB": units of 1024 up to PB, two digits after the point.
inline std::string convert_bytes(int64_t size) { return byte_text(size); }
/// As well, of sizes with fractions: "512.5 bytes".
std::string convert_bytes(std::floating_point auto size) {
  return byte_text(static_cast<double>(size));
}

/// Bytes per element; a fraction where several share one. A bool counts a bit.
double dtype_byte_size(c10::ScalarType dtype);
double dtype_byte_size(CustomDtype dtype);

}  // namespace accelerate
