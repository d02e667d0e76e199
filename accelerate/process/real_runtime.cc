#include "accelerate/process/real_runtime.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/log/absl_check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/gloo/gloo_backend.h"
#include "accelerate/comm/watch/job_watch.h"
#include "accelerate/comm/watch/watched_backend.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/nvidia.h"
#include "accelerate/runtime/device_cache.h"
#include "accelerate/runtime/device_choice.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr auto kConnectTimeout = std::chrono::minutes(5);

// How long a failed rank 0 goes on serving the store, so that the others learn why.
constexpr auto kFarewell = std::chrono::seconds(3);
constexpr char kEndedWell[] = "ended its program";

std::string left_key(int rank) { return absl::StrCat("accelerate/left/", rank); }

// The keys that the other ranks set when they leave.
std::vector<std::string> left_keys(int world_size) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < world_size; ++rank) keys.push_back(left_key(rank));
  return keys;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// The socket that the launcher opened for rank 0, if it did. The child processes of this one must
// not inherit it: an open copy would keep the port taken after rank 0 is gone.
std::optional<int> inherited_listen_fd(const Environment& environment) {
  int fd = -1;
  if (!absl::SimpleAtoi(environment.get_or(env::kStoreListenFd, ""), &fd) || fd < 0) {
    return std::nullopt;
  }
  const int flags = fcntl(fd, F_GETFD);
  TORCH_CHECK(flags >= 0, env::kStoreListenFd, "=", fd, " is not an open file descriptor");
  fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  return fd;
}

// The store writes to ranks that may be gone. That is an error to report, and no reason to die
// without a word. A handler of the user's own stays.
void ignore_broken_pipes() {
  struct sigaction action{};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

c10::intrusive_ptr<c10d::TCPStore> connect(const std::string& addr, c10d::TCPStoreOptions options) {
  options.waitWorkers = false;  // The first group waits for its members anyway.
  options.timeout = kConnectTimeout;
  // The libuv server is not in every build; the plain one is.
  options.useLibUV = false;
  return c10::make_intrusive<c10d::TCPStore>(addr, options);
}

// The end of the process by an error that nothing caught, and the job that it is reported to.
struct UncaughtError {
  std::mutex mutex;
  std::condition_variable changed;
  std::weak_ptr<JobWatch> watch;  // until a thread reports
  int rank = 0;
  bool is_reporting = false;
  bool is_reported = false;
  std::terminate_handler usual = nullptr;  // null: none is installed
};

UncaughtError& uncaught_error() {
  static auto& error = *new UncaughtError();
  return error;
}

void report_uncaught(JobWatch& watch, int rank, const std::string& reason) {
  OperationFailure failure{.reason = reason};
  if (const std::optional<PendingOperation> pending = watch.log().pending()) {
    failure.group = pending->group;
    failure.ranks = pending->ranks;
  }
  host::write_console(ConsoleStream::kErr, absl::StrCat("accelerate: rank ", rank,
                                                        " failed: ", watch.fail(failure), "\n"));
  watch.stop();  // The rank's dump is written by then.
  // The others read the report from rank 0's store.
  if (rank == 0) absl::SleepFor(absl::FromChrono(kFarewell));
}

// A thread of Gloo's throws where more arrives than this rank waits for, as from a rank that called
// something else. No code of a program's can catch that, and what waits for the connection cannot
// be woken: the thread that threw holds its lock. So a thread of its own reports, which may block.
void end_uncaught() {
  constexpr std::chrono::seconds kLongest(15);
  UncaughtError& end = uncaught_error();
  std::unique_lock lock(end.mutex);
  const std::shared_ptr<JobWatch> watch = std::exchange(end.watch, {}).lock();
  std::string reason;
  if (const std::exception_ptr error = std::current_exception(); error && watch) {
    const std::string what = exception_text(error);
    reason = absl::StrCat("rank ", end.rank,
                          ": an error that nothing caught: ", what.substr(0, what.find('\n')));
    try {
      std::thread([&end, watch, rank = end.rank, reason] {
        report_uncaught(*watch, rank, reason);
        const std::lock_guard done(end.mutex);
        end.is_reported = true;
        end.changed.notify_all();
      }).detach();
      end.is_reporting = true;
    } catch (const std::system_error&) {
      // The reason alone is printed.
    }
  }
  if (end.is_reporting) end.changed.wait_for(lock, kLongest, [&end] { return end.is_reported; });
  if (!reason.empty() && !end.is_reported) {
    host::write_console(ConsoleStream::kErr, absl::StrCat("accelerate: ", reason, "\n"));
  }
  lock.unlock();
  end.usual();
}

// Null: to nobody.
void report_uncaught_to(const std::shared_ptr<JobWatch>& watch, int rank) {
  UncaughtError& end = uncaught_error();
  const std::lock_guard lock(end.mutex);
  end.watch = watch;
  end.rank = rank;
  if (end.usual == nullptr) end.usual = std::set_terminate(&end_uncaught);
}

// The members' line to compare calls: shared memory on one machine. Otherwise connections, which
// are the backend's where it is Gloo's; debug mode makes some of its own, other jobs none (null).
std::shared_ptr<CallComparer> make_comparer(JobWatch& job, BackendOptions options,
                                            const c10::intrusive_ptr<c10d::Backend>& backend,
                                            bool debug) {
  options.store = c10::make_intrusive<c10d::PrefixStore>("compare", options.store);
  std::shared_ptr<CallComparer> comparer;
  if (options.single_node)
    comparer = SharedMemoryComparer::make(*options.store, options.rank, options.size);
  if (!comparer && debug) {
    comparer = std::make_shared<GlooComparer>(c10::make_intrusive<GlooBackend>(options));
  } else if (!comparer) {
    auto* gloo = dynamic_cast<GlooBackend*>(backend.get());
    if (gloo == nullptr) return nullptr;
    comparer = std::make_shared<GlooComparer>(c10::intrusive_ptr<GlooBackend>::reclaim_copy(gloo));
  }
  // The object that interrupts the comparer's waits lives as long as the comparer.
  struct Interrupted {
    std::shared_ptr<CallComparer> comparer;
    std::shared_ptr<void> interrupt;
  };
  auto both = std::make_shared<Interrupted>(Interrupted{
      .comparer = comparer,
      .interrupt = job.on_failure([comparer = comparer.get()] { comparer->interrupt(); })});
  return std::shared_ptr<CallComparer>(both, comparer.get());
}

c10::intrusive_ptr<c10d::Backend> make_watched(const std::string& name,
                                               const BackendOptions& options, WatchedGroup group,
                                               WatchedBackend::Options watch, bool debug) {
  group.job->check();
  group.index = group.job->log().add_group(group.name, group.ranks);
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = make_backend(name, options);
    watch.compares_all = debug;
    if (options.size > 1) watch.comparer = make_comparer(*group.job, options, backend, debug);
  } catch (const c10::ValueError&) {
    throw;
  } catch (...) {
    group.fail("the making", std::current_exception());
  }
  group.job->log().group_is_made(group.index);
  return c10::make_intrusive<WatchedBackend>(std::move(backend), std::move(group),
                                             std::move(watch));
}

