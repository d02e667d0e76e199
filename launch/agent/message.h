/// The messages between agents and the membership server: lines of text, and what carries them.
///
///     start number=0 group_rank=1 … master_addr=10.0.0.1\n
///
/// A verb, then `name=value` pairs. Bytes of a value that would end it are written as `%XX`. Any
/// program may connect and send lines, so their length is limited and every other form is an error.
/// Threads: values.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/agent/membership.h"
#include "launch/process/event_source.h"

namespace accelerate::launcher::agent {

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

/// Machines whose clocks differ by more do not run together: time-outs and logs would not fit.
inline constexpr absl::Duration kClockTolerance = absl::Seconds(10);

struct Handshake {
  std::string version;  ///< of the launcher
  std::string run_id;
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  absl::Time clock;
  Member machine;
};

/// The handshake: an agent describes its machine and run, and the server admits or refuses it.
Message to_message(const Handshake& handshake);

/// Errors: InvalidArgument if the message is none; FailedPrecondition for another protocol.
absl::StatusOr<Handshake> to_handshake(const Message& message);

/// Whether `theirs` fits to the server's own. Errors: FailedPrecondition, a sentence that names
/// both sides and what to do.
absl::Status check_handshake(const Handshake& theirs, const Handshake& own);

/// One end of a connection that carries messages. Never blocks. Threads: one user.
class MessageChannel {
 public:
  /// `fd`: a connected stream socket; becomes non-blocking.
  explicit MessageChannel(UniqueFd fd);

  bool is_open() const { return fd_.is_open(); }
  int fd() const { return fd_.get(); }

  /// Queues. The other end may be too slow for it: beyond some 1 MiB the channel closes.
  void send(const Message& message);
  pollfd entry() const;

  /// Reads and writes what is possible. Errors: Unavailable in words if the other end is gone or
  /// does not keep to the form; the channel is closed then, but messages may still wait in `next`.
  absl::Status react(const pollfd& entry);

  /// The next message. Errors: InvalidArgument if it is broken; the channel is closed then.
  absl::StatusOr<std::optional<Message>> next();

  void close() { fd_.reset(); }

 private:
  absl::Status read_some();
  absl::Status write_some();

  UniqueFd fd_;
  LineReader in_;
  std::string out_;
};

}  // namespace accelerate::launcher::agent
