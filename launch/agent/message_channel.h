/// One end of a connection that carries messages. Never blocks.
/// Threads: one user.
#pragma once

#include <poll.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/agent/message.h"
#include "launch/process/event_source.h"

namespace accelerate::launch::agent {

class MessageChannel {
 public:
  /// `fd`: a connected stream socket; becomes non-blocking.
  explicit MessageChannel(UniqueFd fd);

  bool is_open() const { return fd_.is_open(); }
  int fd() const { return fd_.get(); }
  /// Everything sent went to the system.
  bool is_flushed() const { return out_.empty(); }

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

}  // namespace accelerate::launch::agent
