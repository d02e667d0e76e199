/// Amounts of memory as text.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace accelerate {

/// "413.18 MB", "1.0 KB", "512 bytes": units in steps of 1024 up to PB, two decimals at most.
/// Mirrors: accelerate utils/other.py, convert_bytes, for an int and for a float ("512.0 bytes").
std::string byte_text(int64_t bytes);
std::string byte_text(double bytes);

/// "1.50 GiB", "512 bytes": as LibTorch's allocators write it.
std::string binary_byte_text(int64_t bytes);

}  // namespace accelerate
