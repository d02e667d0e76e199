#include "launch/agent/handshake.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launch/agent/agent_options.h"

namespace accelerate::launch::agent {
namespace {

constexpr char kVerb[] = "hello";
constexpr int kMaxNodes = 1'000'000;

}  // namespace

Message to_message(const Handshake& handshake) {
  Message message = {.verb = kVerb,
                     .fields = {{"protocol", absl::StrCat(kProtocolVersion)},
                                {"version", handshake.version},
                                {"run_id", handshake.run_id},
                                {"min_nodes", absl::StrCat(handshake.min_nodes)},
                                {"max_nodes", absl::StrCat(handshake.max_nodes)},
                                {"max_restarts", absl::StrCat(handshake.max_restarts)},
                                {"clock", absl::StrCat(absl::ToUnixMicros(handshake.clock))},
                                {"host", handshake.machine.host},
                                {"address", handshake.machine.address},
                                {"processes", absl::StrCat(handshake.machine.processes)}}};
  if (handshake.machine.node_rank) {
    message.fields["node_rank"] = absl::StrCat(*handshake.machine.node_rank);
  }
  return message;
}

absl::StatusOr<Handshake> to_handshake(const Message& message) {
  if (message.verb != kVerb) return absl::InvalidArgumentError("not a handshake");
  if (message.number("protocol", 0, kMaxNodes) != kProtocolVersion) {
    return absl::FailedPreconditionError(
        "its launcher speaks another protocol; install the same version on all machines");
  }
  const auto min_nodes = message.number("min_nodes", 1, kMaxNodes);
  const auto max_nodes = message.number("max_nodes", 1, kMaxNodes);
  const auto max_restarts = message.number("max_restarts", 0, INT32_MAX);
  const auto processes = message.number("processes", 1, process::kMaxProcesses);
  const auto clock = message.number("clock", INT64_MIN, INT64_MAX);
  if (!min_nodes || !max_nodes || !max_restarts || !processes || !clock ||
      message.text("host").empty()) {
    return absl::InvalidArgumentError("a broken handshake");
  }
  Handshake result = {.version = message.text("version"),
                      .run_id = message.text("run_id"),
                      .min_nodes = static_cast<int>(*min_nodes),
                      .max_nodes = static_cast<int>(*max_nodes),
                      .max_restarts = static_cast<int>(*max_restarts),
                      .clock = absl::FromUnixMicros(*clock),
                      .machine = {.host = message.text("host"),
                                  .address = message.text("address"),
                                  .processes = static_cast<int>(*processes)}};
  if (const auto rank = message.number("node_rank", 0, kMaxNodes)) {
    result.machine.node_rank = static_cast<int>(*rank);
  }
  return result;
}

absl::Status check_handshake(const Handshake& theirs, const Handshake& own) {
  const auto refuse = [](auto&&... parts) {
    return absl::FailedPreconditionError(absl::StrCat(parts...));
  };
  if (theirs.version != own.version) {
    return refuse("its launcher is version ", theirs.version, " and that of ", own.machine.host,
                  " is ", own.version, "; install the same version on all machines");
  }
  if (theirs.run_id != own.run_id) {
    return refuse("its run is '", theirs.run_id, "' and ", own.machine.host, " runs '", own.run_id,
                  "'; give the same --rdzv_id, or another endpoint");
  }
  if (theirs.min_nodes != own.min_nodes || theirs.max_nodes != own.max_nodes) {
    return refuse("it expects ", theirs.min_nodes, " to ", theirs.max_nodes, " machines and ",
                  own.machine.host, " expects ", own.min_nodes, " to ", own.max_nodes,
                  "; give the same --num_machines (--nnodes) on all");
  }
  if (theirs.max_restarts != own.max_restarts) {
    return refuse("it allows ", theirs.max_restarts, " restarts and ", own.machine.host, " allows ",
                  own.max_restarts, "; give the same --max_restarts on all");
  }
  const absl::Duration ahead = theirs.clock - own.clock;
  if (ahead > kClockTolerance || ahead < -kClockTolerance) {
    return refuse("its clock is ",
                  absl::FormatDuration(
                      absl::Trunc(ahead < absl::ZeroDuration() ? -ahead : ahead, absl::Seconds(1))),
                  ahead > absl::ZeroDuration() ? " ahead of" : " behind", " that of ",
                  own.machine.host, "; set the clocks (NTP)");
  }
  return absl::OkStatus();
}

}  // namespace accelerate::launch::agent
