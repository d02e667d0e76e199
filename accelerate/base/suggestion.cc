#include "accelerate/base/suggestion.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

constexpr size_t kMaxSuggestions = 3;
// The distance takes quadratic time, and no misspelt name is longer than this.
constexpr size_t kMaxWord = 64;

// Damerau's distance in its restricted form: no swapped pair is edited again.
size_t edit_distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

// The names that are near, the nearest first. `max_distance` is a function of the name.
template <typename MaxDistance>
std::vector<std::string> names_near(absl::string_view word, absl::Span<const std::string> names,
                                    const MaxDistance& max_distance) {
  if (word.size() > kMaxWord) return {};
  const std::string lower = absl::AsciiStrToLower(word);
  std::vector<std::pair<size_t, size_t>> ranked;  // distance, index
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = absl::AsciiStrToLower(names[i]);
    // A beginning is as good as one wrong letter.
    const bool is_beginning = word.size() > 3 && absl::StartsWith(name, lower);
    size_t distance = edit_distance(lower, name);
    if (is_beginning) distance = std::min<size_t>(distance, 1);
    if (distance <= max_distance(name)) ranked.emplace_back(distance, i);
  }
  std::sort(ranked.begin(), ranked.end());
  if (ranked.size() > kMaxSuggestions) ranked.resize(kMaxSuggestions);
  std::vector<std::string> nearest;
  for (const auto& [distance, index] : ranked) nearest.push_back(names[index]);
  return nearest;
}

}  // namespace

std::vector<std::string> nearest_names(absl::string_view word,
                                       absl::Span<const std::string> names) {
  const size_t most = std::max<size_t>(2, word.size() / 3);
  return names_near(word, names, [most](const std::string& /*name*/) { return most; });
}

std::string did_you_mean(absl::string_view word, absl::Span<const std::string> names,
                         absl::string_view prefix) {
  const std::vector<std::string> nearest = nearest_names(word, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", prefix, nearest[0], "?");
}

std::string suggestion(absl::string_view word, absl::Span<const std::string> names) {
  // Without a near name all names follow, so a distant one is better than none.
  const std::vector<std::string> nearest = names_near(
      word, names, [&](const std::string& name) { return std::max(word.size(), name.size()) / 2; });
  if (nearest.empty()) return absl::StrCat("one of ", absl::StrJoin(names, ", "));
  return absl::StrCat("did you mean \"", absl::StrJoin(nearest, "\" or \""), "\"?");
}

}  // namespace accelerate
