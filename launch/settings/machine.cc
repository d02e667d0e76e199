#include "launch/settings/machine.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/slurm.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/process/child_process.h"
#include "launch/process/process_plan.h"
#include "launch/process/socket_address.h"

namespace accelerate::launcher::settings {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool file_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

namespace {

namespace fs = std::filesystem;

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
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
  for (const std::string& name : numbered_names("/sys/devices/system/cpu", "cpu")) {
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

struct DeviceFiles {
  const char* kind;
  const char* name;
  const char* prefix;  // of the names of the files in /dev, before a number
};

constexpr DeviceFiles kDeviceFiles[] = {
    {"gpu", kNvidiaGpu, "nvidia"},
    {"npu", "Ascend NPU", "davinci"},
    {"mlu", "Cambricon MLU", "cambricon_dev"},
    {"sdaa", "Tecorigin SDAA", "tcaicard"},
    {"musa", "Moore Threads GPU", "mtgpu."},
    {"hpu", "Gaudi HPU", "hl"},
    {"neuron", "Neuron", "neuron"},
    {"tpu", "TPU or accelerator", "accel"},
};

constexpr std::pair<const char*, const char*> kVisibleDevices[] = {
    {"xpu", "ZE_AFFINITY_MASK"},           {"npu", "ASCEND_RT_VISIBLE_DEVICES"},
    {"mlu", "MLU_VISIBLE_DEVICES"},        {"sdaa", "SDAA_VISIBLE_DEVICES"},
    {"musa", "MUSA_VISIBLE_DEVICES"},      {"hpu", "HABANA_VISIBLE_MODULES"},
    {"neuron", "NEURON_RT_VISIBLE_CORES"}, {"tpu", "TPU_VISIBLE_CHIPS"},
};

// All makers' graphics have the same names; only their vendors tell them apart.
int count_render_nodes(const fs::path& root, absl::string_view maker) {
  int count = 0;
  for (const std::string& name : numbered_names(root / "dev/dri", "renderD")) {
    std::string vendor;
    std::ifstream(root / "sys/class/drm" / name / "device/vendor") >> vendor;
    count += vendor == maker;
  }
  return count;
}

// How many of the devices the variable leaves; all where it is not set.
int count_left(int devices, absl::Span<const std::string> environment, const char* variable) {
  const std::optional<std::string> ids = process::find_in_environment(environment, variable);
  return ids ? count_visible(devices, *ids) : devices;
}

absl::StatusOr<int> count(absl::Span<const std::string> environment, const char* name,
                          int fallback) {
  const std::string text = process::environment_value(environment, name);
  if (text.empty()) return fallback;
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return invalid("variable ", name, ": expected a number from 0, not \"", text, "\"");
}

absl::StatusOr<Job> slurm_job(absl::Span<const std::string> words) {
  const Environment environment = process::environment_of(words);
  Job job;
  const SlurmRole role = slurm_role(environment);
  if (role == SlurmRole::kNone) return job;
  job.kind = role == SlurmRole::kTask ? JobKind::kSlurmTask : JobKind::kSlurmShell;
  const bool is_task = job.kind == JobKind::kSlurmTask;
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
    if (!is_task && name == absl::string_view("SLURM_STEP_NUM_NODES")) continue;
    ACCELERATE_ASSIGN_OR_RETURN(const int nodes, count(words, name, 0));
    if (nodes > 0) {
      job.nodes = nodes;
      break;
    }
  }
  ACCELERATE_ASSIGN_OR_RETURN(job.tasks,
                              count(words, is_task ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 0));
  if (is_task && job.tasks == 0) job.tasks = count(words, "SLURM_NTASKS", 0).value_or(0);
  if (is_task) {
    ACCELERATE_ASSIGN_OR_RETURN(job.node_rank, count(words, "SLURM_NODEID", 0));
  }
  // A number, or one after the kind as in "h100:8".
  const std::string gpus = process::environment_value(words, "SLURM_GPUS_ON_NODE");
  int devices = 0;
  if (absl::SimpleAtoi(gpus.substr(gpus.rfind(':') + 1), &devices)) {
    job.devices_per_node = std::max(devices, 0);
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::optional<std::string> host, slurm_first_host(environment));
  job.first_host = host.value_or("");
  job.port = static_cast<uint16_t>(slurm_port(environment).value_or(kUsualPort));
  return job;
}

// The hosts of a job and the one that this is, by `hosts_from` and `self_from`.
absl::StatusOr<Job> sagemaker_job(const nlohmann::json& hosts, absl::string_view hosts_from,
                                  const std::string& self, absl::string_view self_from,
                                  absl::Span<const std::string> words) {
  if (!hosts.is_array() || hosts.empty() || !hosts[0].is_string()) {
    return invalid(hosts_from, ": expected a JSON list of hosts, not ", json_text(hosts));
  }
  const auto place = std::find(hosts.begin(), hosts.end(), self);
  if (place == hosts.end()) {
    return invalid(self_from, ": \"", self, "\" is none of the hosts of ", hosts_from, ", ",
                   json_text(hosts));
  }
  ACCELERATE_ASSIGN_OR_RETURN(const int devices, count(words, "SM_NUM_GPUS", 0));
  return Job{.kind = JobKind::kSageMaker,
             .nodes = static_cast<int>(hosts.size()),
             .devices_per_node = devices,
             .node_rank = static_cast<int>(place - hosts.begin()),
             .first_host = hosts[0].get<std::string>(),
             .port = kUsualPort};
}

// A job whose container starts the launcher itself, and not SageMaker's training toolkit, which
// sets the variables.
absl::StatusOr<Job> job_of_hosts_file(const std::string& path,
                                      absl::Span<const std::string> words) {
  std::ifstream file(path);
  const nlohmann::json resources = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!resources.is_object()) {
    return invalid(path, ": expected a JSON object with \"hosts\" and \"current_host\"");
  }
  const nlohmann::json self = resources.value("current_host", nlohmann::json());
  absl::StatusOr<Job> job = sagemaker_job(
      resources.value("hosts", nlohmann::json()), absl::StrCat(path, ": hosts"),
      self.is_string() ? self.get<std::string>() : "", absl::StrCat(path, ": current_host"), words);
  if (job.ok()) job->hosts_file = path;
  return job;
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
                     .devices_are_amd = devices.are_amd,
                     .devices = devices.visible,
                     .installed_devices = devices.installed};
  machine.has_peer_access = machine.device_kind != "gpu" || has_peer_access();
  machine.count_physical_cores = &count_physical_cores;
  machine.find_mpi = [search_path = process::search_path_of(environment)] {
    return find_mpi(search_path);
  };
  machine.is_port_in_use = &accepts_connections;
  machine.find_free_port = &free_port;
  machine.read_file = &read_text;
  return machine;
}

