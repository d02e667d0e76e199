/// What decided how long a training step took: the chain of work and waits that ends with the step,
/// each part of which began when the one before it ended.
///
/// The path is followed backwards from the end of rank 0's step. Work of a stream began when the
/// work before it ended, when work of another stream ended that it waited for, or when the host
/// issued it; a collective or message when its last member was ready, so that the path goes on at
/// that member; and a host that waited goes on when what it waited for ended. Where several
/// end at one instant the path has one of them.
///
/// Shortening what is on the path shortens the step, until another chain is the longest. What is
/// not on it costs nothing today.
///
/// Units: nanoseconds of virtual time.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

enum class PathPart : uint8_t {
  kAttention,      ///< as in StepActivity
  kProducts,       ///< as in StepActivity
  kOtherKernels,   ///< as in StepActivity
  kCommunication,  ///< a collective or message; kernels beside it may run, and decide nothing
  kStraggler,      ///< what the last member did while another one waited for it
  kCopies,         ///< to and from the host, and between devices
  kDisk,           ///< the host waits for a file
  kHost,           ///< the host issues operators, waits for the store, or sleeps
};

/// What one rank did without a gap.
struct PathSegment {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int32_t rank = 0;
  PathPart part = PathPart::kHost;
  uint32_t name = 0;   ///< index into Trace::names: of the operator or collective; 0: of the host
  uint32_t group = 0;  ///< kCommunication: that of the process group
};

/// The segments of one kind together.
struct PathShare {
  PathPart part = PathPart::kHost;
  uint32_t name = 0;   ///< kCommunication: the collective's; else 0
  uint32_t group = 0;  ///< kCommunication
  int32_t rank = -1;   ///< kStraggler: who; else -1
  int64_t segments = 0;
  int64_t total_ns = 0;
};

struct CriticalPath {
  int64_t step = 0;  ///< the number, from 0
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// They add up to the step. By time, the longest first.
  std::vector<PathShare> shares;
  /// The longest ones, the longest first; at most kLongestSegments.
  std::vector<PathSegment> longest;
  /// The ranks that the path goes through, without repeats, ascending.
  std::vector<int> ranks;
};
inline constexpr size_t kLongestSegments = 10;

/// The path of the median step; none if the trace has no step, no times or not all slices.
std::optional<CriticalPath> critical_path(const Trace& trace);

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::PathPart, "part of a path", "attention", "matrix products",
                      "other kernels", "communication", "waiting for a straggler", "copies", "disk",
                      "host")

}  // namespace accelerate
