#include "launch/settings/machine.h"

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/process/listening_socket.h"
#include "launch/process/program.h"
#include "launch/process/socket_address.h"
#include "launch/settings/devices.h"

namespace accelerate::launch::settings {
namespace {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> entries_of(const char* folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder), &closedir);
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open.get())) names.emplace_back(entry->d_name);
  return names;
}

bool is_numbered(absl::string_view name, absl::string_view prefix) {
  return absl::ConsumePrefix(&name, prefix) && !name.empty() &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

// GeForce RTX 40: the driver claims peer access, and fails when NCCL uses it.
bool has_peer_access() {
  for (const std::string& gpu : entries_of("/proc/driver/nvidia/gpus")) {
    const auto text = read_text(absl::StrCat("/proc/driver/nvidia/gpus/", gpu, "/information"));
    if (text && absl::StrContains(*text, "RTX 40")) return false;
  }
  return true;
}

int count_physical_cores() {
  // One line a logical processor in each file that names its core and package.
  std::set<std::pair<std::string, std::string>> cores;
  for (const std::string& name : entries_of("/sys/devices/system/cpu")) {
    if (!is_numbered(name, "cpu")) continue;
    const std::string folder = absl::StrCat("/sys/devices/system/cpu/", name, "/topology/");
    const auto core = read_text(folder + "core_id");
    const auto package = read_text(folder + "physical_package_id");
    if (core && package) cores.emplace(*package, *core);
  }
  const int logical = std::max<int>(1, std::thread::hardware_concurrency());
  return cores.empty() ? logical : std::min<int>(logical, cores.size());
}

bool accepts_connections(uint16_t port) {
  process::SocketAddress address = process::SocketAddress::from_text("127.0.0.1").value();
  address.set_port(port);
  const UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(fd.get(), address.get(), address.size()) == 0;
}

uint16_t free_port() {
  const absl::StatusOr<process::ListeningSocket> any = process::listen_everywhere(0);
  return any.ok() ? any->port : 0;
}

std::optional<MpiProgram> find_mpi(const std::string& search_path) {
  for (const char* name : {"mpirun", "mpiexec"}) {
    const absl::StatusOr<std::string> path = process::find_program(name, search_path);
    if (!path.ok()) continue;
    const absl::StatusOr<ChildResult> version = run_command({*path, "--version"});
    return MpiProgram{.name = name, .flavour = mpi_flavour(version.ok() ? version->output : "")};
  }
  return std::nullopt;
}

}  // namespace

MpiFlavour mpi_flavour(absl::string_view version_text) {
  const bool is_open =
      absl::StrContains(version_text, "Open MPI") || absl::StrContains(version_text, "OpenRTE");
  return is_open ? MpiFlavour::kOpenMpi : MpiFlavour::kOther;
}

Machine this_machine(absl::Span<const std::string> environment) {
  const Devices devices = find_devices("/", environment);
  Machine machine = {.device_kind = devices.kind,
                     .devices = devices.visible,
                     .installed_devices = devices.installed};
  machine.has_peer_access = machine.device_kind != "gpu" || has_peer_access();
  const std::string search_path = process::search_path_of(environment);
  machine.count_physical_cores = &count_physical_cores;
  machine.find_mpi = [search_path] { return find_mpi(search_path); };
  machine.is_port_in_use = &accepts_connections;
  machine.find_free_port = &free_port;
  machine.has_program = [search_path](const std::string& name) {
    return process::find_program(name, search_path).ok();
  };
  machine.read_file = &read_text;
  return machine;
}

}  // namespace accelerate::launch::settings
