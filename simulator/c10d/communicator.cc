#include "simulator/c10d/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/comm/watch/operation_log.h"
#include "accelerate/values/texts.h"
#include "simulator/device/host_call.h"
#include "simulator/device/sim_device.h"
#include "simulator/network/network.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

using c10d::OpType;

// The call that was ready first and the one that was ready last; of several, the first in order.
std::pair<std::vector<Call>::const_iterator, std::vector<Call>::const_iterator> first_and_last(
    const std::vector<Call>& calls) {
  const auto by_time = [](const Call& a, const Call& b) { return a.ready_ns < b.ready_ns; };
  return {std::min_element(calls.begin(), calls.end(), by_time),
          std::max_element(calls.begin(), calls.end(), by_time)};
}

// The error that `run` returns or throws.
std::optional<std::string> problem_in(absl::FunctionRef<std::optional<std::string>()> run) {
  try {
    return run();
  } catch (const std::exception& error) {
    return exception_text(error);
  }
}

// Whether the tensor holds whole numbers and is small: those decide what a program does next.
bool steers(const at::Tensor& tensor) {
  constexpr size_t kMostBytes = size_t{64} << 10;
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) && !tensor.is_sparse() &&
         tensor.nbytes() <= kMostBytes;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(host_alias(a).const_data_ptr(),
                                                 host_alias(b).const_data_ptr(), a.nbytes()) == 0;
}

// Who makes the calls of a group, and for whom.
Members members_of(const std::string& group, std::optional<MeshAxis> axis,
                   const std::vector<int>& ranks, const ExecutedRanks& executed) {
  const auto size = static_cast<int>(ranks.size());
  if (!executed.folds()) return Members::all(size);
  Members members{.of_call = {}, .call_of = std::vector<int>(size)};
  std::map<int, int> lowest;  // by class: the call of its lowest executed member
  for (int member = 0; member < size; ++member) {
    if (!executed.is_executed(ranks[member])) continue;
    members.call_of[member] = static_cast<int>(members.of_call.size());
    members.of_call.push_back(member);
    lowest.emplace(executed.class_of(ranks[member]), members.call_of[member]);
  }
  for (int member = 0; member < size; ++member) {
    if (executed.is_executed(ranks[member])) continue;
    const auto counts_as = lowest.find(executed.class_of(ranks[member]));
    TORCH_CHECK_VALUE(counts_as != lowest.end(), "group \"", group, "\" of ",
                      axis ? absl::StrCat("the axis ", accelerate::to_string(*axis)) : "no axis",
                      ": rank ", ranks[member],
                      " is folded, and no member of the group that does the same is executed; run "
                      "without folding, or execute that rank");
    members.call_of[member] = counts_as->second;
  }
  return members;
}

std::vector<int> tasks_of(const Members& members, const std::vector<int>& ranks,
                          const ExecutedRanks& executed) {
  std::vector<int> tasks;
  for (const int member : members.of_call) tasks.push_back(executed.task_of(ranks[member]));
  return tasks;
}

}  // namespace

Communicator::Communicator(Fabric& fabric, std::string name, std::vector<int> ranks,
                           std::optional<MeshAxis> axis, Semantics semantics)
    : fabric_(fabric),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      axis_(axis),
      semantics_(semantics),
      made_by_(fabric.running_rank()),
      members_(members_of(name_, axis_, ranks_, fabric.executed())),
      tasks_(tasks_of(members_, ranks_, fabric.executed())),
      number_(fabric.number_of_next_group()),
      device_bytes_(fabric.communicator_bytes(ranks_)),
      beside_(axis ? Beside::kItsAxis : Beside::kNothing),
      next_sequence_(members_.of_call.size()) {
  Recorder* recorder = fabric.recorder();
  if (recorder == nullptr) return;
  copies_ = fabric.folds().copies_of_group(ranks_);
  if (!axis) return;
  recorded_axis_ = recorder->axis(accelerate::to_string(*axis));
  if (static_cast<size_t>(*axis) >= kNumPlainAxes) return;
  recorder->place_along(recorded_axis_, ranks_);
  for (const std::vector<int>& copy : copies_) recorder->place_along(recorded_axis_, copy);
}

int Communicator::num_executed(const std::vector<int>& without) const {
  return static_cast<int>(std::ranges::count_if(members_.of_call, [&](int member) {
    return std::ranges::find(without, member) == without.end();
  }));
}

