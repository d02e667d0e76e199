/// PyTorch's Flight Recorder: what a rank writes when a collective times out, a pickle or JSON of
/// its last calls. Reading executes nothing: the pickle is read as the files of torch.save are.
///
/// What a recorder does not have, a log made of it has not either: reduce operations, roots, splits
/// of an all-to-all. Read are dumps of PyTorch 2.6 to 2.15 (versions 2.4 and 2.10 of the format),
/// with the traps of its hooks: a group that is filed under no name, and completed calls that are
/// still "scheduled" but retired. Beside it, NCCL's own log.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/comm/watch/rank_dump.h"

namespace accelerate {

/// A dump of that rank, as a pickle or as JSON. The numbers of calls begin at 0, as in all reports.
/// Errors: DataLoss or Unimplemented for bytes that are neither; InvalidArgument that names what
///         a dump lacks.
absl::StatusOr<RankDump> read_flight_recorder(absl::string_view bytes, int rank);

/// The pickle of a dump, which PyTorch's analyser (torch.distributed.flight_recorder.fr_trace)
/// reads; its file is named PREFIX and the rank. A group's calls are counted from 1.
std::string flight_recorder_pickle(const RankDump& dump);

// ---- NCCL's own log, of jobs that left nothing else: which calls each process made on which
// communicator (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL).
//
//     node1:7:7 [0] NCCL INFO comm 0x5a rank 0 nranks 2 cudaDev 0 busId 1 - Init COMPLETE
//     node1:7:7 [0] NCCL INFO AllReduce: opCount f sendbuff 0x1 recvbuff 0x2 count 512 datatype 7
//                             op 0 root 0 comm 0x5a [nranks=2] stream 0x3

/// Whether the text has lines of NCCL's.
bool is_nccl_log(absl::string_view text);

/// The calls of each process in the log of one or more of them, other lines left out, ascending by
/// rank: the process's number in its largest communicator. Communicators are told apart by NCCL's
/// commId, and in versions without it by their sizes and the order in which a process made them.
/// The calls of a communicator count from 0, the first in the log. No log says when a call ended:
/// the last of each communicator counts as one that has not.
std::vector<RankDump> read_nccl_log(absl::string_view text);

}  // namespace accelerate
