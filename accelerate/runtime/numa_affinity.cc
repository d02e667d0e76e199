#include "accelerate/runtime/numa_affinity.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/platform/env.h"
#include "accelerate/runtime/env_parsing.h"

namespace accelerate {
namespace {

// The first answer of set_numa_affinity() on a Runtime.
struct Kept {
  NumaAffinity affinity;
};

// Ascending numbers as "0-3,8".
std::string to_ranges(const std::vector<int>& numbers) {
  std::vector<std::string> ranges;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    ranges.push_back(end - begin == 1 ? absl::StrCat(numbers[begin])
                                      : absl::StrCat(numbers[begin], "-", numbers[end - 1]));
    begin = end;
  }
  return absl::StrJoin(ranges, ",");
}

// Where a CUDA device sits; empty where the CUDA runtime, which builds for CPUs lack, cannot tell.
std::string pci_bus_id(c10::Device device) {
  using GetPciBusId = int(char*, int, int);
  if (!device.is_cuda()) return "";
  auto* get = reinterpret_cast<GetPciBusId*>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  std::array<char, 64> text = {};
  if (get == nullptr || get(text.data(), text.size(), device.index()) != 0) return "";
  return absl::AsciiStrToLower(text.data());
}

}  // namespace

std::string NumaAffinity::to_string(int local_process_index) const {
  if (!bound) {
    return absl::StrCat("local rank ", local_process_index, " is not bound to CPUs: ", reason);
  }
  return absl::StrCat("local rank ", local_process_index, " runs on CPUs ", to_ranges(cpus),
                      " of NUMA node ", to_ranges(numa_nodes));
}

NumaAffinity internal::plan_numa_affinity(const Machine& machine, int local_process_index,
                                          int local_world_size, int near) {
  TORCH_CHECK_VALUE(0 <= local_process_index && local_process_index < local_world_size,
                    "set_numa_affinity: local_process_index ", local_process_index,
                    " is none of the ", local_world_size, " rank(s) on this machine");
  const int num_domains = static_cast<int>(machine.domains.size());
  if (num_domains < 2) return {.reason = "this machine has one NUMA node"};
  int begin = near;
  int end = near + 1;
  if (near < 0) {
    begin = local_process_index * num_domains / local_world_size;
    end = std::max(begin + 1, (local_process_index + 1) * num_domains / local_world_size);
  }
  NumaAffinity affinity{.bound = true};
  for (int index = begin; index < end; ++index) {
    const NumaDomain& domain = machine.domains[static_cast<size_t>(index)];
    affinity.numa_nodes.push_back(domain.node);
    affinity.cpus.insert(affinity.cpus.end(), domain.cpus.begin(), domain.cpus.end());
  }
  std::sort(affinity.cpus.begin(), affinity.cpus.end());
  return affinity;
}

NumaAffinity override_numa_affinity(int local_process_index, std::optional<bool> verbose,
                                    Runtime& runtime) {
  NumaAffinity affinity;
  if (runtime.owns_process()) {
    const Machine machine = Machine::here();
    const std::string bus_id = pci_bus_id(runtime.device());
    affinity = internal::plan_numa_affinity(machine, local_process_index,
                                            runtime.topology().local_world_size,
                                            bus_id.empty() ? -1 : machine.domain_near(bus_id));
    if (affinity.bound) bind_process(affinity.cpus);
  } else {
    affinity.reason = "it shares its process with other ranks";
  }
  if (verbose ? *verbose : parse_flag_from_env(env::kDebugMode, false, runtime.environment())) {
    runtime.write_console(ConsoleStream::kErr,
                          absl::StrCat(affinity.to_string(local_process_index), "\n"));
  }
  runtime.reset_shared<Kept>();
  runtime.shared<Kept>([&] { return std::make_unique<Kept>(affinity); });
  return affinity;
}

NumaAffinity set_numa_affinity(int local_process_index, std::optional<bool> verbose,
                               Runtime& runtime) {
  if (const Kept* kept = runtime.find_shared<Kept>()) return kept->affinity;
  return override_numa_affinity(local_process_index, verbose, runtime);
}

}  // namespace accelerate
