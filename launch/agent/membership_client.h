/// An agent's link to the rules of membership: its connection to the membership server of its run.
///
/// It retries while the machine refuses connections, since its launcher may start later; a machine
/// that cannot be reached is an error. If the server closes the connection or stops answering, the
/// client gets the order to end.
/// Threads: the main thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent/agent_options.h"
#include "launch/agent/membership.h"
#include "launch/agent/message.h"
#include "launch/process/event_source.h"
#include "launch/process/socket_address.h"

namespace accelerate::launcher::agent {

/// The reports of an agent, and the orders that it gets for them.
class MembershipLink : public process::EventSource {
 public:
  /// No ranks run here, and the next round's store would be served at `store_port`.
  virtual void ready(uint16_t store_port) = 0;
  /// A rank failed here.
  virtual void failed(const Failure& failure) = 0;
  /// All ranks of the round ended well.
  virtual void done() = 0;
  /// This machine leaves; it gets no more orders.
  virtual void leave(const Failure& failure) = 0;
  /// Whether all reports have reached the server.
  virtual bool is_flushed() const = 0;

  std::optional<Order> next_order() {
    if (orders_.empty()) return std::nullopt;
    Order order = std::move(orders_.front());
    orders_.pop_front();
    return order;
  }

 protected:
  std::deque<Order> orders_;
};

struct MembershipClientOptions {
  std::string endpoint_host;
  uint16_t endpoint_port = 0;
  /// The addresses of the host, at least one.
  std::vector<process::SocketAddress> addresses;
  RendezvousTiming timing;
  /// Whether a machine that cannot be reached is waited for as well.
  bool waits_for_unreachable = false;
};

class MembershipClient final : public MembershipLink {
 public:
  /// Connects over the network.
  MembershipClient(MembershipClientOptions options, Handshake handshake);
  /// Has a connection: the hosting agent.
  MembershipClient(MembershipClientOptions options, Handshake handshake, UniqueFd connection);

  void ready(uint16_t store_port) override;
  void failed(const Failure& failure) override;
  void done() override;
  void leave(const Failure& failure) override;
  bool is_flushed() const override;

  void add_entries(std::vector<pollfd>& entries) override;
  void react(absl::Span<const pollfd> entries) override;
  std::optional<Clock::time_point> deadline() const override;

 private:
  enum class State { kConnecting, kPausing, kShakingHands, kMember, kLeaving, kOver };

  std::string endpoint() const;
  void connect_next();
  void finish_connecting();
  void could_not_connect(int error);
  void shake_hands(UniqueFd fd);
  void send(Message message);
  void receive();
  void handle(const Message& message);
  void give_up(const std::string& text);
  void check_time();

  const MembershipClientOptions options_;
  Handshake handshake_;
  State state_ = State::kConnecting;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point since_ = began_;  // of the present attempt or pause
  size_t next_address_ = 0;
  bool host_answered_ = false;  // in this pass through the addresses
  std::string first_problem_;   // of this pass
  bool said_waiting_ = false;
  UniqueFd connecting_;
  std::optional<MessageChannel> channel_;
  /// Said before there was a connection.
  std::vector<Message> early_;
  Clock::time_point last_received_;
  Clock::time_point last_alive_;
};

}  // namespace accelerate::launcher::agent
