/// Gloo process groups whose ranks are threads of one process, for unit tests of collectives.
///
///     run_ranks(3, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) { ... });
///
/// Errors: what a rank's body throws ends the process, for the others wait for it.
/// Threads: one per rank.
#pragma once

#include <functional>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate {

/// Runs `body` once per rank, at the same time. The groups end together.
void run_ranks(int size,
               const std::function<void(const c10::intrusive_ptr<c10d::ProcessGroup>&)>& body);

}  // namespace accelerate