void Communicator::raise() {
  noticed_ = true;
  fabric_.scheduler().advance_to(failed_ns_);
  if (closed_ >= 0) fabric_.see_closed_connection(closed_);
  throw c10::DistBackendError(failure_);
}

std::shared_ptr<Operation> Communicator::join(int member, Call call) {
  check_usable();
  const int own = members_.call_of[member];
  const uint64_t sequence = next_sequence_[own]++;
  call.fingerprint.sequence = sequence;
  const size_t position = sequence - first_sequence_;
  if (position == collectives_.size()) {
    collectives_.push_back(std::make_shared<Operation>());
    collectives_.back()->calls.resize(num_executed());
    collectives_.back()->communicator = this;
    collectives_.back()->tasks = &tasks_;
  }
  std::shared_ptr<Operation> operation = collectives_[position];
  operation->calls[own] = std::move(call);
  operation->calls[own].joined = true;
  if (fabric_.models_time()) fabric_.call_order().call(tasks_[own], operation);
  if (++operation->joined == num_executed()) {
    collectives_.pop_front();
    ++first_sequence_;
    run_collective(operation);
  }
  return operation;
}

void Communicator::run_collective(const std::shared_ptr<Operation>& operation) {
  // The arithmetic must not appear in the profile of the rank that joined last.
  const at::DisableRecordFunctionGuard unseen;
  if (std::optional<std::string> difference = mismatch(*operation)) {
    return fail(operation, *std::move(difference));
  }
  std::vector<Call>& calls = operation->calls;
  // The call of every member failed, not only that of the member that joined last.
  const std::optional<std::string> problem = problem_in([&]() -> std::optional<std::string> {
    if (std::optional<std::string> late = late_member(*operation)) return late;
    if (std::optional<std::string> unlike = unlike_values(*operation)) return unlike;
    operation->bytes = message_bytes(calls, members_);
    if (collective_kind(calls[0].fingerprint.op) == CollectiveKind::kAllToAll) {
      for (int each = 0; each < num_executed(); ++each) {
        operation->sent.push_back(bytes_to_others(calls[each], members_.of_call[each], size()));
      }
    }
    return run_calls(calls, members_);
  });
  if (problem) {
    return fail(operation, absl::StrCat(calls[0].fingerprint.to_string(), " of group \"", name_,
                                        "\": ", *problem));
  }
  for (const Call& call : calls) strike(fabric_.faults(), call, /*results=*/true);
  if (fabric_.models_time()) {
    fabric_.call_order().carried_out(operation);
    set_times(fabric_.call_order());
  } else {
    set_time(*operation);
  }
}

// A folded member contributes its representative's values. If a collective gathers numbers that
// steer programs, such as the bytes of objects, a spot check must contribute equal numbers.
std::optional<std::string> Communicator::unlike_values(const Operation& operation) const {
  const ExecutedRanks& executed = fabric_.executed();
  if (!executed.has_spot_checks() || operation.calls[0].is_metric) return std::nullopt;
  const CollectiveKind kind = collective_kind(operation.calls[0].fingerprint.op);
  if (kind != CollectiveKind::kAllGather && kind != CollectiveKind::kGather) return std::nullopt;
  for (int each = 0; each < num_executed(); ++each) {
    const auto typical =
        std::find_if(members_.of_call.begin(), members_.of_call.end(), [&](int member) {
          return executed.class_of(ranks_[member]) == executed.class_of(caller(each));
        });
    const auto other = static_cast<int>(typical - members_.of_call.begin());
    const std::vector<at::Tensor>& own = operation.calls[each].inputs;
    for (size_t i = 0; i < own.size(); ++i) {
      if (!steers(own[i]) || same_bytes(own[i], operation.calls[other].inputs[i])) continue;
      return absl::StrCat(
          "rank ", caller(each), " gives other values than rank ", caller(other),
          ", but with folding they count as one (", executed.to_string(),
          "), so what is gathered would be wrong; run without ClusterOptions::fold");
    }
  }
  return std::nullopt;
}

