/// Every collective method, for a call by one rank alone, and the actions of the other ranks in the
/// meantime: one table for simulated ranks and for real processes.
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
  /// All ranks run this function. The result is the call, which one rank alone then makes.
  std::function<std::function<void()>(Accelerator&)> prepare;
  /// Whether the call is an operation of an existing group, so that members' calls can be compared.
  bool comparable = true;
};

const std::vector<CollectiveCall>& collective_calls();
/// Errors: std::out_of_range.
const CollectiveCall& find_call(const std::string& name);

/// The action of the ranks that do not make the call.
enum class Others {
  kEnd,      ///< end their program
  kCompute,  ///< compute until the caller has failed, then enter another collective
  kDiffer,   ///< call another collective at the same time
  kFreeze,   ///< stop their process for good; two processes only
};

/// The time-out of an operation.
inline constexpr absl::Duration kOperationTimeout = absl::Seconds(2);

/// One rank's program; its exception is the outcome. The caller is rank `caller`.
void run_rank(const CollectiveCall& call, Others others, int caller);

/// Calls in which the ranks' nested values differ: every rank fails before anything is exchanged.
struct Difference {
  std::string what;
  std::function<void(Accelerator&, int rank)> call;  // of three ranks
  std::vector<std::string> texts;                    // in the error of every rank
};
std::vector<Difference> differences();

}  // namespace accelerate::watch_tests
