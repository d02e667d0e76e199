#include "accelerate/data/sequence_reader.h"

namespace accelerate::internal {

BatchRound round_of_member(const BatchRound& round, int member, int group, int shares,
                           int64_t rows) {
  BatchRound own = round;
  if (round.real_rows != BatchRound::kAll && !round.ragged) {
    own.real_rows = 0;
    for (int share = member; share < shares; share += group) {
      own.real_rows += std::clamp<int64_t>(round.real_rows - share * rows, 0, rows);
    }
  }
  // Those that have a batch are the first ones.
  if (round.shares > 0) own.shares = std::max(0, (round.shares - member + group - 1) / group);
  return own;
}

}  // namespace accelerate::internal