// Sets the time at which the data of all members is ready. Returns an error if a member had timed
// out before the last one joined.
std::optional<std::string> Communicator::late_member(Operation& operation) const {
  const auto last = first_and_last(operation.calls).second;
  operation.ready_ns = last->ready_ns;
  for (int each = 0; each < num_executed(); ++each) {
    const Call& call = operation.calls[each];
    if (operation.ready_ns <= call.deadline_ns) continue;
    return absl::StrCat(
        "timed out: rank ", caller(each), " waited until ",
        absl::FormatDuration(absl::Nanoseconds(call.deadline_ns)), " of virtual time for rank ",
        caller(static_cast<int>(last - operation.calls.begin())), ", which joined at ",
        absl::FormatDuration(absl::Nanoseconds(operation.ready_ns)));
  }
  return std::nullopt;
}

void Communicator::set_times(CallOrder& order) {
  while (const std::shared_ptr<Operation> operation = order.take_next()) {
    operation->communicator->set_time(*operation);
    order.remove(operation);
  }
}

void Communicator::set_time(Operation& operation) {
  const CollectiveFingerprint& fingerprint = operation.calls[0].fingerprint;
  const CollectiveTime alone = fabric_.network().collective(
      collective_kind(fingerprint.op), ranks_, operation.bytes, reduction_of(fingerprint), beside_);
  operation.channels = alone.channels;
  operation.start_ns = operation.end_ns = operation.ready_ns;
  if (fabric_.models_time() && !share_links(operation, alone)) {
    operation.is_stuck = true;
    for (int task : std::exchange(operation.waiting, {})) fabric_.scheduler().wake(task);
    return;
  }
  const int64_t traced =
      fabric_.recorder() != nullptr ? record_collective(operation, alone) : int64_t{-1};
  for (int each = 0; each < num_executed(); ++each) {
    record(operation, operation.calls[each], members_.of_call[each], operation.start_ns, traced);
  }
  complete(operation);
}

// Sets the time of a collective that would take so long alone, beside those of other groups, and
// records what crosses the links. Returns false if it never ends.
bool Communicator::share_links(Operation& operation, const CollectiveTime& alone) {
  const CollectiveFingerprint& fingerprint = operation.calls[0].fingerprint;
  const std::vector<LinkBytes>& use =
      links_.use(fabric_.network().spec(), collective_kind(fingerprint.op), alone.algorithm, ranks_,
                 fingerprint.root);
  on_links_.clear();
  for (int each = 0; each < num_executed(); ++each) {
    const int member = members_.of_call[each];
    auto size_of_result = static_cast<double>(operation.bytes);
    if (!operation.sent.empty() && size() > 1) {
      size_of_result = static_cast<double>(operation.sent[each]) * size() / (size() - 1);
    }
    on_links_.push_back({.rank = ranks_[member],
                         .bytes = use[member] * size_of_result,
                         .not_before_ns = fabric_.oldest_use_ns(operation.calls[each].called_ns)});
  }
  const SharedLinks::Interval time =
      fabric_.shared_links().add(number_, operation.ready_ns, alone.ns, on_links_);
  fabric_.record_slow_links(on_links_, time.start_ns, time.end_ns);
  if (time.end_ns == SharedLinks::kNever) return false;
  // A link that comes back too late.
  const bool may_be_late = fabric_.waits_for_time_outs() && !fabric_.link_speeds().empty();
  const auto first = std::ranges::min_element(operation.calls, {}, &Call::deadline_ns);
  if (may_be_late && time.end_ns > first->deadline_ns) return false;
  operation.start_ns = time.start_ns;
  operation.end_ns = time.end_ns;
  if (fabric_.recorder() == nullptr) return true;
  for (const SharedLinks::Member& each : on_links_) {
    record_links(*fabric_.recorder(), each.rank, each.bytes, time.start_ns, time.end_ns);
  }
  return true;
}

