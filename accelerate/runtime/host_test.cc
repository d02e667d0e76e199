#include "accelerate/runtime/host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "accelerate/platform/environment.h"

namespace accelerate {
namespace {

// A TCP socket bound to an IPv4 address of this machine.
class Bound {
 public:
  explicit Bound(const char* host, int port = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host, &address.sin_addr);
    bound_ = bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Bound() { close(fd_); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  bool bound() const { return bound_; }
  int port() const { return port_; }
  void start_listening() const { EXPECT_EQ(listen(fd_, 1), 0); }

 private:
  const int fd_;
  bool bound_ = false;
  int port_ = 0;
};

TEST(IsPortInUse, TellsListenersFromTheRest) {
  int port = 0;
  {
    const Bound socket("127.0.0.1");
    ASSERT_TRUE(socket.bound());
    port = socket.port();
    EXPECT_FALSE(is_port_in_use(port)) << "bound only";
    socket.start_listening();
    EXPECT_TRUE(is_port_in_use(port));
    EXPECT_TRUE(is_port_in_use(port)) << "asking changes nothing";
  }
  EXPECT_FALSE(is_port_in_use(port)) << "closed again";
}

TEST(IsPortInUse, FindsListenersAtAllAddresses) {
  const Bound socket("0.0.0.0");
  socket.start_listening();
  EXPECT_TRUE(is_port_in_use(socket.port()));
}

TEST(IsPortInUse, RefusesWhatIsNoPort) {
  EXPECT_THROW(is_port_in_use(-1), c10::ValueError);
  EXPECT_THROW(is_port_in_use(65536), c10::ValueError);
  EXPECT_FALSE(is_port_in_use(0));
}

TEST(GetFreePort, GivesAPortThatCanBeBound) {
  const int port = get_free_port();
  EXPECT_GT(port, 0);
  EXPECT_LE(port, 65535);
  EXPECT_FALSE(is_port_in_use(port));
  const Bound socket("0.0.0.0", port);
  EXPECT_TRUE(socket.bound());
}

// Threads decide the last bits of results, so a rank has one unless its user says otherwise.
TEST(LimitIntraOpThreads, LeavesTheUsersChoiceAlone) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  Environment environment;
  environment.set(env::kOmpNumThreads, "2");
  limit_intra_op_threads(environment);
  EXPECT_EQ(at::get_num_threads(), 2);
  environment.set(env::kOmpNumThreads, "");
  limit_intra_op_threads(environment);
  EXPECT_EQ(at::get_num_threads(), 1) << "an empty value chooses nothing";
  at::set_num_threads(before);
}

}  // namespace
}  // namespace accelerate
