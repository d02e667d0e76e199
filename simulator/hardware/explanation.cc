#include "simulator/hardware/explanation.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace accelerate::simulator {

std::string scaled_text(double value, absl::Span<const char* const> units, double step) {
  size_t unit = 0;
  for (; value >= step && unit + 1 < units.size(); ++unit) value /= step;
  return absl::StrFormat("%.4g %s", value, units[unit]);
}

std::string time_text(double ns) { return scaled_text(ns, {"ns", "us", "ms", "s"}, 1000); }

void Explanation::head(absl::string_view line) { absl::StrAppend(&text_, line, "\n"); }

void Explanation::line(absl::string_view term, absl::string_view value) {
  absl::StrAppend(&text_, absl::StrFormat("  %-*s", width_ - 1, term), " ", value, "\n");
}

}  // namespace accelerate::simulator
