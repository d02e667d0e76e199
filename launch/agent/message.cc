#include "launch/agent/message.h"

#include <algorithm>
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

namespace accelerate::launch::agent {
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
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return absl::ascii_islower(c) || c == '_'; });
}

constexpr std::pair<Order::Kind, const char*> kVerbs[] = {
    {Order::Kind::kStart, "start"},
    {Order::Kind::kStop, "stop"},
    {Order::Kind::kEnd, "end"},
    {Order::Kind::kNotice, "notice"},
};

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
      return absl::InvalidArgumentError(
          absl::StrCat("a broken field in a message '", message.verb, "'"));
    }
  }
  return message;
}

Message to_message(const Order& order) {
  Message message;
  for (const auto& [kind, verb] : kVerbs) {
    if (kind == order.kind) message.verb = verb;
  }
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
  const auto* verb = std::find_if(std::begin(kVerbs), std::end(kVerbs),
                                  [&](const auto& entry) { return message.verb == entry.second; });
  if (verb == std::end(kVerbs)) {
    return absl::InvalidArgumentError(absl::StrCat("an unknown order '", message.verb, "'"));
  }
  order.kind = verb->first;
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
    return absl::InvalidArgumentError(absl::StrCat("a broken order '", message.verb, "'"));
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

}  // namespace accelerate::launch::agent
