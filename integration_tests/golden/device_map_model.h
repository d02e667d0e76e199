/// The placement of a device_map case worked out from names, one step after the other: the
/// independent side of the decisions about device maps. It can make HF Accelerate's faults, by
/// which recorded answers are recognised.
///
/// Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// Faults in the order in which the decisions take them away.
enum class MapFault {
  /// A module counts as the holder of every tensor whose name has the module's in it.
  kSubstrings,
  /// A tied tensor whose module was divided, or placed, ends the plan; further names of a module's
  /// own tied tensors are left out.
  kTiesCrash,
  /// What shares a tensor counts once for each shared tensor, less that tensor's bytes.
  kTiesCountWrong,
  /// Direct buffers of divided modules are left out.
  kLeavesBuffers,
  /// Fallback fails at limits that are not whole.
  kFractionsCrash,
  /// Buffers of tied modules and those that are entries themselves do not count as offloaded.
  kForgetsBuffers,
};
inline constexpr int kNumMapFaults = 6;

/// What one of `in.infer` leads to where the faults before `first_fault` are mended: an outcome
/// with the numbers of warnings and of the log in place of their texts. Null for an error about a
/// limit, of which no fault changes anything.
nlohmann::json place_by_hand(const nlohmann::json& in, const nlohmann::json& infer,
                             int first_fault);

/// The limits that one of `in.balanced` leads to, of which that of "disk" stays; null for an error.
nlohmann::json balance_by_hand(const nlohmann::json& in, const nlohmann::json& balanced);

}  // namespace accelerate::golden
