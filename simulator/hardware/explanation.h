/// Text of explanations: `accelerate simulate --explain-op` and `--explain-collective`.
///
/// Threads: any.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::simulator {

/// Four digits and a unit: the first of `units`, or a later one for each `step` of the value.
std::string scaled_text(double value, absl::Span<const char* const> units, double step);

/// "66.8 us".
std::string time_text(double ns);

/// Lines in two columns below headings.
class Explanation {
 public:
  /// `width`: that of the first column.
  explicit Explanation(int width) : width_(width) {}

  void head(absl::string_view line);
  void line(absl::string_view term, absl::string_view value);
  std::string finish() { return std::move(text_); }

 private:
  const int width_;
  std::string text_;
};

}  // namespace accelerate::simulator
