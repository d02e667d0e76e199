#include "simulator/hardware/spelling.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate::simulator {
namespace {

constexpr size_t kMaxSuggestions = 3;
// Distances are quadratic in the length; nobody meant a name by more characters than this.
constexpr size_t kMaxWord = 64;

// Levenshtein's distance, row by row.
size_t edit_distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> nearest_names(absl::string_view word,
                                       const std::vector<std::string>& names) {
  if (word.size() > kMaxWord) return {};
  const std::string lower = absl::AsciiStrToLower(word);
  std::vector<std::pair<size_t, size_t>> ranked;  // distance, index
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t distance = edit_distance(lower, absl::AsciiStrToLower(names[i]));
    if (2 * distance <= std::max(lower.size(), names[i].size())) ranked.emplace_back(distance, i);
  }
  std::sort(ranked.begin(), ranked.end());
  if (ranked.size() > kMaxSuggestions) ranked.resize(kMaxSuggestions);
  std::vector<std::string> nearest;
  for (const auto& [distance, index] : ranked) nearest.push_back(names[index]);
  return nearest;
}

std::string suggestion(absl::string_view word, const std::vector<std::string>& names) {
  const std::vector<std::string> nearest = nearest_names(word, names);
  if (nearest.empty()) return absl::StrCat("one of ", absl::StrJoin(names, ", "));
  return absl::StrCat("did you mean \"", absl::StrJoin(nearest, "\" or \""), "\"?");
}

}  // namespace accelerate::simulator
