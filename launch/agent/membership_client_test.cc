// An agent's connection to the membership server: how it is made, and when it is given up.

#include "launch/agent/membership_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "launch/process/socket_address.h"

namespace accelerate::launcher::agent {
namespace {

using process::SocketAddress;
using ::testing::HasSubstr;

using Clock = process::EventSource::Clock;

Handshake own() { return {.version = "1", .run_id = "r", .machine = {.host = "h"}}; }

void step(MembershipClient& client) {
  process::EventSource* source = &client;
  process::wait_for_events({&source, 1});
}

// The client's connection; none if it gave up instead.
UniqueFd accepted(MembershipClient& client, const process::ListeningSocket& socket) {
  fcntl(socket.fd.get(), F_SETFL, O_NONBLOCK);
  while (!client.next_order()) {
    UniqueFd fd(accept4(socket.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.is_open()) return fd;
    step(client);
  }
  return UniqueFd();
}

// A name often stands for several addresses, of which the server listens at one.
TEST(MembershipClient, TriesEveryAddressOfTheHost) {
  const absl::StatusOr<process::ListeningSocket> socket = process::listen_on_loopback(0);
  ASSERT_TRUE(socket.ok()) << socket.status();
  MembershipClientOptions options = {.endpoint_host = "host", .endpoint_port = socket->port};
  // Whoever pauses gives up.
  options.timing.join_timeout = absl::ZeroDuration();
  for (const char* address : {"127.0.0.3", "127.0.0.2", "127.0.0.1"}) {
    options.addresses.push_back(*SocketAddress::from_text(address));
  }
  MembershipClient client(options, own());
  EXPECT_TRUE(accepted(client, *socket).is_open());
}

TEST(MembershipClient, GivesUpWhereNoAddressAnswersInTime) {
  const absl::StatusOr<process::ListeningSocket> socket = process::listen_on_loopback(0);
  ASSERT_TRUE(socket.ok()) << socket.status();
  MembershipClientOptions options = {.endpoint_host = "host", .endpoint_port = socket->port};
  options.timing.join_timeout = absl::ZeroDuration();
  options.addresses = {*SocketAddress::from_text("127.0.0.2")};
  MembershipClient client(options, own());
  std::optional<Order> order;
  while (!(order = client.next_order())) step(client);
  EXPECT_EQ(order->kind, Order::Kind::kEnd);
  EXPECT_EQ(order->exit_code, 1);
  EXPECT_THAT(order->text, HasSubstr("no launcher listens at host:"));
}

struct Connection {
  UniqueFd client;
  UniqueFd server;
};

Connection connection() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {.client = UniqueFd(ends[0]), .server = UniqueFd(ends[1])};
}

TEST(MembershipClient, WaitsForTheAnswerToItsHandshakeAsLongAsItIsTold) {
  Connection ends = connection();
  MembershipClientOptions options = {.endpoint_host = "host", .endpoint_port = 4000};
  options.timing.read_timeout = absl::Hours(1);
  const Clock::time_point before = Clock::now();
  MembershipClient patient(options, own(), std::move(ends.client));
  const Clock::time_point after = Clock::now();
  ASSERT_TRUE(patient.deadline().has_value());
  EXPECT_GE(*patient.deadline(), before + std::chrono::hours(1));
  EXPECT_LE(*patient.deadline(), after + std::chrono::hours(1));

  Connection others = connection();
  options.timing.read_timeout = absl::ZeroDuration();
  MembershipClient hasty(options, own(), std::move(others.client));
  step(hasty);
  const std::optional<Order> order = hasty.next_order();
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(order->kind, Order::Kind::kEnd);
  EXPECT_THAT(order->text, HasSubstr("what listens at host:4000 did not answer the handshake"));
}

// A member's client with the server's end of its connection.
struct Joined {
  explicit Joined(int max_attempt) : ends(connection()) {
    MembershipClientOptions options = {.endpoint_host = "host", .endpoint_port = 4000};
    options.timing.keep_alive_interval = absl::Milliseconds(1);
    options.timing.keep_alive_max_attempt = max_attempt;
    client.emplace(options, own(), std::move(ends.client));
    EXPECT_EQ(send(ends.server.get(), "welcome\n", 8, MSG_NOSIGNAL), 8);
  }

  Connection ends;
  std::optional<MembershipClient> client;
};

TEST(MembershipClient, EndsWhenTheServerIsSilentForTooLong) {
  Joined member(/*max_attempt=*/3);
  std::optional<Order> order;
  while (!(order = member.client->next_order())) step(*member.client);
  EXPECT_EQ(order->kind, Order::Kind::kEnd);
  EXPECT_THAT(order->text, HasSubstr("lost the machine at host:4000"));
}

TEST(MembershipClient, SaysAgainAndAgainThatItIsThere) {
  Joined member(/*max_attempt=*/1'000'000);
  std::string said;
  while (said.find("alive\nalive\n") == std::string::npos) {
    step(*member.client);
    char buffer[1024];
    const ssize_t size = recv(member.ends.server.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (size > 0) said.append(buffer, static_cast<size_t>(size));
  }
  EXPECT_EQ(said.rfind("hello ", 0), 0u);
  EXPECT_FALSE(member.client->next_order().has_value());
}

}  // namespace
}  // namespace accelerate::launcher::agent
