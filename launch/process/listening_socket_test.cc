#include "launch/process/socket_address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"

namespace accelerate::launcher::process {
namespace {

using ::testing::HasSubstr;

bool can_connect(uint16_t port) {
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

TEST(ListenOnLoopback, ListensOnAFreePortAndStaysOutOfChildren) {
  absl::StatusOr<ListeningSocket> socket = listen_on_loopback(0);
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_GT(socket->port, 0);
  EXPECT_TRUE(can_connect(socket->port));
  EXPECT_TRUE(fcntl(socket->fd.get(), F_GETFD) & FD_CLOEXEC);
}

TEST(ListenOnLoopback, NamesAPortThatIsTaken) {
  absl::StatusOr<ListeningSocket> first = listen_on_loopback(0);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status taken = listen_on_loopback(first->port).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken));
  EXPECT_THAT(std::string(taken.message()), HasSubstr("port " + std::to_string(first->port)));
}

TEST(ListenEverywhere, IsReachedAtTheLoopbackAddressToo) {
  absl::StatusOr<ListeningSocket> socket = listen_everywhere(0);
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_TRUE(can_connect(socket->port));
}

}  // namespace
}  // namespace accelerate::launcher::process
