#include "launch/agent/message.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/status.h"
#include "launch/agent/agent_options.h"

namespace accelerate::launcher::agent {
namespace {

// A value that is cut still leaves room for a line's other fields.
constexpr size_t kMaxValueBytes = 4 * 1024;

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

bool is_plain(char c) { return absl::ascii_isgraph(c) && c != '%' && c != '='; }

std::string escape(absl::string_view text) {
  std::string result;
  for (char c : text) {
    if (result.size() + 3 > kMaxValueBytes) break;
    if (is_plain(c)) {
      result += c;
    } else {
      absl::StrAppendFormat(&result, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return result;
}

std::optional<std::string> unescape(absl::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      if (!is_plain(text[i])) return std::nullopt;
      result += text[i];
      continue;
    }
    int code = 0;
    if (i + 2 >= text.size() || !absl::ascii_isxdigit(text[i + 1]) ||
        !absl::ascii_isxdigit(text[i + 2]) || !absl::SimpleHexAtoi(text.substr(i + 1, 2), &code)) {
      return std::nullopt;
    }
    result += static_cast<char>(code);
    i += 2;
  }
  return result;
}

bool is_name(absl::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return absl::ascii_islower(c) || c == '_'; });
}

constexpr char kVerb[] = "hello";
constexpr int kMaxNodes = 1'000'000;

constexpr size_t kMaxPendingBytes = 1 << 20;

absl::Status gone(const char* why) { return absl::UnavailableError(why); }

}  // namespace

std::optional<int64_t> Message::number(absl::string_view name, int64_t least, int64_t most) const {
  const auto found = fields.find(std::string(name));
  int64_t value = 0;
  if (found == fields.end() || !absl::SimpleAtoi(found->second, &value)) return std::nullopt;
  if (value < least || value > most) return std::nullopt;
  return value;
}

std::string Message::text(absl::string_view name) const {
  const auto found = fields.find(std::string(name));
  return found == fields.end() ? "" : found->second;
}

std::string encode(const Message& message) {
  std::string line = message.verb;
  for (const auto& [name, value] : message.fields) {
    absl::StrAppend(&line, " ", name, "=", escape(value));
  }
  return line + "\n";
}

absl::StatusOr<Message> decode(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  Message message = {.verb = std::string(words[0])};
  if (!is_name(message.verb)) return absl::InvalidArgumentError("a message without a verb");
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const std::optional<std::string> value = unescape(field.second);
    if (!absl::StrContains(words[i], '=') || !is_name(field.first) || !value ||
        !message.fields.emplace(field.first, *value).second) {
      return invalid("a broken field in a message '", message.verb, "'");
    }
  }
  return message;
}

Message to_message(const Order& order) {
  Message message = {.verb = accelerate::to_string(order.kind)};
  if (order.kind != Order::Kind::kStart) {
    message.fields = {{"exit_code", absl::StrCat(order.exit_code)}, {"text", order.text}};
    return message;
  }
  const Round& round = order.round;
  message.fields = {{"number", absl::StrCat(round.number)},
                    {"group_rank", absl::StrCat(round.group_rank)},
                    {"group_count", absl::StrCat(round.group_count)},
                    {"first_rank", absl::StrCat(round.first_rank)},
                    {"world_size", absl::StrCat(round.world_size)},
                    {"master_addr", round.master_addr},
                    {"master_port", absl::StrCat(round.master_port)},
                    {"restarts", absl::StrCat(round.restarts)},
                    {"run_token", round.run_token}};
  return message;
}

absl::StatusOr<Order> to_order(const Message& message) {
  Order order;
  const auto kind = accelerate::value_of<Order::Kind>(message.verb);
  if (!kind) {
    return invalid("an unknown order '", message.verb, "'");
  }
  order.kind = *kind;
  bool complete = true;
  const auto number = [&](const char* name, int64_t least, int64_t most) {
    const std::optional<int64_t> value = message.number(name, least, most);
    complete = complete && value.has_value();
    return static_cast<int>(value.value_or(0));
  };
  if (order.kind == Order::Kind::kStart) {
    order.round = {.number = number("number", 0, kMaxInt),
                   .group_rank = number("group_rank", 0, kMaxInt),
                   .group_count = number("group_count", 1, kMaxInt),
                   .first_rank = number("first_rank", 0, kMaxInt),
                   .world_size = number("world_size", 1, kMaxInt),
                   .master_addr = message.text("master_addr"),
                   .master_port = static_cast<uint16_t>(number("master_port", 1, 65535)),
                   .restarts = number("restarts", 0, kMaxInt),
                   .run_token = message.text("run_token")};
    complete = complete && !order.round.master_addr.empty();
  } else {
    order.exit_code = number("exit_code", 0, 255);
    order.text = message.text("text");
  }
  if (!complete) {
    return invalid("a broken order '", message.verb, "'");
  }
  return order;
}

absl::Status LineReader::append(absl::string_view bytes) {
  absl::StrAppend(&pending_, bytes);
  const size_t last_end = pending_.rfind('\n');
  const size_t unfinished =
      last_end == std::string::npos ? pending_.size() : pending_.size() - last_end - 1;
  if (unfinished > kMaxMessageBytes) return absl::ResourceExhaustedError("a line is too long");
  return absl::OkStatus();
}

std::optional<std::string> LineReader::next() {
  const size_t end = pending_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = pending_.substr(0, end);
  pending_.erase(0, end + 1);
  return line;
}

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

MessageChannel::MessageChannel(UniqueFd fd) : fd_(std::move(fd)) {
  fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void MessageChannel::send(const Message& message) {
  if (!is_open()) return;
  out_ += encode(message);
  if (out_.size() > kMaxPendingBytes) close();
}

pollfd MessageChannel::entry() const {
  const int events = out_.empty() ? POLLIN : POLLIN | POLLOUT;
  return {.fd = fd_.get(), .events = static_cast<short>(events), .revents = 0};
}

absl::Status MessageChannel::react(const pollfd& entry) {
  absl::Status ok;
  // The last message of the other end counts even if it is gone now.
  if (is_open() && (entry.revents & (POLLIN | POLLHUP | POLLERR))) ok = read_some();
  if (ok.ok() && is_open() && (entry.revents & POLLOUT)) ok = write_some();
  if (!ok.ok()) close();
  return ok;
}

absl::Status MessageChannel::read_some() {
  char buffer[4096];
  const ssize_t size = recv(fd_.get(), buffer, sizeof(buffer), 0);
  if (size > 0) return in_.append(absl::string_view(buffer, static_cast<size_t>(size)));
  if (size == 0) return gone("connection closed");
  if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return gone(std::strerror(errno));
}

absl::Status MessageChannel::write_some() {
  const ssize_t size = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
  if (size >= 0) {
    out_.erase(0, static_cast<size_t>(size));
    return absl::OkStatus();
  }
  if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return gone(std::strerror(errno));
}

absl::StatusOr<std::optional<Message>> MessageChannel::next() {
  const std::optional<std::string> line = in_.next();
  if (!line) return std::optional<Message>();
  absl::StatusOr<Message> message = decode(*line);
  if (!message.ok()) {
    close();
    return message.status();
  }
  return std::optional<Message>(*std::move(message));
}

}  // namespace accelerate::launcher::agent
