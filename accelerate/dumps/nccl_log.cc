#include "accelerate/dumps/flight_recorder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

constexpr absl::string_view kMark = " NCCL INFO ";

// By ncclDataType_t and ncclRedOp_t.
constexpr at::ScalarType kTypes[] = {
    at::ScalarType::Char,     at::ScalarType::Byte,          at::ScalarType::Int,
    at::ScalarType::UInt32,   at::ScalarType::Long,          at::ScalarType::UInt64,
    at::ScalarType::Half,     at::ScalarType::Float,         at::ScalarType::Double,
    at::ScalarType::BFloat16, at::ScalarType::Float8_e4m3fn, at::ScalarType::Float8_e5m2};
constexpr ReduceOp::RedOpType kReductions[] = {ReduceOp::SUM, ReduceOp::PRODUCT, ReduceOp::MAX,
                                               ReduceOp::MIN, ReduceOp::AVG};

OpType op_of_nccl(absl::string_view word) {
  if (word == "AllReduce") return OpType::ALLREDUCE;
  if (word == "AllGather") return OpType::_ALLGATHER_BASE;
  if (word == "ReduceScatter") return OpType::_REDUCE_SCATTER_BASE;
  if (word == "Broadcast" || word == "Bcast") return OpType::BROADCAST;
  if (word == "Reduce") return OpType::REDUCE;
  if (word == "AlltoAll" || word == "AllToAll") return OpType::ALLTOALL_BASE;
  if (word == "Gather") return OpType::GATHER;
  if (word == "Scatter") return OpType::SCATTER;
  if (word == "Send") return OpType::SEND;
  if (word == "Recv") return OpType::RECV;
  return OpType::UNKNOWN;
}

using Words = std::vector<absl::string_view>;

// The word behind another; empty without one.
absl::string_view behind(const Words& words, absl::string_view name) {
  const auto found = std::ranges::find(words, name);
  return found != words.end() && std::next(found) != words.end() ? *std::next(found)
                                                                 : absl::string_view();
}

template <typename Number>
Number number_behind(const Words& words, absl::string_view name, Number otherwise) {
  Number number = otherwise;
  return absl::SimpleAtoi(behind(words, name), &number) ? number : otherwise;
}

// "HOST:PID" of "HOST:PID:THREAD [DEVICE]", perhaps behind a time; empty for something else.
std::string process_of(absl::string_view head) {
  const Words words = absl::StrSplit(head, ' ', absl::SkipEmpty());
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    const size_t thread = word->rfind(':');
    const bool has_both = thread != absl::string_view::npos && thread > 0 &&
                          word->rfind(':', thread - 1) != absl::string_view::npos;
    if (has_both && !absl::StartsWith(*word, "[")) return std::string(word->substr(0, thread));
  }
  return "";
}

// A communicator of one process.
struct Communicator {
  std::string name;
  int rank = -1;
  int size = 0;
};

struct Process {
  std::string name;
  std::vector<Communicator> communicators;   // all that it had, in the order of their beginnings
  std::map<std::string, size_t> at_address;  // the latest ones
  RankDump dump;
};

class Reader {
 public:
  void read(absl::string_view line) {
    const size_t mark = line.find(kMark);
    if (mark == absl::string_view::npos) return;
    const std::string name = process_of(line.substr(0, mark));
    if (name.empty()) return;
    const Words words = absl::StrSplit(line.substr(mark + kMark.size()), ' ', absl::SkipEmpty());
    if (absl::StrContains(line, "Init COMPLETE")) return begin(process(name), words);
    if (words.size() > 2 && words[1] == "opCount") call(process(name), words);
  }

  std::vector<RankDump> dumps() {
    give_ranks();
    std::vector<RankDump> dumps;
    for (Process& process : processes_) dumps.push_back(finished(process));
    std::ranges::stable_sort(dumps, {}, [](const RankDump& dump) { return dump.history.rank; });
    return dumps;
  }

 private:
  Process& process(const std::string& name) {
    const auto found = std::ranges::find(processes_, name, &Process::name);
    return found != processes_.end() ? *found : processes_.emplace_back(Process{.name = name});
  }

