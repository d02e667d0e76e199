#include "accelerate/runtime/numa_affinity.h"

#include <dlfcn.h>
#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/env_parsing.h"

namespace accelerate {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Layout = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;
using Bitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, Destroy>;

Layout make_layout() {
  hwloc_topology_t topology = nullptr;
  TORCH_CHECK(hwloc_topology_init(&topology) == 0, "hwloc cannot be initialised");
  return Layout(topology);
}

void load(const Layout& layout) {
  TORCH_CHECK(hwloc_topology_load(layout.get()) == 0,
              "hwloc cannot read this machine: ", std::strerror(errno));
}

std::vector<int> to_list(hwloc_const_cpuset_t set) {
  std::vector<int> list;
  for (int cpu = hwloc_bitmap_first(set); cpu != -1; cpu = hwloc_bitmap_next(set, cpu)) {
    list.push_back(cpu);
  }
  return list;
}

Machine read(const Layout& layout) {
  Machine machine;
  machine.num_cores = std::max(0, hwloc_get_nbobjs_by_type(layout.get(), HWLOC_OBJ_CORE));
  machine.num_cpus = std::max(0, hwloc_get_nbobjs_by_type(layout.get(), HWLOC_OBJ_PU));
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(layout.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    NumaDomain domain{static_cast<int>(node->os_index), to_list(node->cpuset)};
    // Memory without CPUs, or a second memory of the same CPUs, cannot hold a rank.
    const bool known =
        std::ranges::find(machine.domains, domain.cpus, &NumaDomain::cpus) != machine.domains.end();
    if (!domain.cpus.empty() && !known) machine.domains.push_back(std::move(domain));
  }
  std::ranges::sort(machine.domains, {}, &NumaDomain::node);
  return machine;
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

int Machine::domain_near(const std::string& bus_id) const {
  const Layout layout = make_layout();
  hwloc_topology_set_io_types_filter(layout.get(), HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  load(layout);
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(layout.get(), bus_id.c_str());
  if (device == nullptr) return -1;
  const std::vector<int> near =
      to_list(hwloc_get_non_io_ancestor_obj(layout.get(), device)->cpuset);
  // A device that hangs at the machine as a whole is near to no domain.
  const auto domain = std::ranges::find_if(
      domains, [&](const NumaDomain& d) { return std::ranges::includes(d.cpus, near); });
  return near.empty() || domain == domains.end() ? -1 : static_cast<int>(domain - domains.begin());
}

Machine Machine::here() {
  const Layout layout = make_layout();
  load(layout);
  return read(layout);
}

Machine Machine::synthetic(const std::string& description) {
  const Layout layout = make_layout();
  TORCH_CHECK_VALUE(hwloc_topology_set_synthetic(layout.get(), description.c_str()) == 0, "\"",
                    description, "\" describes no machine to hwloc");
  load(layout);
  return read(layout);
}

void bind_process(const std::vector<int>& cpus) {
  const Layout layout = make_layout();
  load(layout);
  const Bitmap set(hwloc_bitmap_alloc());
  for (int cpu : cpus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(cpu));
  TORCH_CHECK(hwloc_set_cpubind(layout.get(), set.get(), HWLOC_CPUBIND_PROCESS) == 0,
              "the system refuses to bind this process to CPUs: ", std::strerror(errno));
}

std::string NumaAffinity::to_string(int local_process_index) const {
  if (!bound) {
    return absl::StrCat("local rank ", local_process_index, " is not bound to CPUs: ", reason);
  }
  return absl::StrCat("local rank ", local_process_index, " runs on CPUs ", rank_ranges(cpus),
                      " of NUMA node ", rank_ranges(numa_nodes));
}

std::string internal::hwloc_version() {
  const unsigned version = hwloc_get_api_version();
  return absl::StrCat(version >> 16, ".", version >> 8 & 0xFF, ".", version & 0xFF);
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
    affinity.reason = "it shares its process with the ranks of other threads";
  }
  if (verbose ? *verbose : parse_flag_from_env(env::kDebugMode, false, runtime.environment())) {
    runtime.write_console(ConsoleStream::kErr,
                          absl::StrCat(affinity.to_string(local_process_index), "\n"));
  }
  // set_numa_affinity() answers with this object from here on.
  runtime.reset_shared<NumaAffinity>();
  runtime.shared<NumaAffinity>([&] { return std::make_unique<NumaAffinity>(affinity); });
  return affinity;
}

NumaAffinity set_numa_affinity(int local_process_index, std::optional<bool> verbose,
                               Runtime& runtime) {
  if (const auto* kept = runtime.find_shared<NumaAffinity>()) return *kept;
  return override_numa_affinity(local_process_index, verbose, runtime);
}

}  // namespace accelerate
