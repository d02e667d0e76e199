#include "accelerate/base/byte_text.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/number_text.h"

namespace accelerate {

std::string byte_text(int64_t bytes) {
  return bytes < 1024 ? absl::StrCat(bytes, " bytes") : byte_text(static_cast<double>(bytes));
}

std::string byte_text(double bytes) {
  const char* unit = "bytes";
  for (const char* next : {"KB", "MB", "GB", "TB", "PB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  const std::string two_decimals = absl::StrFormat("%.2f", bytes);
  return absl::StrCat(float_text(std::strtod(two_decimals.c_str(), nullptr)), " ", unit);
}

std::string binary_byte_text(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  double value = static_cast<double>(bytes);
  const char* unit = "bytes";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.2f %s", value, unit);
}

}  // namespace accelerate
