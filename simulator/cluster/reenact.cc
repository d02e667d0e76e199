#include "simulator/cluster/reenact.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int kMostRanks = 1024;
// Collectives of each group that are made although they had ended, so that the report shows them.
constexpr uint64_t kCallsBefore = 3;

struct RecordedGroup {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  std::vector<int> ranks;       // ascending
  uint64_t called = 0;          // collectives, by the member that made most
  uint64_t ended = 0;           // those known to have ended at a member
  uint64_t first_open = kNone;  // the first that had not ended at a member
  uint64_t known_from = 0;      // the first that the dumps of all members have
  uint64_t first = 0;           // the first that is made again
};

// One of a rank's calls.
struct RecordedCall {
  const CollectiveFingerprint* fingerprint;
  const std::string* group;
};

// What all ranks do. It has views of the dumps.
struct CallPlan {
  std::map<std::string, RecordedGroup> groups;   // by name
  std::vector<std::vector<RecordedCall>> calls;  // by rank
  std::vector<std::string> notes;
};

bool is_message(const OperationRecord& record) { return c10d::isP2POp(record.fingerprint.op); }

bool has(const std::vector<int>& ascending_ranks, int rank) {
  return std::ranges::binary_search(ascending_ranks, rank);
}

// The members of each group. Errors: as reenact().
absl::Status find_members(const std::vector<RankDump>& dumps, const std::vector<int>& with_dump,
                          std::map<std::string, RecordedGroup>& groups) {
  for (const RankDump& dump : dumps) {
    const int rank = dump.history.rank;
    for (size_t i = 0; i < dump.history.groups.size(); ++i) {
      const std::string& name = dump.history.groups[i].name;
      std::vector<int> ranks = dump.members[i].empty() ? with_dump : dump.members[i];
      std::ranges::sort(ranks);
      const bool is_wrong = ranks.front() < 0 || std::ranges::adjacent_find(ranks) != ranks.end() ||
                            !has(ranks, rank);
      if (is_wrong) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the dump of rank ", rank, " says that group \"", name, "\" has ", rank_list(ranks)));
      }
      std::vector<int>& known = groups[name].ranks;
      if (!known.empty() && known != ranks) {
        return absl::InvalidArgumentError(
            absl::StrCat("group \"", name, "\" has ", rank_list(ranks), " in the dump of rank ",
                         rank, ", and ", rank_list(known), " in another"));
      }
      known = std::move(ranks);
    }
  }
  return absl::OkStatus();
}

// Which collectives of each group are made again.
void find_first_calls(const std::vector<RankDump>& dumps, const std::vector<int>& with_dump,
                      std::map<std::string, RecordedGroup>& groups) {
  for (const RankDump& dump : dumps) {
    const std::vector<GroupRecord>& known = dump.history.groups;
    std::vector<uint64_t> firsts;  // by group
    for (const GroupRecord& group : known) firsts.push_back(group.collectives);
    for (const OperationRecord& record : dump.history.operations) {
      if (record.state == OperationState::kRefused || is_message(record)) continue;
      const uint64_t sequence = record.fingerprint.sequence;
      firsts[record.group] = std::min(firsts[record.group], sequence);
      RecordedGroup& group = groups[known[record.group].name];
      if (record.state == OperationState::kDone) {
        group.ended = std::max(group.ended, sequence + 1);
      } else {
        group.first_open = std::min(group.first_open, sequence);
      }
    }
    for (size_t i = 0; i < known.size(); ++i) {
      RecordedGroup& group = groups[known[i].name];
      group.called = std::max(group.called, known[i].collectives);
      group.known_from = std::max(group.known_from, firsts[i]);
    }
  }
  for (auto& [name, group] : groups) {
    const uint64_t until = std::min(group.first_open, group.called);
    group.first = std::max(group.known_from, until - std::min(until, kCallsBefore));
    // What had ended was called by all members, also by those whose calls are not known.
    const bool lacks_dumps =
        !std::ranges::all_of(group.ranks, [&](int rank) { return has(with_dump, rank); });
    if (lacks_dumps) group.first = std::max(group.first, group.ended);
  }
}

