/// A process group as functions take one. A null pointer stands for the group of one rank alone.
///
/// Threads: as c10d's.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// How many ranks there are in the group, and which one of them this rank is. Local.
inline int size_of(const ProcessGroupPtr& group) { return group != nullptr ? group->getSize() : 1; }
inline int rank_of(const ProcessGroupPtr& group) { return group != nullptr ? group->getRank() : 0; }

}  // namespace accelerate
