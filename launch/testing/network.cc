#include "launch/testing/network.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/platform/child.h"

namespace accelerate::launcher::testing {
namespace {

// Out of the way of descriptors that a test gives fixed numbers (launcher_process.h).
UniqueFd open_high(const std::string& path) {
  UniqueFd low(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return UniqueFd(fcntl(low.get(), F_DUPFD_CLOEXEC, 20));
}

void write_file(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  [[maybe_unused]] ssize_t ignored = write(file.get(), text.data(), text.size());
}

// The process becomes root in a new namespace of users. The owners of files stay.
bool make_users() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER) != 0) return false;
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", absl::StrCat("0 ", user, " 1"));
  write_file("/proc/self/gid_map", absl::StrCat("0 ", group, " 1"));
  return true;
}

}  // namespace

Network::Network(int count) : hub_(make("switch")) {
  run_in(hub_, {"ip", "link", "add", "sw", "type", "bridge"});
  run_in(hub_, {"ip", "link", "set", "sw", "up"});
  for (int i = 0; i < count; ++i) {
    machines_.push_back(make(name(i)));
    const Namespace& machine = machines_.back();
    const std::string port = absl::StrCat("port", i);
    run_in(hub_, {"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                  absl::StrCat(machine.holder)});
    run_in(hub_, {"ip", "link", "set", port, "master", "sw"});
    run_in(hub_, {"ip", "link", "set", port, "up"});
    run_in(machine, {"ip", "link", "set", "lo", "up"});
    run_in(machine, {"ip", "addr", "add", address(i) + "/24", "dev", "eth0"});
    run_in(machine, {"ip", "addr", "add", address6(i) + "/64", "dev", "eth0", "nodad"});
    run_in(machine, {"ip", "link", "set", "eth0", "up"});
  }
}

Network::~Network() {
  machines_.push_back(std::move(hub_));
  for (Namespace& place : machines_) {
    kill(place.holder, SIGKILL);
    waitpid(place.holder, nullptr, 0);
  }
}

std::string Network::address(int machine) const { return absl::StrCat("10.77.0.", machine + 1); }
std::string Network::address6(int machine) const { return absl::StrCat("fd77::", machine + 1); }
std::string Network::name(int machine) const { return absl::StrCat("node", machine); }

bool Network::enter_users() const {
  return !users_.is_open() || setns(users_.get(), CLONE_NEWUSER) == 0;
}

void Network::enter(int machine) const {
  const Namespace& place = machines_[machine];
  if (!enter_users() || setns(place.net.get(), CLONE_NEWNET) != 0 ||
      setns(place.uts.get(), CLONE_NEWUTS) != 0) {
    _exit(98);
  }
}

void Network::cut(int machine) {
  run_in(hub_, {"ip", "link", "set", absl::StrCat("port", machine), "down"});
}

Network::Namespace Network::make(const std::string& name) {
  int ready[2];
  EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
  Namespace place;
  place.holder = fork();
  if (place.holder == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int error = 0;
    const bool has_rights = users_.is_open() || geteuid() == 0 ? enter_users() : make_users();
    if (!has_rights || unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0 ||
        sethostname(name.data(), name.size()) != 0) {
      error = errno;
    }
    [[maybe_unused]] ssize_t ignored = write(ready[1], &error, sizeof(error));
    // An open copy of a pipe would keep its other end waiting.
    close_range(0, ~0U, 0);
    while (true) pause();
  }
  close(ready[1]);
  int error = -1;
  EXPECT_EQ(read(ready[0], &error, sizeof(error)), ssize_t(sizeof(error)));
  EXPECT_EQ(error, 0) << "cannot make a namespace: " << std::strerror(error);
  close(ready[0]);
  const std::string folder = absl::StrCat("/proc/", place.holder, "/ns/");
  place.net = open_high(folder + "net");
  place.uts = open_high(folder + "uts");
  EXPECT_TRUE(place.net.is_open() && place.uts.is_open());
  if (geteuid() != 0 && !users_.is_open()) users_ = open_high(folder + "user");
  return place;
}

void Network::run_in(const Namespace& place, std::vector<std::string> command) const {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const absl::StatusOr<ChildResult> result = run_in_child([&](int fd) {
    dup2(fd, STDERR_FILENO);
    if (!enter_users() || setns(place.net.get(), CLONE_NEWNET) != 0) _exit(98);
    execvp(argv[0], argv.data());
    // PATH of a user who is not root may lack the folder of `ip`.
    execv(absl::StrCat("/usr/sbin/", argv[0]).c_str(), argv.data());
    _exit(99);
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 0) << absl::StrJoin(command, " ") << ": " << result->output;
}

}  // namespace accelerate::launcher::testing
