#include "accelerate/report/environment_report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <map>
#include <regex>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/json_text.h"
#include "accelerate/options/options.h"
#include "accelerate/report/availability.h"
#include "accelerate/runtime/numa_affinity.h"
#include "accelerate/values/versions.h"

namespace accelerate {
namespace {

// Variables that matter to readers of a report besides those of the options.
constexpr char kVariables[] =
    "RANK LOCAL_RANK LOCAL_WORLD_SIZE PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "
    "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID SLURM_NTASKS "
    "ACCELERATE_TORCH_DEVICE ACCELERATE_LOG_LEVEL FORK_LAUNCHED CUDA_VISIBLE_DEVICES "
    "HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES NCCL_P2P_DISABLE NCCL_IB_DISABLE NCCL_DEBUG "
    "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME USE_TORCH_XLA";

// A whole document, such as DeepSpeed's configuration in a variable, is counted and not shown: it
// is long, and may have what is secret. Its text is JSON, or that in base64.
std::string shown(const std::string& value) {
  std::string decoded = value;
  absl::WebSafeBase64Unescape(absl::StrReplaceAll(value, {{"+", "-"}, {"/", "_"}}), &decoded);
  for (const absl::string_view text : {absl::string_view(value), absl::string_view(decoded)}) {
    if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{")) {
      return absl::StrCat("(JSON, ", value.size(), " characters)");
    }
  }
  return value;
}

struct Check {
  const char* name;
  bool (*available)(const Runtime& runtime);
};

template <const auto& check>
bool check_family(const Runtime& runtime) {
  return check(false, runtime);
}

constexpr Check kChecks[] = {
    {"CUDA", check_family<is_cuda_available>},
    {"ROCm", [](const Runtime& runtime) { return is_rocm_available(false, runtime); }},
    {"XPU", check_family<is_xpu_available>},
    {"NPU", check_family<is_npu_available>},
    {"MLU", check_family<is_mlu_available>},
    {"SDAA", check_family<is_sdaa_available>},
    {"MUSA", check_family<is_musa_available>},
    {"HPU", check_family<is_hpu_available>},
    {"NEURON", check_family<is_neuron_available>},
    {"MPS", [](const Runtime& runtime) { return is_mps_available("1.12", runtime); }},
    {"XLA", [](const Runtime& runtime) { return is_torch_xla_available(false, false, runtime); }},
};

std::string answer(const Check& check, const Runtime& runtime) {
  try {
    return check.available(runtime) ? "True" : "False";
  } catch (const c10::Error& error) {
    return absl::StrCat("unknown (", error.what_without_backtrace(), ")");
  }
}

// Equal names once, with their number.
std::string tally(const std::vector<std::string>& names) {
  std::map<std::string, int> counts;
  for (const std::string& name : names) ++counts[name];
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& count) {
    absl::StrAppend(out, count.second, " x ", count.first);
  });
}

struct Writer {
  EnvironmentReport report;

  void add(const std::string& name, const std::string& value) {
    if (!value.empty()) report.facts.push_back({name, value});
  }

  void add_build(Runtime& runtime) {
    const BuildInfo build = build_info(runtime);
    add("`Accelerate` version", build.version);
    utsname system = {};
    if (uname(&system) == 0) {
      add("Platform", absl::StrCat(system.sysname, "-", system.release, "-", system.machine));
      add("Kernel", system.version);
    }
    add("LibTorch version", build.libtorch_version);
    add("Compiler", build.compiler);
    add("Build", build.flags);
    std::vector<std::string> features;
    for (const Feature& feature : build.features) {
      if (feature.available) features.push_back(feature.name);
    }
    add("Features", absl::StrJoin(features, ", "));
  }

  void add_machine() {
    try {
      const Machine machine = Machine::here();
      add("CPUs", absl::StrCat(machine.num_cpus, " (", machine.num_cores, " cores)"));
      add("NUMA nodes", absl::StrCat(machine.domains.size()));
    } catch (const c10::Error&) {  // The report goes without.
    }
    const double bytes =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    // Always in GB, as `accelerate env` of HF Accelerate writes it.
    add("System RAM", absl::StrFormat("%.2f GB", bytes / (1 << 30)));
    add("Intra-op threads", absl::StrCat(at::get_num_threads()));
  }

  void add_devices(const Runtime& runtime) {
    for (const Check& check : kChecks) {
      add(absl::StrCat("LibTorch ", check.name, " available"), answer(check, runtime));
    }
    const NvidiaGpus gpus = get_gpu_info(runtime);
    add("GPU type", tally(gpus.names));
    add("GPU driver", gpus.driver_version);
  }

  void add_job(const Runtime& runtime) {
    const Topology& topology = runtime.topology();
    add("Launcher", topology.source);
    add("Rank", absl::StrCat(topology.rank, " of ", topology.world_size, " (", topology.shape(),
                             "), local rank ", topology.local_rank));
    add("Device",
        absl::StrCat(runtime.device().str(), " (", runtime.device_family(),
                     runtime.device_name().empty() ? "" : " ", runtime.device_name(), ")"));
    std::vector<std::string> variables;
    const auto show = [&](const std::string& name) {
      if (auto value = runtime.environment().get(name)) {
        variables.push_back(absl::StrCat(name, "=", shown(*value)));
      }
    };
    for (const absl::string_view name : absl::StrSplit(kVariables, ' ')) show(std::string(name));
    for (const options::Option& row : options::all_options()) {
      if (!row.is_secret) show(row.variable_name());
    }
    add("Environment", variables.empty() ? "nothing set" : absl::StrJoin(variables, " "));
  }
};

}  // namespace

std::string EnvironmentReport::to_string() const {
  std::string text;
  for (const EnvironmentFact& fact : facts) {
    absl::StrAppend(&text, "- ", fact.name, ": ", fact.value, "\n");
  }
  return text;
}

std::string EnvironmentReport::to_json() const {
  nlohmann::ordered_json object;
  for (const EnvironmentFact& fact : facts) object[fact.name] = fact.value;
  return json_text(object, 2);
}

EnvironmentReport environment_report(Runtime& runtime) {
  Writer writer;
  writer.add_build(runtime);
  writer.add_machine();
  writer.add_devices(runtime);
  writer.add_job(runtime);
  return writer.report;
}

std::optional<std::string> internal::kernel_warning(std::string_view system,
                                                    std::string_view release) {
  constexpr char kMinimum[] = "5.5.0";
  std::cmatch version;
  const bool is_known = std::regex_search(release.data(), release.data() + release.size(), version,
                                          std::regex("[0-9]+[.][0-9]+[.][0-9]+"));
  if (system != "Linux" || !is_known) return std::nullopt;
  if (compare_versions(version.str(), ">=", kMinimum)) return std::nullopt;
  return absl::StrCat("Linux ", version.str(), " is older than ", kMinimum,
                      ", on which a process may hang; a newer kernel is recommended");
}

void check_os_kernel(const Runtime& runtime) {
  utsname names;
  if (runtime.topology().rank != 0 || uname(&names) != 0) return;
  if (const auto warning = internal::kernel_warning(names.sysname, names.release)) {
    TORCH_WARN(*warning);
  }
}

}  // namespace accelerate