// Returns the recorder's number of the operation.
int64_t Communicator::record_collective(const Operation& operation, const CollectiveTime& alone) {
  Recorder& recorder = *fabric_.recorder();
  const auto [first, last] = first_and_last(operation.calls);
  const CollectiveFingerprint& fingerprint = operation.calls[0].fingerprint;
  const uint32_t name = recorder.intern(op_name(fingerprint.op));
  const uint32_t algorithm = recorder.intern(alone.name());
  const auto calls = static_cast<int64_t>(1 + copies_.size());
  const auto all_bytes = static_cast<double>(calls * operation.bytes);
  recorder.collective({.name = name,
                       .algorithm = algorithm,
                       .ranks = static_cast<int32_t>(ranks_.size()),
                       .calls = calls,
                       .total_ns = calls * (operation.end_ns - operation.start_ns),
                       .shared_ns = calls * (operation.end_ns - operation.start_ns - alone.ns),
                       .bytes = all_bytes,
                       .bus_bytes = all_bytes * bus_factor(collective_kind(fingerprint.op),
                                                           static_cast<int>(ranks_.size()))});
  record_traffic(recorder, operation, members_, ranks_, recorded_axis_);
  for (const std::vector<int>& copy : copies_) {
    record_traffic(recorder, operation, members_, copy, recorded_axis_);
  }
  return recorder.operation(
      {.name = name,
       .group = recorder.intern(name_),
       .algorithm = algorithm,
       .bytes = operation.bytes,
       .ranks = ranks_,
       .first_rank = caller(static_cast<int>(first - operation.calls.begin())),
       .last_rank = caller(static_cast<int>(last - operation.calls.begin())),
       .spread_ns = last->ready_ns - first->ready_ns});
}

// Keeps the member's stream busy until the operation's end, and records the member's slices: its
// wait for the others, where a device waits, and its part in the operation.
void Communicator::record(const Operation& operation, const Call& call, int member,
                          int64_t start_ns, int64_t trace_operation) {
  const int rank = ranks_[member];
  int64_t arrived_ns = call.ready_ns;
  uint8_t ordinal = 0;
  StartedBy started_by = call.waits_for_host ? StartedBy::kHost : StartedBy::kEvent;
  if (call.device != nullptr) {
    SimDevice& device = *call.device;
    ordinal = device.ordinal();
    const int64_t idle_from_ns = device.stream_ns(call.stream);
    arrived_ns = std::max(call.ready_ns, idle_from_ns);
    // Messages of one stream may overlap.
    if (idle_from_ns > call.ready_ns && idle_from_ns <= start_ns) started_by = StartedBy::kStream;
    device.stream_waits(call.stream, operation.end_ns);
    if (device.observer()) {
      device.observer()(op_name(call.fingerprint.op), call.stream, start_ns, operation.end_ns,
                        /*from_operator=*/false);
    }
  }
  Recorder* recorder = fabric_.recorder();
  if (recorder == nullptr) return;
  if (arrived_ns < start_ns && call.device != nullptr) {
    recorder->slice({.start_ns = arrived_ns,
                     .end_ns = start_ns,
                     .rank = rank,
                     .stream = call.stream,
                     .name = recorder->intern("wait"),
                     .kind = SliceKind::kWait,
                     .device = ordinal,
                     .started_by = started_by,
                     .operation = trace_operation});
  }
  if (arrived_ns < start_ns) started_by = StartedBy::kMembers;
  const bool message = call.fingerprint.peer >= 0 || call.fingerprint.op == OpType::RECVANYSOURCE;
  recorder->slice({.start_ns = start_ns,
                   .end_ns = operation.end_ns,
                   .rank = rank,
                   .stream = call.device != nullptr ? call.stream : kHostStream,
                   .name = recorder->intern(op_name(call.fingerprint.op)),
                   .kind = message ? SliceKind::kMessage : SliceKind::kCollective,
                   .device = ordinal,
                   .started_by = started_by,
                   .operation = trace_operation});
}

// Marks the operation as done. Returns the tasks to wake.
std::vector<int> Communicator::close(Operation& operation) {
  operation.done = true;
  operation.calls.clear();  // Works keep the tensors they return; the others are released.
  return std::exchange(operation.waiting, {});
}

void Communicator::complete(Operation& operation) {
  for (int task : close(operation)) fabric_.scheduler().wake(task);
}

void Communicator::fail_one(const std::shared_ptr<Operation>& operation) {
  operation->failed = true;
  complete(*operation);
  if (operation->communicator == nullptr) return;
  fabric_.call_order().remove(operation);
  set_times(fabric_.call_order());
}

void Communicator::fail(const std::shared_ptr<Operation>& operation, std::string report) {
  fabric_.save_states();
  fail_one(operation);
  fail(std::move(report));
}

void Communicator::fail(std::string report) {
  if (!failure_.empty()) return;
  fabric_.save_states();
  failure_ = std::move(report);
  for (auto& operation : collectives_) fail_one(operation);
  for (Message& message : sends_) fail_one(message.operation);
  for (Message& message : receives_) fail_one(message.operation);
  fabric_.add_waiting_messages(-static_cast<int>(sends_.size() + receives_.size()));
  collectives_.clear();
  sends_.clear();
  receives_.clear();
}

