/// One list of what collectives promise, for every backend behind c10d::ProcessGroup.
///
/// An implementation fills in a CollectiveBackend and instantiates the suite:
///
///   INSTANTIATE_TEST_SUITE_P(Gloo, CollectiveContract, ::testing::Values(gloo()), backend_name);
///
/// What a backend cannot do is a capability switched off; the suite then demands that it refuses.
/// Tests never wait for time to pass: what must fail does so within the group's time-out.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/time/time.h"

namespace accelerate::testing {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// The arguments of a rank's part of a test.
struct Member {
  int rank = 0;
  int ranks = 0;
  Group group;  ///< all ranks
  /// A further group of these ranks. Collective over them.
  std::function<Group(const std::vector<int>& ranks)> subgroup;
  /// Adds to a number that all ranks of the run share, wherever they are. Returns the sum so far.
  std::function<int64_t(int64_t)> count;
  /// Where the test's tensors are made.
  c10::Device device = c10::Device(c10::kCPU);
};

/// What becomes of a reduction.
enum class Support {
  kExact,           ///< the result is that of reducing in rank order
  kRefused,         ///< it throws
  kExactOrRefused,  ///< either, as releases of the backend differ: never another result
  kUnspecified,     ///< it does something; do not rely on what
};

struct CollectiveBackend {
  std::string name;
  /// Runs `body` on `ranks` ranks at once, each on a thread or in a process of its own. Returns
  /// each rank's error, empty where there was none.
  std::function<std::vector<std::string>(int ranks, absl::Duration timeout,
                                         const std::function<void(Member&)>& body)>
      run;
  /// What an all-reduce does.
  std::function<Support(c10d::ReduceOp::RedOpType op, at::ScalarType dtype)> reduces;
  /// What c10d's reduce_scatter does with lists of tensors.
  Support reduce_scatter_lists = Support::kExact;
  std::vector<at::ScalarType> moves;  ///< dtypes that broadcast and all_gather carry
  bool all_to_all_lists = true;       ///< c10d's alltoall with lists of tensors
  bool coalescing = true;             ///< startCoalescing and endCoalescing
  bool detects_mismatch = true;       ///< ranks that disagree all fail, and are named
  bool names_missing_ranks = true;    ///< a time-out says who did not come
  bool rejects_strided = true;        ///< non-contiguous tensors are refused
  bool leaves_others_alone = true;    ///< reduce changes nothing but the root's tensor
};

inline std::string backend_name(const ::testing::TestParamInfo<CollectiveBackend>& info) {
  return info.param.name;
}

inline void PrintTo(const CollectiveBackend& backend, std::ostream* out) { *out << backend.name; }

class CollectiveContract : public ::testing::TestWithParam<CollectiveBackend> {
 protected:
  /// Runs `body` on so many ranks; the test fails if any of them does.
  void on_ranks(int ranks, const std::function<void(Member&)>& body) const;

  /// As above, and returns the errors instead.
  std::vector<std::string> errors_on_ranks(int ranks, absl::Duration timeout,
                                           const std::function<void(Member&)>& body) const;
};

}  // namespace accelerate::testing
