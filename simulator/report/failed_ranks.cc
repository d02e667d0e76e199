#include "simulator/report/failed_ranks.h"

#include <map>
#include <utility>

namespace accelerate::simulator {

std::vector<FailedRanks> failed_ranks(const RunFailure& failure) {
  std::vector<FailedRanks> rows;
  std::map<std::pair<std::string, std::string>, size_t> row_of;
  for (size_t rank = 0; rank < failure.ranks.size(); ++rank) {
    const RankAtFailure& each = failure.ranks[rank];
    const auto [found, is_new] = row_of.insert({{each.state, each.last_call}, rows.size()});
    if (is_new) rows.push_back({.at_failure = each});
    rows[found->second].ranks.push_back(static_cast<int>(rank));
  }
  return rows;
}

}  // namespace accelerate::simulator
