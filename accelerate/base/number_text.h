/// Numbers and truth values in the spelling of HF Accelerate's configuration files and environment
/// variables, and amounts of memory.
///
/// In what is parsed, white space around a number, a leading plus and single underscores between
/// digits are allowed.
/// Threads: pure functions.
/// Mirrors: Python's int(text), float(text) and repr(float).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate {

/// y yes t true on 1 / n no f false off 0, in any case. Absent for anything else.
std::optional<bool> parse_bool(std::string_view text);

/// Absent unless the text is a whole decimal number of 64 bits.
std::optional<int64_t> parse_int(std::string_view text);

/// Absent unless the text is a number. "inf" and "nan" are numbers, in any case.
std::optional<double> parse_float(std::string_view text);

/// Bytes of a number with KB, MB or GB (powers of 1000) or KiB, MiB or GiB (of 1024), the unit in
/// any case. A small b at the end of the former means bits: "1Gb" is 125000000. Fractions of a byte
/// are cut off. Absent for anything else, for negative numbers, and above 2^63 - 1.
/// Mirrors: accelerate utils/modeling.py, convert_file_size_to_int.
std::optional<int64_t> parse_byte_size(std::string_view size);

/// The shortest text that reads back as the same number, with a point or an exponent: "1.0",
/// "0.1", "1e-05", "inf".
std::string float_text(double value);

/// "413.18 MB", "1.0 KB", "512 bytes": units in steps of 1024 up to PB, two decimals at most.
/// Mirrors: accelerate utils/other.py, convert_bytes, for an int and for a float ("512.0 bytes").
std::string byte_text(int64_t bytes);
std::string byte_text(double bytes);

/// "1.50 GiB", "512 bytes": as LibTorch's allocators write it.
std::string binary_byte_text(int64_t bytes);

}  // namespace accelerate
