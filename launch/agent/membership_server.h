/// The server that tells machines when a round starts, stops and ends: `Membership` on a socket.
///
/// It is one of the sources of the hosting agent's loop and dies with that agent; the others end
/// their part of the run then. A new connection has a few seconds for its handshake; connections
/// that break the protocol are closed and otherwise ignored.
/// Threads: the main thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent/membership.h"
#include "launch/agent/message.h"
#include "launch/process/event_source.h"
#include "launch/process/socket_address.h"

namespace accelerate::launcher::agent {

class MembershipServer final : public process::EventSource {
 public:
  /// `own` is the hosting machine's handshake, which the others must match; its clock is read anew
  /// for each comparison. A machine that sends nothing for `liveness_timeout` counts as lost.
  MembershipServer(process::ListeningSocket socket, const MembershipRules& rules, Handshake own,
                   absl::Duration liveness_timeout);

  uint16_t port() const { return socket_.port; }

  /// A connection that did not come over the network: the hosting agent's own.
  void add_connection(UniqueFd connection);

  /// The hosting machine leaves, and with it the run ends for all others.
  void end_run(const Failure& failure);

  /// Whether the run is over and every machine has received its last order.
  bool is_over() const;

  void add_entries(std::vector<pollfd>& entries) override;
  void react(absl::Span<const pollfd> entries) override;
  std::optional<Clock::time_point> deadline() const override;

 private:
  struct Guest {
    MessageChannel channel;
    std::string peer;  // address, for machines that do not know their own
    Clock::time_point last_received;
    std::string host;           // empty before the handshake
    bool is_dismissed = false;  // left or was refused: not listened to any more
  };

  void distribute();
  void accept_all();
  void receive(int id, Guest& guest);
  void handle(int id, Guest& guest, const Message& message);
  void shake_hands(int id, Guest& guest, const Message& message);
  void lose(int id, const Guest& guest, absl::string_view why);
  size_t pending_handshakes() const;

  process::ListeningSocket socket_;
  Membership membership_;
  const Handshake own_;
  const absl::Duration liveness_timeout_;
  std::map<int, Guest> guests_;
  int next_id_ = 0;
  /// The guests whose entries the latest `add_entries` listed.
  std::vector<int> listed_;
};

}  // namespace accelerate::launcher::agent