absl::StatusOr<CallPlan> plan_of(const std::vector<RankDump>& dumps) {
  std::vector<int> with_dump;
  for (const RankDump& dump : dumps) with_dump.push_back(dump.history.rank);
  std::ranges::sort(with_dump);
  if (with_dump.empty() || with_dump.front() < 0 ||
      std::ranges::adjacent_find(with_dump) != with_dump.end()) {
    return absl::InvalidArgumentError("there is not one dump of each rank");
  }
  CallPlan plan;
  ACCELERATE_RETURN_IF_ERROR(find_members(dumps, with_dump, plan.groups));
  // A damaged dump may have any number.
  int64_t num_ranks = int64_t{with_dump.back()} + 1;
  for (const auto& [name, group] : plan.groups) {
    num_ranks = std::max(num_ranks, int64_t{group.ranks.back()} + 1);
  }
  if (num_ranks > kMostRanks) {
    return absl::UnimplementedError(absl::StrCat("the job has ", num_ranks, " ranks, and at most ",
                                                 kMostRanks, " are simulated for it"));
  }
  find_first_calls(dumps, with_dump, plan.groups);
  plan.calls.resize(num_ranks);
  bool lacks_reductions = false;
  int left_out = 0;
  for (const RankDump& dump : dumps) {
    for (const OperationRecord& record : dump.history.operations) {
      const auto& [name, group] = *plan.groups.find(dump.history.groups[record.group].name);
      const CollectiveFingerprint& call = record.fingerprint;
      const bool is_over =
          is_message(record) ? record.state == OperationState::kDone : call.sequence < group.first;
      if (record.state == OperationState::kRefused || is_over) continue;
      if (call.op == OpType::UNKNOWN || call.op == OpType::COALESCED) {
        ++left_out;
        continue;
      }
      const bool reduces = call.op == OpType::ALLREDUCE || call.op == OpType::REDUCE ||
                           call.op == OpType::_REDUCE_SCATTER_BASE;
      lacks_reductions |= reduces && call.reduce_op == ReduceOp::UNUSED;
      plan.calls[dump.history.rank].push_back({&call, &name});
    }
  }
  std::vector<int> without;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (!has(with_dump, rank)) without.push_back(rank);
  }
  if (!without.empty()) {
    plan.notes.push_back(absl::StrCat("no dump and no calls: ", rank_list(without)));
  }
  for (const auto& [name, group] : plan.groups) {
    if (group.first == 0) continue;
    plan.notes.push_back(
        absl::StrCat("group \"", name, "\": call #0 is #", group.first, " in the dumps"));
  }
  if (lacks_reductions) {
    plan.notes.emplace_back("the dumps do not say what reductions compute: they are sums");
  }
  if (left_out > 0) {
    plan.notes.push_back(absl::StrCat("left out, because their kind is not known: ", left_out,
                                      left_out == 1 ? " call" : " calls"));
  }
  return plan;
}

// One rank's part in a group.
class GroupMember {
 public:
  GroupMember(Rank& rank, const std::string& name, const std::vector<int>& ranks)
      : group_(rank.runtime().new_group({.ranks = ranks, .name = name})),
        backend_(group_->getBackend(c10::kPrivateUse1)),
        here_(at::TensorOptions(rank.runtime().device())) {}

  // Errors: c10::Error for what cannot be made, DistBackendError where the group has failed.
  WorkPtr make(const CollectiveFingerprint& call);