std::optional<std::string> Communicator::mismatch(const Operation& operation) const {
  const CollectiveFingerprint& first = operation.calls[0].fingerprint;
  if (std::none_of(operation.calls.begin(), operation.calls.end(), [&first](const Call& call) {
        return first.difference(call.fingerprint).has_value();
      })) {
    return std::nullopt;
  }
  std::vector<std::pair<int, CollectiveFingerprint>> calls;
  for (int each = 0; each < num_executed(); ++each) {
    calls.emplace_back(caller(each), operation.calls[each].fingerprint);
  }
  return describe_mismatch(name_, calls);
}

// Nothing says which message of its representative a folded rank's would be.
void Communicator::check_peer(int member, const Call& call) const {
  const int peer = call.fingerprint.peer;
  for (int other = 0; other < size(); ++other) {
    if (peer >= 0 ? other != peer : other == member) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(
        fabric_.folds().allows_message(ranks_[member], ranks_[other]), "rank ", ranks_[member],
        ": ", call.fingerprint.to_string(), " of group \"", name_,
        "\" would exchange a message with rank ", ranks_[other], ", but with ",
        fabric_.executed().to_string(),
        " messages pass between ranks that differ along one axis of the mesh, which is not folded; "
        "leave that axis out of Folding::along, or run without ClusterOptions::fold");
  }
}

std::shared_ptr<Operation> Communicator::post(int member, Call call) {
  check_usable();
  check_peer(member, call);
  const bool sends = call.fingerprint.op == OpType::SEND;
  const int peer = call.fingerprint.peer;
  const int tag = call.fingerprint.tag;
  const Message own{sends ? member : peer, sends ? peer : member, tag, nullptr};
  std::vector<Message>& others = sends ? receives_ : sends_;
  const auto found = std::find_if(others.begin(), others.end(), [&own](const Message& other) {
    return other.receiver == own.receiver && other.tag == own.tag &&
           (other.sender == own.sender || other.sender == -1 || own.sender == -1);
  });
  const bool is_first = found == others.end();
  std::shared_ptr<Operation> operation =
      is_first ? std::make_shared<Operation>() : std::move(found->operation);
  if (is_first) operation->calls.resize(2);
  operation->calls[sends ? 0 : 1] = std::move(call);
  if (is_first) {
    (sends ? sends_ : receives_).push_back({own.sender, own.receiver, tag, operation});
    fabric_.add_waiting_messages(1);
    return operation;
  }
  operation->source = sends ? member : found->sender;
  others.erase(found);
  fabric_.add_waiting_messages(-1);
  deliver(operation);
  return operation;
}

void Communicator::deliver(const std::shared_ptr<Operation>& operation) {
  const Call& sender = operation->calls[0];
  const Call& receiver = operation->calls[1];
  const std::optional<std::string> problem = problem_in([&] {
    const at::DisableRecordFunctionGuard unseen;
    return run_message(sender, receiver);
  });
  const int source = ranks_[operation->source];
  const int target = ranks_[sender.fingerprint.peer];
  if (problem) {
    return fail(operation,
                absl::StrCat("message mismatch in group \"", name_, "\": ", *problem, "\n  rank ",
                             source, ": ", sender.fingerprint.to_string(), "\n  rank ", target,
                             ": ", receiver.fingerprint.to_string()));
  }
  strike(fabric_.faults(), receiver, /*results=*/true);
  const int64_t start_ns = std::max(sender.ready_ns, receiver.ready_ns);
  if (!fabric_.models_time()) {
    finish_message(*operation, start_ns, start_ns, /*trace_operation=*/-1);
    complete(*operation);
    return;
  }
  const auto bytes = static_cast<int64_t>(sender.inputs[0].nbytes());
  const std::vector<std::pair<int, int>> copies = fabric_.folds().copies_of_message(source, target);
  int64_t traced = -1;
  if (Recorder* recorder = fabric_.recorder()) {
    const bool receiver_first = receiver.ready_ns < sender.ready_ns;
    traced =
        recorder->operation({.name = recorder->intern("message"),
                             .group = recorder->intern(name_),
                             .bytes = bytes,
                             .ranks = {source, target},
                             .first_rank = receiver_first ? target : source,
                             .last_rank = receiver.ready_ns > sender.ready_ns ? target : source,
                             .spread_ns = std::abs(sender.ready_ns - receiver.ready_ns)});
    recorder->traffic(source, target, static_cast<double>(bytes), recorded_axis_);
    for (const auto& [from, to] : copies) {
      recorder->traffic(from, to, static_cast<double>(bytes), recorded_axis_);
    }
  }
  fabric_.start_flow(source, target, bytes, start_ns,
                     [this, operation, start_ns, traced, source, target, bytes](int64_t end_ns) {
                       if (Recorder* recorder = fabric_.recorder()) {
                         for (const auto& [rank, use] :
                              message_link_use(fabric_.network().spec(), source, target)) {
                           // What a folded rank passes on, the rank that it counts as does for its
                           // own.
                           if (!fabric_.executed().is_executed(rank)) continue;
                           record_links(*recorder, rank, use * static_cast<double>(bytes), start_ns,
                                        end_ns);
                         }
                       }
                       finish_message(*operation, start_ns, end_ns, traced);
                       return close(*operation);
                     });
  // The messages of folded ranks share links with this one.
  for (const auto& [from, to] : copies) {
    fabric_.start_flow(from, to, bytes, start_ns, [](int64_t) { return std::vector<int>(); });
  }
}