// Without a configured rendezvous, and if the launcher can pass a value from rank 0 to the other
// ranks, rank 0 chooses: the placement then has no address.
absl::StatusOr<Placement> place(const Environment& environment) {
  if (environment.get_or(env::kMasterAddr, "").empty() &&
      environment.get_or(env::kMasterPort, "").empty()) {
    absl::StatusOr<Topology> topology = topology_from_environment(environment);
    if (topology.ok() && topology->world_size > 1 && find_rendezvous(topology->source) != nullptr) {
      return Placement{.topology = *std::move(topology)};
    }
  }
  return placement_from_environment(environment);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RealRuntime>> RealRuntime::from_environment(
    Environment environment) {
  ACCELERATE_ASSIGN_OR_RETURN(Placement placement, place(environment));
  const Topology& topology = placement.topology;
  ACCELERATE_ASSIGN_OR_RETURN(c10::Device device,
                              choose_device(environment, topology, present_devices()));
  if (device.is_cuda() && topology.world_size > 1) {
    ACCELERATE_RETURN_IF_ERROR(check_nccl_environment(query_nvidia_gpus(), environment));
  }
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
  if (!placement.notice.empty()) {
    host::write_console(ConsoleStream::kErr, absl::StrCat("accelerate: ", placement.notice, "\n"));
  }
  export_placement(placement, environment);
  return std::unique_ptr<RealRuntime>(new RealRuntime(
      topology, std::move(environment), device, placement.master_addr, placement.master_port));
}

RealRuntime::RealRuntime(Topology topology, Environment environment, c10::Device device,
                         std::string host, uint16_t port)
    : Runtime(topology, std::move(environment)),
      device_(device),
      master_addr_(std::move(host)),
      master_port_(port) {}

std::vector<std::string> RealRuntime::accelerator_families() const {
  std::vector<std::string> families;
  for (const DeviceKind& kind : present_devices()) families.push_back(kind.family);
  return families;
}

RealRuntime::~RealRuntime() {
  clear_shared();  // Process groups go before the store they were made with.
  stop_watch();
}

FreeMemory RealRuntime::free_memory() const {
  FreeMemory free{.accelerators = {}, .host = host::available_memory()};
  if (device_.is_cpu()) return free;
  const int count = c10::impl::getDeviceGuardImpl(device_.type())->deviceCount();
  for (int index = 0; index < count; ++index) {
    const std::optional<int64_t> bytes =
        free_device_memory(c10::Device(device_.type(), static_cast<c10::DeviceIndex>(index)));
    if (bytes) free.accelerators.emplace_back(index, *bytes);
  }
  return free;
}

std::optional<DeviceMemoryUse> RealRuntime::device_memory() const {
  return device_.is_cpu() ? std::nullopt : used_device_memory(device_);
}

void RealRuntime::synchronize_device() {
  if (device_.is_cpu() || device_.is_mps()) return;
  c10::impl::getDeviceGuardImpl(device_.type())->synchronizeDevice(device_.index());
}

void RealRuntime::empty_device_cache() {
  release_device_cache(device_.type());
  host::release_free_memory();
}

uint64_t RealRuntime::random_bits() {
  uint64_t bits = 0;
  ABSL_CHECK_EQ(getrandom(&bits, sizeof(bits), 0), static_cast<ssize_t>(sizeof(bits)));
  return bits;
}

c10::intrusive_ptr<c10d::Store> RealRuntime::store() {
  if (store_) return store_;
  if (topology().world_size == 1) {
    store_ = c10::make_intrusive<c10d::HashStore>();
    return store_;
  }
  ignore_broken_pipes();
  c10d::TCPStoreOptions options;
  options.port = master_port_;
  options.isServer = topology().rank == 0;
  options.numWorkers = topology().world_size;
  if (options.isServer) options.masterListenFd = inherited_listen_fd(environment());
  if (master_addr_.empty()) {
    store_ = rendezvous(std::move(options));
    return store_;
  }
  try {
    store_ = connect(master_addr_, options);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "rank ", topology().rank, " cannot ", options.isServer ? "serve" : "reach",
                " the rendezvous store at ", master_addr_, ":", master_port_, ": ", error.what());
  }
  return store_;
}