 private:
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
    const bool is_known = dtype != at::ScalarType::Undefined;
    return at::empty(sizes, here_.dtype(is_known ? dtype : at::ScalarType::Byte));
  }
  Tensors share_of(const CollectiveFingerprint& call) const;
  // For each rank one like that, in tensors of their own or one after the other.
  Tensors for_ranks(const at::Tensor& part) const;
  Tensors in_one(const Tensors& parts) const;
  WorkPtr exchange(const Tensors& parts);

  int size() const { return backend_->getSize(); }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const at::TensorOptions here_;
};

Tensors GroupMember::share_of(const CollectiveFingerprint& call) const {
  Tensors tensors;
  const int64_t* sizes = call.sizes.data();
  for (size_t i = 0; i < call.dims.size(); ++i) {
    tensors.push_back(
        empty(at::IntArrayRef(sizes, static_cast<size_t>(call.dims[i])), call.dtypes[i]));
    sizes += call.dims[i];
  }
  TORCH_CHECK_VALUE(!tensors.empty() || call.op == OpType::BARRIER, "the dump has no shapes");
  return tensors;
}

Tensors GroupMember::for_ranks(const at::Tensor& part) const {
  Tensors all;
  for (int rank = 0; rank < size(); ++rank) {
    all.push_back(empty(part.sizes(), part.scalar_type()));
  }
  return all;
}

Tensors GroupMember::in_one(const Tensors& parts) const {
  Tensors wholes;
  for (const at::Tensor& part : parts) {
    wholes.push_back(empty({part.numel() * size()}, part.scalar_type()));
  }
  return wholes;
}

// An all-to-all in which each rank keeps what it has.
WorkPtr GroupMember::exchange(const Tensors& parts) {
  int64_t elements = 0;
  for (const at::Tensor& part : parts) elements += part.numel();
  at::Tensor input = parts.size() == 1 && parts[0].dim() > 0
                         ? parts[0]
                         : empty({elements}, parts[0].scalar_type());
  at::Tensor output = empty(input.sizes(), input.scalar_type());
  std::vector<int64_t> input_splits(size());
  input_splits[backend_->getRank()] = input.size(0);
  std::vector<int64_t> output_splits = input_splits;
  return backend_->alltoall_base(output, input, output_splits, input_splits,
                                 c10d::AllToAllOptions());
}

WorkPtr GroupMember::make(const CollectiveFingerprint& call) {
  Tensors share = share_of(call);
  const int root = std::max(call.root, 0);
  const int tag = std::max(call.tag, 0);
  const bool is_root = backend_->getRank() == root;
  const bool is_known =
      call.reduce_op != ReduceOp::UNUSED && call.reduce_op != ReduceOp::PREMUL_SUM;
  const ReduceOp reduction(is_known ? call.reduce_op : ReduceOp::SUM);
  // The options, with the reduction and the root if they have such.
  const auto with = [&](auto options) {
    if constexpr (requires { options.reduceOp; }) options.reduceOp = reduction;
    if constexpr (requires { options.rootRank; }) options.rootRank = root;
    return options;
  };
  switch (call.op) {
    case OpType::BARRIER: return backend_->barrier(c10d::BarrierOptions());
    case OpType::ALLREDUCE:
    case OpType::_ALLREDUCE_SPARSE:
      return backend_->allreduce(share, with(c10d::AllreduceOptions()));
    case OpType::ALLREDUCE_COALESCED:
      return backend_->allreduce_coalesced(share, with(c10d::AllreduceCoalescedOptions()));
    case OpType::BROADCAST: return backend_->broadcast(share, with(c10d::BroadcastOptions()));
    case OpType::REDUCE: return backend_->reduce(share, with(c10d::ReduceOptions()));
    case OpType::ALLGATHER: {
      std::vector<Tensors> outputs{for_ranks(share[0])};
      return backend_->allgather(outputs, share, c10d::AllgatherOptions());
    }
    case OpType::ALLGATHER_COALESCED: {
      std::vector<Tensors> outputs(size());
      for (Tensors& of_rank : outputs) of_rank = share_of(call);
      return backend_->allgather_coalesced(outputs, share, c10d::AllgatherOptions());
    }
    case OpType::_ALLGATHER_BASE: {
      Tensors outputs = in_one(share);
      return backend_->allgather_into_tensor_coalesced(outputs, share, c10d::AllgatherOptions());
    }
    case OpType::GATHER: {
      std::vector<Tensors> outputs;
      if (is_root) outputs.push_back(for_ranks(share[0]));
      return backend_->gather(outputs, share, with(c10d::GatherOptions()));
    }
    case OpType::SCATTER: {
      std::vector<Tensors> inputs;
      if (is_root) inputs.push_back(for_ranks(share[0]));
      return backend_->scatter(share, inputs, with(c10d::ScatterOptions()));
    }
    case OpType::REDUCE_SCATTER: {
      std::vector<Tensors> inputs{for_ranks(share[0])};
      return backend_->reduce_scatter(share, inputs, with(c10d::ReduceScatterOptions()));
    }
    case OpType::_REDUCE_SCATTER_BASE: {
      Tensors inputs = in_one(share);
      return backend_->reduce_scatter_tensor_coalesced(share, inputs,
                                                       with(c10d::ReduceScatterOptions()));
    }
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE: return exchange(share);
    case OpType::SEND: return backend_->send(share, call.peer, tag);
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return call.peer >= 0 ? backend_->recv(share, call.peer, tag)
                            : backend_->recvAnysource(share, tag);
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "this kind of call is not known");
  }
}

