#include "accelerate/dumps/flight_recorder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/base/words.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/files/torch_file.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using c10d::OpType;

constexpr char kVersion[] = "2.10";
// Where a group has a name alone.
constexpr char kNoDescription[] = "undefined";

// ---- Reading.

// The pickle's reader has limited depth and size.
Json json_of(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  Json json;
  if (value.isTuple()) {
    json = Json::array();
    for (const c10::IValue& item : value.toTupleRef().elements()) json.push_back(json_of(item));
  } else if (value.isList()) {
    json = Json::array();
    for (const c10::IValue& item : value.toListRef()) json.push_back(json_of(item));
  } else if (value.isGenericDict()) {
    json = Json::object();
    for (const auto& entry : value.toGenericDict()) {
      const std::string key = entry.key().isString() ? entry.key().toStringRef()
                              : entry.key().isInt()  ? absl::StrCat(entry.key().toInt())
                                                     : std::string();
      json[key] = json_of(entry.value());
    }
  } else {
    throw std::runtime_error("a value of a kind that a dump does not have");
  }
  return json;
}

// The words of calls that are not op_name()'s, as back ends of PyTorch write them.
OpType op_of(absl::string_view word) {
  static const auto& words = *new WordMap<OpType>([] {
    WordMap<OpType> known = word_map<OpType>({
        {OpType::_ALLGATHER_BASE,
         "_all_gather_base all_gather_into_tensor_coalesced all_gather_single"},
        {OpType::ALLGATHER, "all_gather_v"},
        {OpType::ALLGATHER_COALESCED, "allgather_coalesced ALLGATHER_coalesced"},
        {OpType::_REDUCE_SCATTER_BASE,
         "_reduce_scatter_base reduce_scatter_tensor_coalesced reduce_scatter_single"},
        {OpType::REDUCE_SCATTER, "reduce_scatter_v REDUCE_SCATTER_coalesced"},
        {OpType::ALLREDUCE_COALESCED, "allreduce_coalesced"},
        {OpType::BARRIER, "all_reduce_barrier"},
        {OpType::BROADCAST, "_broadcast_oop"},
        {OpType::REDUCE, "_reduce_oop"},
        {OpType::ALLTOALL_BASE, "all_to_all all_to_all_v_single"},
    });
    for (int op = 0; op <= static_cast<int>(OpType::UNKNOWN); ++op) {
      known.emplace(op_name(static_cast<OpType>(op)), static_cast<OpType>(op));
    }
    return known;
  }());
  const auto found = words.find(word);
  return found != words.end() ? found->second : OpType::UNKNOWN;
}

std::optional<at::ScalarType> dtype_of(const std::string& word) {
  for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number) {
    const auto dtype = static_cast<at::ScalarType>(number);
    if (word == c10::toString(dtype)) return dtype;
  }
  return std::nullopt;
}

std::vector<int> ranks_of(const Json& value) {
  const Json list =
      value.is_string() ? internal::parse_ordered_json(value.get<std::string>()) : value;
  std::vector<int> ranks;
  for (const Json& rank : list) ranks.push_back(rank.get<int>());
  std::ranges::sort(ranks);
  return ranks;
}

// "0->3" or "3<-0" behind the word of a message: its other end within the group.
int peer_of(absl::string_view ends, bool sends) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(ends, absl::MaxSplits(sends ? "->" : "<-", 1));
  int peer = -1;
  return absl::SimpleAtoi(parts.second, &peer) ? peer : -1;
}

// Whether a rank's share of the call is what it gets, not what it contributes, as in
// CollectiveCall::share().
bool has_share_in_results(OpType op) {
  switch (op) {
    case OpType::SCATTER:
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::RECV:
    case OpType::RECVANYSOURCE: return true;
    default: return false;
  }
}

