#include "simulator/report/rank_ranges.h"

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {

std::string rank_ranges(absl::Span<const int> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[i]);
    if (last > i) absl::StrAppend(&text, "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace accelerate::simulator
