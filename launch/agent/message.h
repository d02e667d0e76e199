/// The messages between agents and the membership server: lines of text.
///
///     start number=0 group_rank=1 … master_addr=10.0.0.1\n
///
/// A verb, then `name=value` pairs. Bytes of a value that would end it are written as `%XX`. Any
/// program may connect and send lines, so their length is limited and every other form is an error.
/// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/agent/membership.h"

namespace accelerate::launch::agent {

/// Raised when messages change.
inline constexpr int kProtocolVersion = 1;

/// Longer lines are refused.
inline constexpr size_t kMaxMessageBytes = 16 * 1024;

struct Message {
  std::string verb;
  std::map<std::string, std::string> fields;

  /// The field, or nothing if it is missing or not a number between `least` and `most`.
  std::optional<int64_t> number(absl::string_view name, int64_t least, int64_t most) const;
  /// The field, or an empty text.
  std::string text(absl::string_view name) const;
};

/// With its line end. Values that make the line too long are cut.
std::string encode(const Message& message);

/// `line` comes without its end. Errors: InvalidArgument.
absl::StatusOr<Message> decode(absl::string_view line);

/// An order as a message, and back. Errors: InvalidArgument if a field is missing or out of range.
Message to_message(const Order& order);
absl::StatusOr<Order> to_order(const Message& message);

/// Cuts a stream of bytes into lines.
class LineReader {
 public:
  /// Errors: ResourceExhausted if a line gets too long; nothing can be read after that.
  absl::Status append(absl::string_view bytes);
  /// The next whole line, without its end.
  std::optional<std::string> next();

 private:
  std::string pending_;
};

}  // namespace accelerate::launch::agent
