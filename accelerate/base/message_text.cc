#include "accelerate/base/message_text.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace accelerate {
namespace {

constexpr size_t kMaxSuggestions = 3;
// The distance takes quadratic time, and no misspelt name is longer than this.
constexpr size_t kMaxWord = 64;

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

std::string rank_ranges(absl::Span<const int> ranks, absl::string_view separator) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    absl::StrAppend(&text, first == 0 ? "" : separator, ranks[first]);
    if (last > first) absl::StrAppend(&text, "-", ranks[last]);
    first = last + 1;
  }
  return text;
}

std::string rank_list(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", rank_ranges(ranks, ", "));
}

std::string lines_by_rank(const std::vector<std::pair<int, std::string>>& texts) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  std::unordered_map<std::string, size_t> group_of;
  for (const auto& [rank, text] : texts) {
    if (text.empty()) continue;
    auto [found, inserted] = group_of.try_emplace(text, groups.size());
    if (inserted) groups.push_back({text, {}});
    groups[found->second].second.push_back(rank);
  }
  std::string lines;
  for (const auto& [text, ranks] : groups) {
    absl::StrAppend(&lines, lines.empty() ? "" : "\n", "  ", rank_list(ranks), ": ", text);
  }
  return lines;
}

std::string shell_quoted(absl::string_view word) {
  constexpr absl::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == absl::string_view::npos) {
    return std::string(word);
  }
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string shell_line(absl::Span<const std::string> words) {
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) {
    absl::StrAppend(out, shell_quoted(word));
  });
}

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