std::vector<std::string> numbered_names(const std::string& folder, absl::string_view prefix) {
  std::vector<std::string> names = entries_of(folder);
  std::erase_if(names, [prefix](absl::string_view name) {
    return !absl::ConsumePrefix(&name, prefix) || name.empty() ||
           !absl::c_all_of(name, absl::ascii_isdigit);
  });
  return names;
}

std::vector<InstalledDevices> installed_devices(const std::string& root) {
  std::vector<InstalledDevices> all;
  for (const auto& [kind, name, prefix] : kDeviceFiles) {
    const size_t count = numbered_names(fs::path(root) / "dev", prefix).size();
    all.push_back({kind, name, static_cast<int>(count)});
  }
  // AMD's compute with the driver that is behind /dev/kfd, and only display without it.
  const bool has_amd = file_exists(fs::path(root) / "dev/kfd");
  all.push_back({"gpu", kAmdGpu, has_amd ? count_render_nodes(root, "0x1002") : 0});
  all.push_back({"xpu", "Intel GPU", count_render_nodes(root, "0x8086")});
  std::erase_if(all, [](const InstalledDevices& each) { return each.count == 0; });
  return all;
}

Devices find_devices(const std::string& root, absl::Span<const std::string> environment) {
  const std::vector<InstalledDevices> all = installed_devices(root);
  if (all.empty()) return {};
  Devices devices;
  devices.kind = all[0].kind;
  devices.are_amd = all[0].name == kAmdGpu;
  devices.installed = all[0].count;
  const char* variable = visible_devices_variable(devices.kind, devices.are_amd);
  if (devices.are_amd) {
    devices.installed = count_left(devices.installed, environment, "ROCR_VISIBLE_DEVICES");
    // HIP, which numbers what is left, knows CUDA's variable as well.
    if (!process::find_in_environment(environment, variable)) variable = "CUDA_VISIBLE_DEVICES";
  }
  devices.visible = count_left(devices.installed, environment, variable);
  if (devices.visible == 0) devices.kind = "cpu";
  return devices;
}

int count_visible(int installed, absl::string_view ids) {
  std::set<absl::string_view> visible;
  for (absl::string_view id : absl::StrSplit(ids, ',', absl::SkipWhitespace())) {
    id = absl::StripAsciiWhitespace(id);
    int64_t number = 0;
    // CUDA ignores all ids from the first invalid one on.
    if (absl::SimpleAtoi(id, &number) && (number < 0 || number >= installed)) break;
    visible.insert(id);
  }
  return installed == 0 ? 0 : static_cast<int>(visible.size());
}

const char* visible_devices_variable(absl::string_view kind, bool are_amd) {
  if (are_amd) return "HIP_VISIBLE_DEVICES";
  for (const auto& [name, variable] : kVisibleDevices) {
    if (kind == name) return variable;
  }
  return "CUDA_VISIBLE_DEVICES";
}

absl::StatusOr<Job> find_job(absl::Span<const std::string> environment, const std::string& root) {
  if (const auto hosts = process::find_in_environment(environment, "SM_HOSTS")) {
    const nlohmann::json list = nlohmann::json::parse(*hosts, nullptr, /*allow_exceptions=*/false);
    return sagemaker_job(list.is_discarded() ? nlohmann::json(*hosts) : list, "variable SM_HOSTS",
                         process::environment_value(environment, "SM_CURRENT_HOST"),
                         "variable SM_CURRENT_HOST", environment);
  }
  const std::string hosts_file = fs::path(root) / "opt/ml/input/config/resourceconfig.json";
  if (file_exists(hosts_file)) return job_of_hosts_file(hosts_file, environment);
  if (process::find_in_environment(environment, "SLURM_JOB_ID")) return slurm_job(environment);
  return Job();
}

}  // namespace accelerate::launcher::settings
