/// What happens in a simulated run when ranks wait in vain.
///
/// Threads: constants.
#pragma once

#include <cstdint>

#include "accelerate/base/enum_text.h"

namespace accelerate::simulator {

enum class TimeOuts : uint8_t {
  /// Ranks that wait for each other, or for one that has ended, are reported at once: their default
  /// time-outs cost no virtual time.
  kDiagnose,
  /// As on a cluster: time passes until the earliest of the time-outs, and the report is made then.
  kWait,
};

/// What the libraries behind process groups do beyond results.
enum class Semantics : uint8_t {
  /// What all of them allow.
  kAny,
  /// Ranks notice at once that a rank whose process has ended has closed its connections.
  kGloo,
  /// A rank's end is noticed by time-outs alone.
  kNccl,
  /// mpirun ends the job when a rank fails.
  kMpi,
};

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::TimeOuts, "time-outs", "diagnose", "wait")

ACCELERATE_ENUM_TEXTS(simulator::Semantics, "semantics", "any", "gloo", "nccl", "mpi")

}  // namespace accelerate