  // "comm 0x5a rank 0 nranks 2 ... commId 0x77 - Init COMPLETE".
  static void begin(Process& process, const Words& words) {
    Communicator made{.rank = number_behind(words, "rank", -1),
                      .size = number_behind(words, "nranks", 0)};
    const absl::string_view id = behind(words, "commId");
    made.name = id.empty() ? "" : absl::StrCat("comm ", id);
    if (id.empty()) {
      const auto before = std::ranges::count(process.communicators, made.size, &Communicator::size);
      made.name = absl::StrCat("comm ", before, " of ", made.size, " ranks");
    }
    // One that makes no call is behind the others.
    group_of(process.dump, made.name);
    // A communicator that has ended may have had the address.
    process.at_address.insert_or_assign(std::string(behind(words, "comm")),
                                        process.communicators.size());
    process.communicators.push_back(std::move(made));
  }

  static void call(Process& process, const Words& words) {
    const OpType op = op_of_nccl(words[0].substr(0, words[0].find(':')));
    const std::string address(behind(words, "comm"));
    if (op == OpType::UNKNOWN || address.empty()) return;
    // Without a line of its beginning nothing but its address is known.
    const auto used = process.at_address.find(address);
    const std::string name = used != process.at_address.end()
                                 ? process.communicators[used->second].name
                                 : absl::StrCat("comm at ", address);
    OperationRecord record{.group = group_of(process.dump, name),
                           .state = OperationState::kDone,
                           .fingerprint = CollectiveFingerprint(op)};
    CollectiveFingerprint& fingerprint = record.fingerprint;
    const auto type = number_behind<size_t>(words, "datatype", std::size(kTypes));
    fingerprint.dtypes.push_back(type < std::size(kTypes) ? kTypes[type]
                                                          : at::ScalarType::Undefined);
    fingerprint.dims.push_back(1);
    fingerprint.sizes.push_back(number_behind<int64_t>(words, "count", 0));
    const bool reduces =
        op == OpType::ALLREDUCE || op == OpType::REDUCE || op == OpType::_REDUCE_SCATTER_BASE;
    const auto reduction = number_behind<size_t>(words, "op", std::size(kReductions));
    if (reduces && reduction < std::size(kReductions)) {
      fingerprint.reduce_op = kReductions[reduction];
    }
    const int root = number_behind(words, "root", -1);
    if (c10d::isP2POp(op)) {
      fingerprint.peer = root;
    } else {
      const bool has_root = op == OpType::BROADCAST || op == OpType::REDUCE ||
                            op == OpType::GATHER || op == OpType::SCATTER;
      if (has_root) fingerprint.root = root;
      fingerprint.sequence = process.dump.history.groups[record.group].collectives++;
    }
    process.dump.history.operations.push_back(std::move(record));
  }

  static int group_of(RankDump& dump, const std::string& name) {
    std::vector<GroupRecord>& groups = dump.history.groups;
    const auto found = std::ranges::find(groups, name, &GroupRecord::name);
    if (found != groups.end()) return static_cast<int>(found - groups.begin());
    groups.push_back({.name = name, .made = true});
    dump.members.emplace_back();
    return static_cast<int>(groups.size()) - 1;
  }

  // The number in the largest communicator; without one the order in which processes came.
  void give_ranks() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& process = processes_[i];
      process.dump.history.rank = static_cast<int>(i);
      int largest = 0;
      for (const Communicator& each : process.communicators) {
        if (each.rank < 0 || each.size <= largest) continue;
        largest = each.size;
        process.dump.history.rank = each.rank;
      }
    }
    for (const Process& process : processes_) {
      for (const Communicator& each : process.communicators) {
        if (each.rank >= 0) members_[each.name].insert(process.dump.history.rank);
      }
    }
  }

  // The process's dump, with the members of its groups and its last calls open.
  RankDump finished(Process& process) {
    RankDump& dump = process.dump;
    for (size_t group = 0; group < dump.history.groups.size(); ++group) {
      const std::set<int>& members = members_[dump.history.groups[group].name];
      dump.members[group].assign(members.begin(), members.end());
      const auto last = std::find_if(
          dump.history.operations.rbegin(), dump.history.operations.rend(),
          [&](const OperationRecord& record) { return record.group == static_cast<int>(group); });
      if (last != dump.history.operations.rend()) last->state = OperationState::kIssued;
    }
    return std::move(dump);
  }

  std::vector<Process> processes_;
  // By the communicator's name. A log may have a line twice.
  std::map<std::string, std::set<int>> members_;
};

}  // namespace

bool is_nccl_log(absl::string_view text) { return absl::StrContains(text, kMark); }

std::vector<RankDump> read_nccl_log(absl::string_view text) {
  Reader reader;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) reader.read(line);
  return reader.dumps();
}

}  // namespace accelerate
