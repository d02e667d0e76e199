#include "accelerate/runtime/machine.h"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>

#include <c10/util/Exception.h>

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
    const bool known = std::any_of(machine.domains.begin(), machine.domains.end(),
                                   [&](const NumaDomain& d) { return d.cpus == domain.cpus; });
    if (!domain.cpus.empty() && !known) machine.domains.push_back(std::move(domain));
  }
  std::sort(machine.domains.begin(), machine.domains.end(),
            [](const NumaDomain& a, const NumaDomain& b) { return a.node < b.node; });
  return machine;
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
  for (size_t index = 0; index < domains.size(); ++index) {
    const std::vector<int>& cpus = domains[index].cpus;
    if (!near.empty() && std::includes(cpus.begin(), cpus.end(), near.begin(), near.end())) {
      return static_cast<int>(index);
    }
  }
  return -1;
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

}  // namespace accelerate