c10::intrusive_ptr<c10d::Store> RealRuntime::rendezvous(c10d::TCPStoreOptions options) {
  c10::intrusive_ptr<c10d::Store> store;
  std::string address;
  if (options.isServer) {
    options.port = 0;  // any free one
    const std::string host = topology().num_nodes == 1 ? "127.0.0.1" : host::name();
    auto server = connect("localhost", options);
    address = absl::StrCat(host, ":", server->getPort());
    store = std::move(server);
  }
  address = (*find_rendezvous(topology().source))(address, topology().rank, topology().world_size,
                                                  kConnectTimeout);
  const size_t colon = address.rfind(':');
  int port = 0;
  TORCH_CHECK(colon != std::string::npos && absl::SimpleAtoi(address.substr(colon + 1), &port),
              "rank 0 sent \"", address, "\" where its address should be");
  master_addr_ = address.substr(0, colon);
  master_port_ = static_cast<uint16_t>(port);
  environment().set(env::kMasterAddr, master_addr_);
  environment().set(env::kMasterPort, absl::StrCat(master_port_));
  if (store) return store;
  options.port = master_port_;
  try {
    return connect(master_addr_, options);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "rank ", topology().rank, " cannot reach rank 0's store at ", address,
                ", as rank 0 calls it; set ", env::kMasterAddr,
                " to a name of its host that works "
                "everywhere: ",
                error.what());
  }
}

absl::Duration watch_patience(const Environment& environment) {
  constexpr absl::Duration kUsual = absl::Seconds(30);
  constexpr absl::Duration kNever = absl::Hours(24 * 365);
  const std::optional<int64_t> seconds = parse_int_from_env(env::kWatchSeconds, environment);
  if (!seconds) return kUsual;
  return *seconds > 0 ? std::min(absl::Seconds(*seconds), kNever) : kNever;
}

