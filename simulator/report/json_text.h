/// Parts of JSON text, for files that are too large to build as one value first.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace accelerate::simulator {

/// A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. `<` is escaped, so that
/// the text may be embedded in an HTML script element.
std::string json_string(absl::string_view text);

/// The shortest text that reads back as the same number; null for infinities and NaN.
std::string json_number(double value);

/// Nanoseconds as microseconds with three decimals, without rounding: "12.345".
std::string microseconds(int64_t ns);

/// Returns the comma before every element but the first.
class Separator {
 public:
  const char* next() { return first_ ? (first_ = false, "") : ","; }

 private:
  bool first_ = true;
};

}  // namespace accelerate::simulator
