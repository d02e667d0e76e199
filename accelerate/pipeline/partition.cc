#include "accelerate/pipeline/partition.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"

namespace accelerate::pipeline {
namespace {

absl::Status check_stages(size_t parts, int stages) {
  if (stages < 1) return invalid("a pipeline has at least 1 stage, but got ", stages);
  if (static_cast<size_t>(stages) <= parts) return absl::OkStatus();
  return invalid("a model of ", parts, " parts cannot have ", stages, " stages; it can have ",
                 parts, " at most");
}

// The sums of the weights before each part, and of all.
absl::StatusOr<std::vector<int64_t>> sums_of(absl::Span<const int64_t> weights) {
  std::vector<int64_t> sums = {0};
  for (const int64_t weight : weights) {
    if (weight < 0) return invalid("part ", sums.size() - 1, " has the weight ", weight);
    if (weight > std::numeric_limits<int64_t>::max() - sums.back()) {
      return invalid("the weights of the parts are more than 2^63 - 1 together");
    }
    sums.push_back(sums.back() + weight);
  }
  return sums;
}

// Whether so many stages are enough where none is larger than `limit`.
bool fits(absl::Span<const int64_t> sums, int stages, int64_t limit) {
  size_t begin = 0;
  for (int stage = 0; stage < stages && begin + 1 < sums.size(); ++stage) {
    // The last end that the stage can have.
    const auto end =
        std::upper_bound(sums.begin(), sums.end(), limit,
                         [&](int64_t most, int64_t sum) { return sum - sums[begin] > most; });
    begin = static_cast<size_t>(end - sums.begin()) - 1;
  }
  return begin + 1 == sums.size();
}

// The size of the largest stage, where it is as small as can be.
int64_t least_limit(absl::Span<const int64_t> sums, int stages) {
  int64_t least = 0;
  int64_t most = sums.back();
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    if (fits(sums, stages, middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

// From the last stage to the first one: how the parts from each one on are best cut into stages of
// at most `limit`.
class EvenCuts {
 public:
  EvenCuts(absl::Span<const int64_t> sums, int64_t limit)
      : sums_(sums), limit_(limit), squares_(sums.size(), kNone) {
    squares_.back() = 0;
  }

  StageCuts cut(int stages) {
    std::vector<std::vector<size_t>> ends;
    for (int i = 0; i < stages; ++i) ends.push_back(add_stage());
    StageCuts cuts;
    size_t begin = 0;
    for (; !ends.empty(); ends.pop_back()) {
      cuts.push_back(begin);
      begin = ends.back()[begin];
    }
    return cuts;
  }

 private:
  // Larger than the square of any sum.
  static constexpr absl::uint128 kNone = absl::Uint128Max();

  // Puts one more stage in front, and returns by its first part where it ends.
  std::vector<size_t> add_stage() {
    std::vector<size_t> ends(sums_.size());
    std::vector<absl::uint128> squares(sums_.size(), kNone);
    for (size_t begin = 0; begin + 1 < sums_.size(); ++begin) {
      for (size_t end = begin + 1; end < sums_.size(); ++end) {
        const int64_t size = sums_[end] - sums_[begin];
        if (size > limit_) break;
        if (squares_[end] == kNone) continue;
        const absl::uint128 square = absl::uint128(size) * absl::uint128(size) + squares_[end];
        if (square > squares[begin]) continue;
        squares[begin] = square;
        ends[begin] = end;
      }
    }
    squares_ = std::move(squares);
    return ends;
  }

  const absl::Span<const int64_t> sums_;
  const int64_t limit_;
  // By the first part, of the stages so far.
  std::vector<absl::uint128> squares_;
};

}  // namespace

absl::StatusOr<StageCuts> cut_by_weight(absl::Span<const int64_t> weights, int stages) {
  ACCELERATE_RETURN_IF_ERROR(check_stages(weights.size(), stages));
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<int64_t> sums, sums_of(weights));
  return EvenCuts(sums, least_limit(sums, stages)).cut(stages);
}

absl::StatusOr<StageCuts> cut_by_count(size_t parts, int stages) {
  ACCELERATE_RETURN_IF_ERROR(check_stages(parts, stages));
  const auto count = static_cast<size_t>(stages);
  StageCuts cuts;
  for (size_t i = 0; i < count; ++i)
    cuts.push_back(i * (parts / count) + std::min(i, parts % count));
  return cuts;
}

absl::StatusOr<StageCuts> cut_by_names(absl::Span<const std::string> parts,
                                       absl::Span<const std::string> begins) {
  StageCuts cuts = {0};
  for (const std::string& name : begins) {
    const auto found = std::find(parts.begin(), parts.end(), name);
    if (found == parts.end()) {
      return invalid("a stage is to begin at \"", name, "\", which is not a part of the model; ",
                     suggestion(name, parts));
    }
    const auto place = static_cast<size_t>(found - parts.begin());
    if (place == 0) {
      return invalid("a stage is to begin at \"", name,
                     "\", the first part, at which the first stage begins anyway; name later "
                     "parts");
    }
    if (place <= cuts.back()) {
      return invalid("a stage is to begin at \"", name, "\" behind one that begins at \"",
                     parts[cuts.back()], "\"; name parts once and in the model's order");
    }
    cuts.push_back(place);
  }
  return cuts;
}

}  // namespace accelerate::pipeline