const std::shared_ptr<JobWatch>& RealRuntime::watch() {
  if (watch_ || topology().world_size == 1) return watch_;
  store();  // Rank 0 serves it from here on.
  c10d::TCPStoreOptions client;
  client.port = master_port_;
  watch_ = std::make_shared<JobWatch>(JobWatch::Options{
      .rank = topology().rank,
      .world_size = topology().world_size,
      .connect = [addr = master_addr_, client] { return connect(addr, client); },
      .patience = watch_patience(environment()),
      .fails_crossed = parse_flag_from_env(env::kDebugMode, /*fallback=*/false, environment()),
      .dump_folder = environment().get_or(env::kDumpDir, "")});
  report_uncaught_to(watch_, topology().rank);
  return watch_;
}

c10::intrusive_ptr<c10d::ProcessGroup> RealRuntime::new_group(const GroupOptions& options) {
  const GroupOptions resolved = resolve_group(options);
  const std::vector<int>& ranks = resolved.ranks;
  BackendOptions backend_options;
  backend_options.store =
      c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("group/", resolved.name), store());
  backend_options.rank = static_cast<int>(
      std::lower_bound(ranks.begin(), ranks.end(), topology().rank) - ranks.begin());
  backend_options.size = static_cast<int>(ranks.size());
  backend_options.timeout = absl::ToChronoMilliseconds(resolved.timeout);
  // Without word of nodes there may be several, unless the address is this machine's own.
  backend_options.single_node =
      topology().world_size == 1 || (topology().num_nodes == 1 && is_loopback(master_addr_));
  leave_patience_ = std::max(leave_patience_, backend_options.timeout);
  const std::vector<DeviceBackend> choice = backends_by_device(
      choose_backend(resolved.backend, device_family(), backend_names()), device_.type());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend_options.store, backend_options.rank,
                                                       backend_options.size);
  const bool debug = parse_flag_from_env(env::kDebugMode, /*fallback=*/false, environment());
  c10::intrusive_ptr<c10d::Backend> backend;
  for (const DeviceBackend& next : choice) {
    const bool first = next == choice.front();
    const auto type = c10d::ProcessGroup::strToBackendType(next.backend);
    if (first || next.backend != choice.front().backend) {
      BackendOptions own = backend_options;
      std::string group_name = resolved.name;
      if (!first) {
        own.store = c10::make_intrusive<c10d::PrefixStore>(next.backend, own.store);
        absl::StrAppend(&group_name, " (", next.backend, ")");
      }
      backend = !watch()
                    ? make_backend(next.backend, own)
                    : make_watched(next.backend, own,
                                   {.job = watch(),
                                    .name = std::move(group_name),
                                    .ranks = ranks,
                                    .rank = topology().rank},
                                   {.timeout = own.timeout, .device_type = device_.type()}, debug);
    }
    group->setBackend(next.device, type, backend);
    if (first) group->setDefaultBackend(type);
  }
  group->setGroupName(resolved.name);
  return group;
}

void RealRuntime::stop_watch() {
  if (!watch_) return;
  report_uncaught_to(nullptr, topology().rank);
  watch_->stop();
}

void RealRuntime::leave() {
  if (watch_) watch_->end(kEndedWell);
  clear_shared();
  stop_watch();
  if (!store_ || topology().world_size == 1) return;
  store_->set(left_key(topology().rank), kEndedWell);
  if (topology().rank != 0) return;
  try {
    store_->wait(left_keys(topology().world_size), leave_patience_);
  } catch (const std::exception&) {
    std::vector<int> missing;
    for (int rank = 1; rank < topology().world_size; ++rank) {
      if (!store_->check({left_key(rank)})) missing.push_back(rank);
    }
    TORCH_CHECK(false, "rank 0 waited in vain for the end of ", rank_list(missing));
  }
  std::vector<std::pair<int, std::string>> failures;
  for (int rank = 1; rank < topology().world_size; ++rank) {
    std::string ending = store_->get_to_str(left_key(rank));
    if (ending != kEndedWell) failures.emplace_back(rank, std::move(ending));
  }
  TORCH_CHECK(failures.empty(), "rank 0 had ended its program, but others failed\n",
              lines_by_rank(failures));
}

void RealRuntime::leave_failed(const std::string& what) {
  if (!store_ || topology().world_size == 1) return;
  const std::string ending = absl::StrCat("failed: ", what.substr(0, what.find('\n')));
  try {
    if (watch_) {
      watch_->end(ending);
      watch_->fail_explained({.reason = absl::StrCat("rank ", topology().rank, " ", ending)});
    }
    store_->set(left_key(topology().rank), ending);
    if (topology().rank != 0) return;
    store_->wait(left_keys(topology().world_size), kFarewell);
  } catch (const std::exception&) {
    // The other ranks notice when the connections of this process close.
  }
}

}  // namespace accelerate
