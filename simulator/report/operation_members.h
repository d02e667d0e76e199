/// Which slices belong to which collective or message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

class OperationMembers {
 public:
  explicit OperationMembers(const Trace& trace);

  /// Indices into Trace::slices, in the order of start, rank and stream. Empty if none was kept.
  absl::Span<const uint32_t> of(size_t operation) const {
    return absl::MakeConstSpan(slices_).subspan(begins_[operation],
                                                begins_[operation + 1] - begins_[operation]);
  }

 private:
  std::vector<size_t> begins_;  // by operation, and the end
  std::vector<uint32_t> slices_;
};

}  // namespace accelerate::simulator
