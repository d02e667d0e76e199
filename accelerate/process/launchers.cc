#include "accelerate/process/launchers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "accelerate/platform/topology.h"
#include "accelerate/platform/unique_fd.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/device_choice.h"
#include "accelerate/runtime/host.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

constexpr auto kGrace = std::chrono::seconds(5);

int count_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 1 : static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// Threads of BLAS libraries, which handle forks themselves.
const int threads_at_start = count_threads();

void check_options(const LaunchOptions& options) {
  TORCH_CHECK_VALUE(options.num_processes.value_or(1) >= 1, "launch: num_processes is ",
                    *options.num_processes);
  TORCH_CHECK_VALUE(
      options.num_nodes >= 1 && options.node_rank >= 0 && options.node_rank < options.num_nodes,
      "launch: node_rank is ", options.node_rank, " of num_nodes ", options.num_nodes);
  TORCH_CHECK_VALUE(options.num_nodes == 1 || options.use_port != 0,
                    "launch: several nodes need a use_port that all of them know");
  TORCH_CHECK_VALUE(options.max_restarts >= 0, "launch: max_restarts is ", options.max_restarts);
  TORCH_CHECK_VALUE(!options.use_cpu || options.simulate.empty(), "launch: use_cpu and simulate=\"",
                    options.simulate,
                    "\" exclude each other: simulated ranks compute on what the cluster names");
}

// The socket of rank 0's store. Made here, so that no other process takes the port meanwhile.
UniqueFd listen(const LaunchOptions& options, uint16_t& port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.use_port);
  address.sin_addr.s_addr = htonl(options.num_nodes == 1 ? INADDR_LOOPBACK : INADDR_ANY);
  auto* place = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  const bool listens = ::bind(socket.get(), place, size) == 0 &&
                       ::listen(socket.get(), SOMAXCONN) == 0 &&
                       ::getsockname(socket.get(), place, &size) == 0;
  const int error = errno;
  TORCH_CHECK_VALUE(listens, "launch: cannot listen on port ", options.use_port, ": ",
                    std::strerror(error), "; give use_port another number, or 0 for any free one");
  port = ntohs(address.sin_port);
  return socket;
}

Environment environment_of(const LaunchOptions& options) {
  Environment environment;
  environment.set("ACCELERATE_MIXED_PRECISION", to_string(options.mixed_precision));
  if (options.use_cpu) environment.set("ACCELERATE_USE_CPU", "true");
  return environment;
}

TrainFunction train_of(const std::function<void()>& function) {
  return [&function](int, char**) {
    function();
    return 0;
  };
}

// A rank of a job of several, seen from its parent.
struct Child {
  int rank = 0;
  pid_t pid = 0;
  UniqueFd ended;   // readable when it has
  UniqueFd reason;  // the text of its failure
  std::string failure;
  bool has_ended = false;

  // Its end, which has come.
  void reap() {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    has_ended = true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    char text[4096];
    std::string text_read;
    for (ssize_t size; (size = ::read(reason.get(), text, sizeof(text))) > 0;) {
      text_read.append(text, size);
    }
    failure = absl::StrCat("rank ", rank, " (process ", pid, ") ");
    if (WIFSIGNALED(status)) {
      absl::StrAppend(&failure, "was killed by signal ", WTERMSIG(status), " (",
                      ::strsignal(WTERMSIG(status)), ")");
    } else {
      absl::StrAppend(&failure, "exited with code ", WEXITSTATUS(status));
    }
    if (!text_read.empty()) absl::StrAppend(&failure, ": ", text_read);
  }
};

// In a child: the rank.
[[noreturn]] void be_rank(const std::function<void()>& function, Environment environment,
                          pid_t parent, int listens, int words) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(1);
  // Only while rank 0 lives can its port be reached.
  if (!environment.get(env::kStoreListenFd) && listens >= 0) ::close(listens);
  limit_intra_op_threads(environment);
  const int code = internal::run_real(
      0, nullptr, train_of(function), std::move(environment),
      [words](const std::string& failure) { write_all(words, failure.substr(0, 4096)); });
  std::fflush(nullptr);
  std::_Exit(code);
}

Child start(const std::function<void()>& function, Environment environment, int rank, int listens) {
  int pipe[2];
  TORCH_CHECK(::pipe2(pipe, O_CLOEXEC) == 0, "launch: no pipe: ", std::strerror(errno));
  Child child{.rank = rank, .reason = UniqueFd(pipe[0])};
  const UniqueFd writes(pipe[1]);
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  child.pid = ::fork();
  TORCH_CHECK(child.pid >= 0, "launch: cannot start rank ", rank, ": ", std::strerror(errno));
  if (child.pid == 0) {
    be_rank(function, std::move(environment), parent, listens, writes.get());
  }
  child.ended = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  if (child.ended.get() < 0) {
    const int error = errno;
    ::kill(child.pid, SIGKILL);
    child.reap();
    TORCH_CHECK(false, "launch: cannot watch rank ", rank, ": ", std::strerror(error));
  }
  return child;
}

// Stops and reaps the remaining children.
class Children {
 public:
  ~Children() { stop(); }

  std::vector<Child>& all() { return all_; }

  // The first failure; empty if there was none.
  std::string wait() {
    while (wait_for_one(-1)) {
      for (const Child& child : all_) {
        if (!child.failure.empty()) return child.failure;
      }
    }
    return "";
  }