CollectiveFingerprint call_of(const Json& entry) {
  // "nccl:all_reduce", "nccl:send 0->1".
  const std::string name = entry.at("profiling_name");
  const size_t colon = name.rfind(':');
  const std::string call = colon == std::string::npos ? name : name.substr(colon + 1);
  const std::pair<std::string, std::string> words = absl::StrSplit(call, absl::MaxSplits(' ', 1));
  CollectiveFingerprint fingerprint(op_of(words.first));
  if (c10d::isP2POp(fingerprint.op)) {
    fingerprint.peer = peer_of(words.second, fingerprint.op == OpType::SEND);
  } else if (const int64_t number = entry.at("collective_seq_id"); number > 0) {
    fingerprint.sequence = static_cast<uint64_t>(number - 1);
  }
  fingerprint.shapes_may_differ =
      fingerprint.op == OpType::ALLTOALL_BASE || fingerprint.op == OpType::ALLTOALL;
  const bool receives = has_share_in_results(fingerprint.op);
  for (const Json& dtype : entry.at(receives ? "output_dtypes" : "input_dtypes")) {
    fingerprint.dtypes.push_back(
        dtype_of(dtype.get<std::string>()).value_or(at::ScalarType::Undefined));
  }
  for (const Json& shape : entry.at(receives ? "output_sizes" : "input_sizes")) {
    fingerprint.dims.push_back(static_cast<int64_t>(shape.size()));
    for (const Json& size : shape) fingerprint.sizes.push_back(size.get<int64_t>());
  }
  // A damaged dump has more of one than of the other.
  fingerprint.dtypes.resize(fingerprint.dims.size(), at::ScalarType::Undefined);
  return fingerprint;
}

// ("0", "default_pg"): a group's name alone, or with what it is.
std::string group_of(const Json& entry) {
  const Json& group = entry.at("process_group");
  const std::string name = group.at(0);
  const std::string what = group.size() > 1 ? group.at(1).get<std::string>() : "";
  return what.empty() || what == kNoDescription ? name : absl::StrCat(name, " (", what, ")");
}

RankDump dump_of(const Json& json, int rank) {
  RankDump dump{.history = {.rank = rank}};
  std::map<std::string, std::vector<int>> members;  // by the group's name
  if (json.contains("pg_config")) {
    for (const auto& [name, group] : json.at("pg_config").items()) {
      if (group.contains("ranks")) members[name] = ranks_of(group.at("ranks"));
    }
  }
  for (const Json& entry : json.at("entries")) {
    const std::string name = group_of(entry);
    std::vector<GroupRecord>& groups = dump.history.groups;
    auto group = std::ranges::find(groups, name, &GroupRecord::name);
    if (group == groups.end()) {
      groups.push_back({.name = name, .made = true});
      group = groups.end() - 1;
      auto known = members.find(entry.at("process_group").at(0).get<std::string>());
      if (known == members.end()) known = members.find("");
      dump.members.push_back(known != members.end() ? known->second : std::vector<int>());
    }
    const bool is_done =
        entry.at("state").get<std::string>() == "completed" || entry.value("retired", false);
    OperationRecord record{.group = static_cast<int>(group - groups.begin()),
                           .state = is_done ? OperationState::kDone : OperationState::kWaiting,
                           .fingerprint = call_of(entry)};
    if (!c10d::isP2POp(record.fingerprint.op)) {
      group->collectives = std::max(group->collectives, record.fingerprint.sequence + 1);
    }
    dump.history.operations.push_back(std::move(record));
  }
  return dump;
}

// ---- Writing: the instructions of protocol 2.

void write_number(uint64_t number, int bytes, std::string& pickle) {
  for (int i = 0; i < bytes; ++i) pickle += static_cast<char>(number >> (8 * i) & 0xff);
}

void write_value(const Json& value, std::string& pickle) {
  if (value.is_null()) {
    pickle += 'N';
  } else if (value.is_boolean()) {
    pickle += value.get<bool>() ? '\x88' : '\x89';
  } else if (value.is_number()) {
    const auto number = value.get<int64_t>();
    if (number == static_cast<int32_t>(number)) {
      pickle += 'J';
      write_number(static_cast<uint32_t>(number), 4, pickle);
    } else {
      pickle += "\x8a\x08";
      write_number(static_cast<uint64_t>(number), 8, pickle);
    }
  } else if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    pickle += 'X';
    write_number(text.size(), 4, pickle);
    pickle += text;
  } else if (value.is_array()) {
    pickle += "](";
    for (const Json& item : value) write_value(item, pickle);
    pickle += 'e';
  } else {
    pickle += "}(";
    for (const auto& [key, item] : value.items()) {
      write_value(key, pickle);
      // The analyser takes a tuple here.
      const bool is_pair = key == "process_group";
      if (!is_pair) {
        write_value(item, pickle);
        continue;
      }
      write_value(item.at(0), pickle);
      write_value(item.at(1), pickle);
      pickle += '\x86';
    }
    pickle += 'u';
  }
}

