#include "accelerate/base/rank_text.h"

#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace accelerate {

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

}  // namespace accelerate