  void stop() {
    for (const int signal : {SIGTERM, SIGKILL}) {
      for (const Child& child : all_) {
        if (!child.has_ended) ::kill(child.pid, signal);
      }
      const auto end = std::chrono::steady_clock::now() + kGrace;
      for (bool some = true; some;) {
        const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
            end - std::chrono::steady_clock::now());
        if (signal == SIGTERM && rest.count() <= 0) break;
        some = wait_for_one(signal == SIGTERM ? static_cast<int>(rest.count()) : -1);
      }
    }
  }

 private:
  // False when all have ended.
  bool wait_for_one(int milliseconds) {
    std::vector<pollfd> polled;
    std::vector<Child*> living;
    for (Child& child : all_) {
      if (child.has_ended) continue;
      polled.push_back({.fd = child.ended.get(), .events = POLLIN, .revents = 0});
      living.push_back(&child);
    }
    if (living.empty()) return false;
    ::poll(polled.data(), polled.size(), milliseconds);
    for (size_t i = 0; i < living.size(); ++i) {
      if (polled[i].revents != 0) living[i]->reap();
    }
    return true;
  }

  std::vector<Child> all_;
};

// All ranks of this machine, once. Returns the first failure; empty if there was none.
std::string attempt(const std::function<void()>& function, const LaunchOptions& options,
                    int num_processes) {
  uint16_t port = options.use_port;
  UniqueFd socket;
  if (options.node_rank == 0) socket = listen(options, port);
  Environment environment = environment_of(options);
  environment.set(env::kMasterAddr, options.master_addr);
  environment.set(env::kMasterPort, absl::StrCat(port));
  environment.set("FORK_LAUNCHED", "1");
  Children children;
  for (int local_rank = 0; local_rank < num_processes; ++local_rank) {
    const int rank = options.node_rank * num_processes + local_rank;
    Environment own = environment;
    export_topology(Topology::uniform(rank, options.num_nodes, num_processes), own);
    if (rank == 0) {
      own.set(env::kStoreListenFd, absl::StrCat(socket.get()));
    } else {
      own.unset(env::kStoreListenFd);
    }
    children.all().push_back(start(function, std::move(own), rank, socket.get()));
  }
  socket = UniqueFd();  // rank 0's alone from here on
  return children.wait();
}

// This process is the only rank.
std::string run_alone(const std::function<void()>& function, const LaunchOptions& options) {
  Environment environment = environment_of(options);
  for (const char* name : {env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize,
                           env::kGroupRank, env::kMasterAddr, env::kMasterPort}) {
    environment.unset(name);
  }
  limit_intra_op_threads(environment);
  std::string failure;
  internal::run_real(0, nullptr, train_of(function), std::move(environment),
                     [&failure](const std::string& what) { failure = what; });
  return failure;
}

bool simulate(const std::function<void()>& function, const LaunchOptions& options) {
  Environment environment = environment_of(options);
  if (!options.simulate.empty()) {
    environment.set(env::kSimulate, options.simulate);
    environment.set(env::kSimulateSeed, absl::StrCat(options.simulate_seed));
    environment.set(env::kSimulateNumerics, options.simulate_numerics);
    environment.set(env::kSimulateUnknownValues, options.simulate_unknown_values);
    environment.set(env::kSimulateFold, options.simulate_fold ? "true" : "false");
  }
  if (!environment.get(env::kSimulate)) return false;
  limit_intra_op_threads(environment);
  // For the command that repeats the run.
  std::vector<std::string> words = command_line();
  std::vector<char*> argv = pointers_to(words);
  const std::optional<int> code = internal::run_in_mode(static_cast<int>(words.size()), argv.data(),
                                                        train_of(function), std::move(environment));
  TORCH_CHECK(code.has_value(), "launch: ", internal::kLinkSimulator);
  TORCH_CHECK(*code == 0, "launch: the simulated run failed; see above");
  return true;
}

}  // namespace

void launch(const std::function<void()>& function, const LaunchOptions& options) {
  check_options(options);
  TORCH_CHECK(Runtime::find_current() == nullptr,
              "launch: this process is a rank already; call it outside of accelerate::run, and "
              "before an Accelerator is made");
  internal::restore_sighup_action(Environment());
  if (simulate(function, options)) return;
  int num_processes = 1;
  if (options.num_processes) {
    num_processes = *options.num_processes;
  } else if (!options.use_cpu) {
    const std::vector<DeviceKind> devices = present_devices();
    if (!devices.empty()) num_processes = std::max(devices.front().count, 1);
  }
  std::string failure;
  if (num_processes == 1 && options.num_nodes == 1) {
    failure = run_alone(function, options);
    TORCH_CHECK(failure.empty(), "launch: ", failure);
    return;
  }
  const int threads = count_threads();
  TORCH_CHECK(threads <= threads_at_start, "launch: this process has ", threads - threads_at_start,
              " threads more than at its start, and ranks are forks of it, which have none of "
              "them; call it before anything that computes in parallel or uses a device");
  for (int restarts = 0;; ++restarts) {
    failure = attempt(function, options, num_processes);
    if (failure.empty()) return;
    TORCH_CHECK(restarts < options.max_restarts, "launch: ", failure,
                options.max_restarts > 0
                    ? absl::StrCat(" (after ", options.max_restarts, " restarts)")
                    : "");
    std::fprintf(stderr, "accelerate: launch: %s; restart %d of %d\n", failure.c_str(),
                 restarts + 1, options.max_restarts);
  }
}

}  // namespace accelerate
