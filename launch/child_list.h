/// Who the children of a process are, adopted ones included.
#pragma once

#include <sys/types.h>

#include <vector>

namespace accelerate::launch {

/// The living and the unreaped children of `parent`, in no order. A snapshot: it may be out of date
/// when it is returned. Empty if /proc cannot be read.
std::vector<pid_t> children_of(pid_t parent);

}  // namespace accelerate::launch