// The analyser's words; empty for what it does not know.
std::string word_of(OpType op) {
  switch (op) {
    case OpType::RECVANYSOURCE: return "recv";
    case OpType::_ALLGATHER_BASE: return "_all_gather_base";
    case OpType::_REDUCE_SCATTER_BASE: return "_reduce_scatter_base";
    case OpType::ALLTOALL_BASE: return "all_to_all";
    case OpType::ALLREDUCE_COALESCED: return "allreduce_coalesced";
    case OpType::ALLGATHER_COALESCED: return "ALLGATHER_coalesced";
    case OpType::_ALLREDUCE_SPARSE: return "all_reduce";
    default: break;
  }
  const std::string word = op_name(op);
  return word == "unknown" || word == "coalesced" ? "" : word;
}

std::string name_of(const CollectiveFingerprint& call, int own) {
  const std::string peer = call.peer >= 0 ? absl::StrCat(call.peer) : "?";
  if (call.op == OpType::SEND) return absl::StrCat("nccl:send ", own, "->", peer);
  const std::string name = absl::StrCat("nccl:", word_of(call.op));
  return c10d::isP2POp(call.op) ? absl::StrCat(name, " ", own, "<-", peer) : name;
}

// A rank's share of the call, tensor by tensor.
Json shapes_of(const CollectiveFingerprint& call) {
  Json shapes = Json::array();
  const auto* next = call.sizes.begin();
  for (const int64_t dims : call.dims) {
    shapes.push_back(std::vector<int64_t>(next, next + dims));
    next += dims;
  }
  return shapes;
}

// The shares of all ranks, in one tensor or in one each.
Json all_shapes_of(const CollectiveFingerprint& call, size_t ranks) {
  const bool in_one = call.op == OpType::_ALLGATHER_BASE || call.op == OpType::_REDUCE_SCATTER_BASE;
  Json all = Json::array();
  for (const Json& shape : shapes_of(call)) {
    if (!in_one) {
      for (size_t i = 0; i < ranks; ++i) all.push_back(shape);
      continue;
    }
    auto elements = static_cast<int64_t>(ranks);
    for (const Json& size : shape) elements *= size.get<int64_t>();
    all.push_back(std::vector<int64_t>{elements});
  }
  return all;
}

bool gathers(OpType op) {
  return op == OpType::ALLGATHER || op == OpType::_ALLGATHER_BASE ||
         op == OpType::ALLGATHER_COALESCED;
}

bool scatters(OpType op) {
  return op == OpType::REDUCE_SCATTER || op == OpType::_REDUCE_SCATTER_BASE;
}

// How many calls came before an entry.
struct Place {
  size_t record = 0;    // of all groups
  uint64_t calls = 0;   // collectives of its group, with itself
  size_t messages = 0;  // of its group, with itself
};