// A rank's program. `problem` gets the first call that cannot be made.
void make_calls(Rank& rank, const CallPlan& plan, std::string& problem) {
  std::map<std::string, GroupMember> members;
  for (const auto& [name, group] : plan.groups) {
    if (has(group.ranks, rank.index())) members.try_emplace(name, rank, name, group.ranks);
  }
  std::vector<WorkPtr> works;
  for (const RecordedCall& call : plan.calls[rank.index()]) {
    try {
      works.push_back(members.at(*call.group).make(*call.fingerprint));
    } catch (const c10::DistBackendError&) {
      throw;
    } catch (const c10::Error& error) {
      if (problem.empty()) {
        problem = absl::StrCat("rank ", rank.index(), ": ", call.fingerprint->to_string(),
                               " of group \"", *call.group, "\": ", error.what_without_backtrace());
      }
      throw;
    }
  }
  for (const WorkPtr& work : works) work->wait();
}

}  // namespace

std::string Reenactment::to_string() const {
  std::string text =
      failure.empty()
          ? "made again on a simulated cluster, the calls all end: what ranks called fits "
            "together. "
            "Look for a rank that was slow or stood still outside of its calls, and at the "
            "network\n"
          : absl::StrCat("made again on a simulated cluster, the calls fail:\n", failure, "\n");
  for (const std::string& note : notes) absl::StrAppend(&text, "note: ", note, "\n");
  return text;
}

absl::StatusOr<Reenactment> reenact(const std::vector<RankDump>& dumps,
                                    const std::string& repeat_command) {
  ACCELERATE_ASSIGN_OR_RETURN(const CallPlan plan, plan_of(dumps));
  // Shapes alone, because the tensors of a job may be larger than this machine.
  Cluster cluster(absl::StrCat(plan.calls.size(), "x1:h100"), {.numerics = Numerics::kShapes,
                                                               .repeat_command = repeat_command,
                                                               .detect_races = false,
                                                               .detect_leaks = false,
                                                               .detect_drift = false});
  Reenactment again{.notes = plan.notes};
  std::string problem;
  try {
    cluster.run_on_every_rank([&](Rank& rank) { make_calls(rank, plan, problem); });
  } catch (const ClusterError& error) {
    again.failure = error.what();
  }
  if (!problem.empty()) return absl::UnimplementedError(problem);
  return again;
}

}  // namespace accelerate::simulator
