/// The handshake: an agent describes its machine and run, and the server admits or refuses it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/agent/membership.h"
#include "launch/agent/message.h"

namespace accelerate::launch::agent {

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

Message to_message(const Handshake& handshake);

/// Errors: InvalidArgument if the message is none; FailedPrecondition for another protocol.
absl::StatusOr<Handshake> to_handshake(const Message& message);

/// Whether `theirs` fits to the server's own. Errors: FailedPrecondition, a sentence that names
/// both sides and what to do.
absl::Status check_handshake(const Handshake& theirs, const Handshake& own);

}  // namespace accelerate::launch::agent