Json entry_of(const RankDump& dump, const OperationRecord& record, const Place& place) {
  // The analyser takes neighbours of one number for parts of one call.
  constexpr size_t kFirstMessage = size_t{1} << 20;
  const CollectiveFingerprint& call = record.fingerprint;
  const bool is_message = c10d::isP2POp(call.op);
  const std::vector<int>& members = dump.members[record.group];
  const auto own = std::ranges::find(members, dump.history.rank) - members.begin();
  const size_t ranks = std::max<size_t>(1, members.size());
  Json dtypes = Json::array();
  for (const at::ScalarType dtype : call.dtypes) dtypes.push_back(c10::toString(dtype));
  const bool is_done = record.state == OperationState::kDone;
  return {{"record_id", place.record},
          {"pg_id", record.group},
          {"process_group", {dump.history.groups[record.group].name, kNoDescription}},
          {"collective_seq_id", place.calls},
          {"p2p_seq_id", is_message ? kFirstMessage + place.messages : 0},
          {"op_id", place.record + 1},
          {"profiling_name", name_of(call, static_cast<int>(own))},
          {"time_created_ns", place.record},
          {"input_sizes", scatters(call.op) ? all_shapes_of(call, ranks) : shapes_of(call)},
          {"input_dtypes", dtypes},
          {"output_sizes", gathers(call.op) ? all_shapes_of(call, ranks) : shapes_of(call)},
          {"output_dtypes", dtypes},
          // Whether a thread waits for a call makes no difference to the others.
          {"state", is_done ? "completed" : "started"},
          {"time_discovered_started_ns", nullptr},
          {"time_discovered_completed_ns", nullptr},
          {"retired", is_done},
          {"timeout_ms", 0},
          {"is_p2p", is_message},
          {"frames", Json::array()},
          {"thread_id", "0"},
          {"thread_name", ""}};
}

// The calls that the ring has, with numbers that ranks which do the same have in common although
// each ring begins elsewhere: the analyser leaves out what is before the last beginning.
Json entries_of(const RankDump& dump) {
  const std::vector<OperationRecord>& records = dump.history.operations;
  size_t collectives = 0;
  std::vector<uint64_t> calls;  // by group
  for (const GroupRecord& group : dump.history.groups) {
    collectives += group.collectives;
    calls.push_back(group.collectives);
  }
  for (const OperationRecord& record : records) {
    if (record.state == OperationState::kRefused || c10d::isP2POp(record.fingerprint.op)) continue;
    --collectives;
    --calls[record.group];
  }
  std::vector<size_t> messages(calls.size());
  Json entries = Json::array();
  for (const OperationRecord& record : records) {
    if (record.state == OperationState::kRefused) continue;
    const auto group = static_cast<size_t>(record.group);
    const bool is_message = c10d::isP2POp(record.fingerprint.op);
    if (is_message) {
      ++messages[group];
    } else {
      ++collectives;
      ++calls[group];
    }
    if (word_of(record.fingerprint.op).empty()) continue;
    entries.push_back(entry_of(
        dump, record, {.record = collectives, .calls = calls[group], .messages = messages[group]}));
  }
  return entries;
}

}  // namespace

absl::StatusOr<RankDump> read_flight_recorder(absl::string_view bytes, int rank) {
  try {
    if (absl::StartsWith(bytes, "{")) return dump_of(internal::parse_ordered_json(bytes), rank);
    const auto no_storage = [](const std::string&) -> absl::StatusOr<c10::Storage> {
      return absl::InvalidArgumentError("a dump has no tensors");
    };
    ACCELERATE_ASSIGN_OR_RETURN(c10::IValue value, internal::read_pickle(bytes, no_storage));
    return dump_of(json_of(value), rank);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, ": not the dump of a flight recorder: ", error.what()));
  }
}

std::string flight_recorder_pickle(const RankDump& dump) {
  Json groups = Json::object();
  Json status = Json::object();
  for (size_t i = 0; i < dump.history.groups.size(); ++i) {
    const GroupRecord& group = dump.history.groups[i];
    groups[group.name] = {{"name", group.name},
                          {"desc", kNoDescription},
                          {"ranks", absl::StrCat("[", absl::StrJoin(dump.members[i], ", "), "]")}};
    status[group.name] = {{"last_enqueued_collective", group.collectives},
                          {"last_started_collective", group.collectives},
                          {"last_completed_collective", -1}};
  }
  Json whole = {{"version", kVersion},
                {"comm_lib_version", ""},
                {"pg_config", std::move(groups)},
                {"pg_status", std::move(status)},
                {"entries", entries_of(dump)}};
  std::string pickle = "\x80\x02";
  write_value(whole, pickle);
  pickle += '.';
  return pickle;
}

}  // namespace accelerate
