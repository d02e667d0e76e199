// The same program on two machines of one process each and as two simulated ranks: the same bits.
// The machines are network namespaces: their names do not resolve, and they share no loopback.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "launch/testing/launcher_process.h"
#include "launch/testing/network.h"

namespace accelerate {
namespace {

using launcher::testing::LauncherProcess;
using launcher::testing::Network;

constexpr char kLauncher[] = "launch/accelerate";
constexpr char kProgram[] = "integration_tests/digits/losses";
constexpr char kData[] = "accelerate/examples/digits/digits.safetensors";

std::unique_ptr<LauncherProcess> train(const Network& network, int machine, const std::string& host,
                                       const std::string& interface) {
  return std::make_unique<LauncherProcess>(
      std::vector<std::string>{kLauncher, "launch", "--cpu", "--num_machines", "2",
                               "--num_processes", "2", "--machine_rank", std::to_string(machine),
                               "--main_process_ip", host, "--main_process_port", "4000", kProgram,
                               kData},
      launcher::testing::LauncherSetup{
          .environment = {"OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=" + interface},
          .before_exec = [&network, machine] { network.enter(machine); }});
}

// The numbers behind "loss " on each line, whatever the launcher puts before it.
std::vector<std::string> losses(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = text.find("loss 0x"); at != std::string::npos;
       at = text.find("loss 0x", at + 1)) {
    found.push_back(text.substr(at + 5, text.find('\n', at) - at - 5));
  }
  return found;
}

TEST(Machines, TwoEqualTwoSimulatedRanksBitForBit) {
  LauncherProcess simulated({kLauncher, "launch", "--simulate", "1x2", kProgram, kData});
  ASSERT_EQ(simulated.finish(), 0) << simulated.stderr_text();
  const std::vector<std::string> expected = losses(simulated.stdout_text());
  ASSERT_EQ(expected.size(), 10u);
  Network network(2);
  // By the route to the store, over IPv4 and IPv6, and by name.
  const std::pair<std::string, std::string> ways[] = {
      {network.address(0), ""}, {network.address6(0), ""}, {network.address(0), "eth0"}};
  for (const auto& [host, interface] : ways) {
    std::unique_ptr<LauncherProcess> first = train(network, 0, host, interface);
    std::unique_ptr<LauncherProcess> second = train(network, 1, host, interface);
    EXPECT_EQ(first->finish(), 0) << first->stderr_text();
    EXPECT_EQ(second->finish(), 0) << second->stderr_text();
    EXPECT_EQ(losses(first->stdout_text()), expected) << host << " " << interface;
  }
}

}  // namespace
}  // namespace accelerate
