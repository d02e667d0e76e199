/// NCCL's own log, of jobs that left nothing else: which calls each process made on which
/// communicator (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL).
///
///     node1:7:7 [0] NCCL INFO comm 0x5a rank 0 nranks 2 cudaDev 0 busId 1 - Init COMPLETE
///     node1:7:7 [0] NCCL INFO AllReduce: opCount f sendbuff 0x1 recvbuff 0x2 count 512 datatype 7
///                             op 0 root 0 comm 0x5a [nranks=2] stream 0x3
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/comm/watch/rank_dump.h"

namespace accelerate {

/// Whether the text has lines of NCCL's.
bool is_nccl_log(absl::string_view text);

/// The calls of each process in the log of one or more of them, other lines left out, ascending by
/// rank: the process's number in its largest communicator. Communicators are told apart by NCCL's
/// commId, and in versions without it by their sizes and the order in which a process made them.
/// The calls of a communicator count from 0, the first in the log. No log says when a call ended:
/// the last of each communicator counts as one that has not.
std::vector<RankDump> read_nccl_log(absl::string_view text);

}  // namespace accelerate