void Communicator::finish_message(Operation& operation, int64_t start_ns, int64_t end_ns,
                                  int64_t trace_operation) {
  operation.end_ns = end_ns;
  const Call& sender = operation.calls[0];
  record(operation, sender, operation.source, start_ns, trace_operation);
  record(operation, operation.calls[1], sender.fingerprint.peer, start_ns, trace_operation);
}

void Communicator::wait(int member, const std::shared_ptr<Operation>& operation,
                        const WaitLimit& limit) {
  fabric_.use();
  const Deadline deadline{.at = limit.since + limit.timeout, .counts_as_progress = limit.asked_for};
  while (!operation->done) {
    check_connections(member, *operation);
    operation->waiting.push_back(fabric_.executed().task_of(ranks_[member]));
    operation->awaited_from_ns = std::min(operation->awaited_from_ns, fabric_.scheduler().now_ns());
    // The time of what was carried out comes without another rank's call.
    const bool ends = operation->carried_out && !operation->is_stuck;
    const Wake wake = fabric_.scheduler().block([&] { return describe_wait(member, *operation); },
                                                ends ? Deadline() : deadline);
    fabric_.use();
    if (wake == Wake::kStalled) {
      // The first member to wake makes the report for all.
      if (failure_.empty()) fail_now(fabric_.scheduler().stall_report() + progress_of_ranks());
      raise();
    }
    const bool may_be_late = !operation->carried_out || operation->is_stuck;
    if (wake == Wake::kDeadline && !operation->done && may_be_late) {
      time_out(member, *operation, limit.timeout);
    }
  }
  if (operation->failed) raise();
}

// The executed ranks that the operation waits for.
std::vector<int> Communicator::awaited_ranks(const Operation& operation) const {
  for (const Message& message : sends_) {
    if (message.operation.get() == &operation) return {ranks_[message.receiver]};
  }
  for (const Message& message : receives_) {
    // From any rank: whoever is left may send.
    const bool is_its = message.operation.get() == &operation && message.sender >= 0;
    if (is_its) return {ranks_[message.sender]};
  }
  std::vector<int> ranks;
  if (operation.communicator == nullptr || operation.carried_out) return ranks;
  for (int each = 0; each < num_executed(); ++each) {
    if (!operation.calls[each].joined) ranks.push_back(caller(each));
  }
  return ranks;
}

// Fails the group if a rank that it waits for is seen to have ended. Each member sees it by itself.
void Communicator::check_connections(int member, Operation& operation) {
  if (!fabric_.waits_for_time_outs() || semantics_ != Semantics::kGloo) return;
  const int closed = fabric_.first_ended(awaited_ranks(operation));
  if (closed < 0) return;
  closed_ = closed;
  const std::string wait = describe_wait(member, operation);
  fabric_.save_states(wait);
  fail(absl::StrCat("rank ", ranks_[member], " ", wait, ": ", fabric_.see_closed_connection(closed),
                    progress_of_ranks()));
  raise();
}

