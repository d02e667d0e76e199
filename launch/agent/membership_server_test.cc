// The membership server against guests that keep to no rules.

#include "launch/agent/membership_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "launch/process/socket_address.h"

namespace accelerate::launcher::agent {

using process::SocketAddress;
namespace {

using ::testing::HasSubstr;

Handshake self() {
  return {.version = "1.2",
          .run_id = "r",
          .min_nodes = 2,
          .max_nodes = 2,
          .clock = absl::Now(),
          .machine = {.host = "h", .address = "a"}};
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest()
      : server_(*process::listen_on_loopback(0), {.min_nodes = 2, .max_nodes = 2}, self(),
                absl::Seconds(60)) {}

  UniqueFd connect_to_server() {
    SocketAddress address = *SocketAddress::from_text("127.0.0.1");
    address.set_port(server_.port());
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), address.get(), address.size()), 0);
    return fd;
  }

  void step() {
    process::EventSource* source = &server_;
    process::wait_for_events({&source, 1});
  }

  // The server's answer to this guest until `ending`, or until it hangs up.
  std::string answer(const UniqueFd& guest, const std::string& ending) {
    std::string text;
    while (true) {
      char buffer[256];
      const ssize_t size = recv(guest.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (size == 0 || (size < 0 && errno != EAGAIN)) return text + "<closed>";
      if (size > 0) text.append(buffer, static_cast<size_t>(size));
      if (!ending.empty() && text.find(ending) != std::string::npos) return text;
      if (size < 0) step();
    }
  }

  std::string say(const std::string& bytes, const std::string& ending = "") {
    UniqueFd guest = connect_to_server();
    EXPECT_EQ(send(guest.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
    return answer(guest, ending);
  }

  MembershipServer server_;
};

std::string hello(const std::function<void(Handshake&)>& change) {
  Handshake handshake = self();
  change(handshake);
  return encode(to_message(handshake));
}

TEST_F(ServerTest, HangsUpOnWhatIsNotOfTheProtocol) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\n"), std::string("\0\xff\n", 3),
        std::string("ready port=1\n"), std::string("hello protocol=1\n"),
        std::string(10 * kMaxMessageBytes, 'x')}) {
    EXPECT_EQ(say(bytes), "<closed>");
  }
  EXPECT_THAT(say(hello([](Handshake&) {}), "\n"), HasSubstr("welcome"));
}

TEST_F(ServerTest, SaysWhyAMachineDoesNotFit) {
  EXPECT_THAT(say("hello protocol=99\n", "\n"), HasSubstr("another%20protocol"));
  EXPECT_THAT(say(hello([](Handshake& i) { i.version = "1.1"; }), "\n"),
              HasSubstr("version%201.1%20and%20that%20of%20h%20is%201.2"));
  EXPECT_THAT(say(hello([](Handshake& i) { i.clock -= absl::Minutes(1); }), "\n"),
              HasSubstr("behind"));
  EXPECT_THAT(say(hello([](Handshake& i) { i.clock += absl::Minutes(1); }), "\n"),
              HasSubstr("ahead%20of"));
  EXPECT_THAT(say(hello([](Handshake& i) { i.run_id = "s"; }), "\n"), HasSubstr("--rdzv_id"));
}

// More than the server listens to at once; they leave when it hangs up or by themselves.
TEST_F(ServerTest, OutlivesManyConnectionsWithoutAHandshake) {
  for (int i = 0; i < 3; ++i) {
    std::vector<UniqueFd> crowd;
    for (int j = 0; j < 300; ++j) crowd.push_back(connect_to_server());
    step();
  }
  EXPECT_THAT(say(hello([](Handshake&) {}), "\n"), HasSubstr("welcome"));
}

TEST_F(ServerTest, LosesAMemberThatTalksNonsense) {
  UniqueFd member = connect_to_server();
  const std::string good = hello([](Handshake&) {}) + "ready port=7\nnonsense\nready port=x\n";
  EXPECT_EQ(send(member.get(), good.data(), good.size(), 0), ssize_t(good.size()));
  EXPECT_THAT(answer(member, "\n"), HasSubstr("welcome"));
  EXPECT_EQ(send(member.get(), "a b\n", 4, 0), 4);
  EXPECT_EQ(answer(member, ""), "<closed>");
}

TEST_F(ServerTest, SendsOthersToWhereAMachineWithoutAnAddressCameFrom) {
  const auto words = [](const char* host) {
    return hello([host](Handshake& i) { i.machine = {.host = host, .address = ""}; }) +
           "ready port=7\n";
  };
  UniqueFd first = connect_to_server();
  const std::string one = words("one");
  EXPECT_EQ(send(first.get(), one.data(), one.size(), 0), ssize_t(one.size()));
  EXPECT_THAT(answer(first, "\n"), HasSubstr("welcome"));
  // The last field of the order to start.
  EXPECT_THAT(say(words("two"), "world_size="), HasSubstr(" master_addr=127.0.0.1 "));
}

}  // namespace
}  // namespace accelerate::launcher::agent
