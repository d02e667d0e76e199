#include "simulator/report/operation_members.h"

#include <algorithm>
#include <tuple>

namespace accelerate::simulator {

OperationMembers::OperationMembers(const Trace& trace) : begins_(trace.operations.size() + 1) {
  // Counting sort by operation.
  for (const Slice& slice : trace.slices) {
    if (slice.operation >= 0) ++begins_[slice.operation + 1];
  }
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  slices_.resize(begins_.back());
  std::vector<size_t> next(begins_.begin(), begins_.end() - 1);
  for (size_t i = 0; i < trace.slices.size(); ++i) {
    const int64_t operation = trace.slices[i].operation;
    if (operation >= 0) slices_[next[operation]++] = static_cast<uint32_t>(i);
  }
  const auto before = [&trace](uint32_t a, uint32_t b) {
    const Slice& left = trace.slices[a];
    const Slice& right = trace.slices[b];
    return std::tie(left.start_ns, left.rank, left.stream) <
           std::tie(right.start_ns, right.rank, right.stream);
  };
  for (size_t i = 0; i + 1 < begins_.size(); ++i) {
    std::sort(slices_.begin() + begins_[i], slices_.begin() + begins_[i + 1], before);
  }
}

}  // namespace accelerate::simulator
