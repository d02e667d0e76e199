/// Every method that is collective, to be called by one rank alone, and what the other ranks do
/// meanwhile: the same table for simulated ranks and for real processes.
///
/// A new collective method gets a row in collective_calls.cc.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

namespace accelerate::watch_tests {

struct CollectiveCall {
  std::string name;
  /// Run by all ranks, together. The result is the call, which is then made by one rank alone.
  std::function<std::function<void()>(Accelerator&)> prepare;
  /// Whether it is an operation of a group that exists, so that members' calls can be compared.
  bool comparable = true;
};

const std::vector<CollectiveCall>& collective_calls();
/// Errors: std::out_of_range.
const CollectiveCall& find_call(const std::string& name);

/// What the ranks that do not make the call do.
enum class Others {
  kEnd,      ///< they end their program
  kCompute,  ///< they compute until the caller has failed, then enter another collective
  kDiffer,   ///< they call another collective at the same time
  kFreeze,   ///< their process stops, for good; two processes only
};

/// How long an operation waits for its peers.
inline constexpr absl::Duration kPatience = absl::Seconds(2);

/// One rank's program: what it throws is the outcome. The caller is rank `caller`.
void run_rank(const CollectiveCall& call, Others others, int caller);

}  // namespace accelerate::watch_tests