void Communicator::await_on_device(int rank, const std::shared_ptr<Operation>& collective) {
  if (collective->done) return;
  const auto member = static_cast<int>(std::ranges::find(ranks_, rank) - ranks_.begin());
  const Call& call = collective->calls[members_.call_of[member]];
  if (call.device == nullptr) return;
  wait(member, collective, {.timeout = absl::Nanoseconds(call.deadline_ns)});
}

bool Communicator::poll(int member, const std::shared_ptr<Operation>& operation,
                        const WaitLimit& limit) {
  fabric_.use();
  if (operation->done) return true;
  fabric_.scheduler().poll();
  fabric_.use();
  const bool is_late = fabric_.scheduler().now() >= limit.since + limit.timeout;
  const bool may_be_late = !operation->carried_out || operation->is_stuck;
  if (!operation->done && may_be_late && is_late) {
    time_out(member, *operation, limit.timeout);
  }
  return operation->done;
}

void Communicator::time_out(int member, Operation& operation, absl::Duration timeout) {
  // A message that is under way outlives its group's failure.
  check_usable();
  const std::string wait = describe_wait(member, operation);
  fabric_.save_states(wait);
  fail_now(absl::StrCat("timed out after ", absl::FormatDuration(timeout), ": rank ",
                        ranks_[member], " ", wait, progress_of_ranks()));
}

std::string Communicator::progress_of_ranks() const {
  std::vector<int> ranks;
  std::vector<OperationHistory> histories;
  for (const int member : members_.of_call) {
    ranks.push_back(ranks_[member]);
    histories.push_back(fabric_.log(ranks_[member]).snapshot());
  }
  return absl::StrCat("\ngroup \"", name_, "\", by rank:\n",
                      group_lines({.group = name_, .ranks = ranks}, histories));
}

void Communicator::abort(int member) {
  fail(absl::StrCat("group \"", name_, "\" was aborted by rank ", ranks_[member]));
}

// The end of the description of a wait. At a stall all members that joined ask for it, so it is
// kept until another member joins.
const std::string& Communicator::missing_ranks(Operation& operation) const {
  if (operation.described == operation.joined) return operation.missing_ranks;
  const std::vector<int> missing = awaited_ranks(operation);
  // No rank is missing where all have joined and their calls do not match.
  operation.missing_ranks =
      missing.empty() ? "" : absl::StrCat(", waiting for ", rank_list(missing));
  operation.described = operation.joined;
  return operation.missing_ranks;
}

std::string Communicator::describe_send(const Message& message) const {
  return absl::StrCat("in ", message.operation->calls[0].fingerprint.to_string(), " of group \"",
                      name_, "\", waiting for rank ", ranks_[message.receiver], " to receive");
}

std::string Communicator::describe_receive(const Message& message) const {
  return absl::StrCat(
      "in ", message.operation->calls[1].fingerprint.to_string(), " of group \"", name_,
      "\", waiting for ",
      message.sender < 0 ? std::string("any rank") : absl::StrCat("rank ", ranks_[message.sender]),
      " to send");
}

std::string Communicator::describe_wait(int member, Operation& operation) const {
  for (const Message& message : sends_) {
    if (message.operation.get() == &operation) return describe_send(message);
  }
  for (const Message& message : receives_) {
    if (message.operation.get() == &operation) return describe_receive(message);
  }
  if (operation.source >= 0) return absl::StrCat("in a message of group \"", name_, "\"");
  return absl::StrCat("in ", operation.calls[members_.call_of[member]].fingerprint.to_string(),
                      " of group \"", name_, "\"", missing_ranks(operation));
}

std::optional<std::string> Communicator::unnoticed_failure() const {
  if (noticed_) return std::nullopt;
  if (!failure_.empty()) return failure_;
  auto left = [this](int member, const std::string& description) {
    return absl::StrCat("never completed: rank ", ranks_[member], " left ", description);
  };
  if (!collectives_.empty()) {
    Operation& operation = *collectives_.front();
    for (int each = 0; each < num_executed(); ++each) {
      const int member = members_.of_call[each];
      if (operation.calls[each].joined) return left(member, describe_wait(member, operation));
    }
  }
  if (!sends_.empty()) return left(sends_[0].sender, describe_send(sends_[0]));
  if (!receives_.empty()) return left(receives_[0].receiver, describe_receive(receives_[0]));
  return std::nullopt;
}

}  // namespace accelerate::simulator
