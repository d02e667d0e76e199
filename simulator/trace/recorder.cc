#include "simulator/trace/recorder.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/log/absl_check.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kMinSamplesPerDevice = 256;

void add(const StepWork& work, int times, StepWork& sum) {
  sum.operators += work.operators * times;
  sum.bytes += work.bytes * times;
  sum.flops += work.flops * times;
  sum.recomputed_flops += work.recomputed_flops * times;
  sum.launches += work.launches * times;
  sum.blocks += work.blocks * times;
  sum.block_bytes += work.block_bytes * times;
}

}  // namespace

Recorder::Recorder(RecorderOptions options) : options_(options) {
  ABSL_CHECK_GT(options.world_size, 0);
  ABSL_CHECK_GT(options.ranks_per_node, 0);
  ABSL_CHECK_GT(options.devices_per_rank, 0);
  trace_.world_size = options.world_size;
  trace_.ranks_per_node = options.ranks_per_node;
  trace_.devices_per_rank = options.devices_per_rank;
  const int64_t num_devices = int64_t{options.world_size} * options.devices_per_rank;
  const int64_t samples = std::max(kMinSamplesPerDevice, options.max_memory_samples / num_devices);
  ranks_.reserve(options.world_size);
  for (int rank = 0; rank < options.world_size; ++rank) {
    RankState& state = ranks_.emplace_back(options.max_open_intervals);
    for (int device = 0; device < options.devices_per_rank; ++device) {
      state.devices.push_back({.memory = MemoryCurve(rank, samples, device)});
    }
  }
  intern("");
}

void Recorder::fold(std::vector<int> counts_as) {
  ABSL_CHECK_EQ(counts_as.size(), ranks_.size());
  for (RankState& state : ranks_) state.weight = 0;
  for (int rank : counts_as) ++state_of(rank).weight;
  trace_.counts_as = std::move(counts_as);
}

Recorder::RankState& Recorder::state_of(int rank) {
  ABSL_CHECK_GE(rank, 0);
  ABSL_CHECK_LT(rank, options_.world_size);
  return ranks_[rank];
}

uint32_t Recorder::intern(absl::string_view name) {
  const auto found = numbers_.find(std::string_view(name.data(), name.size()));
  if (found != numbers_.end()) return found->second;
  const uint32_t number = static_cast<uint32_t>(trace_.names.size());
  trace_.names.emplace_back(name);
  numbers_.emplace(trace_.names.back(), number);
  return number;
}

void Recorder::slice(const Slice& slice) {
  ABSL_CHECK_LE(slice.start_ns, slice.end_ns);
  ABSL_CHECK_LT(slice.name, trace_.names.size());
  RankState& state = state_of(slice.rank);
  // A rank need not wait for what the disk writes last.
  if (slice.kind != SliceKind::kDisk) state.end_ns = std::max(state.end_ns, slice.end_ns);
  const Interval interval{slice.start_ns, slice.end_ns};
  switch (slice.kind) {
    case SliceKind::kKernel: state.busy.add_kernel(interval); break;
    case SliceKind::kCopy: state.busy.add_copy(interval); break;
    case SliceKind::kCollective:
    case SliceKind::kMessage:
    case SliceKind::kWait: state.busy.add_communication(interval); break;
    case SliceKind::kHost:
    case SliceKind::kDisk: break;
  }
  if (static_cast<int64_t>(trace_.slices.size()) < options_.max_slices) {
    trace_.slices.push_back(slice);
  } else {
    ++trace_.dropped_slices;
  }
}

void Recorder::host_wait(int rank, int64_t start_ns, int64_t end_ns, SliceKind kind) {
  slice({.start_ns = start_ns,
         .end_ns = end_ns,
         .rank = rank,
         .stream = kHostWaitStream,
         .name = intern("wait"),
         .kind = kind});
}

int64_t Recorder::operation(TraceOperation operation) {
  if (trace_.dropped_slices > 0 ||
      static_cast<int64_t>(trace_.slices.size()) >= options_.max_slices) {
    return -1;
  }
  trace_.operations.push_back(std::move(operation));
  return static_cast<int64_t>(trace_.operations.size()) - 1;
}

void Recorder::memory(int rank, int device, int64_t at_ns, MemoryCategory category, int64_t delta,
                      uint32_t module) {
  DeviceState& state = state_of(rank).devices.at(device);
  const bool is_peak = state.memory.add(at_ns, category, delta);
  state.modules.add(module, category, delta, is_peak);
}

void Recorder::modules(int rank, int device, std::vector<std::string> names) {
  state_of(rank).devices.at(device).module_names = std::move(names);
}

// Keeps the modules of the device with the highest peak; of several, the first.
void Recorder::finish_modules() {
  const DeviceState* of = nullptr;
  int64_t highest = 0;
  for (const RankState& state : ranks_) {
    for (const DeviceState& device : state.devices) {
      const int64_t peak = total_bytes(device.memory.peak());
      if (peak <= highest) continue;
      of = &device;
      trace_.peak_rank = static_cast<int32_t>(&state - ranks_.data());
      highest = peak;
    }
  }
  if (of == nullptr) return;
  const std::vector<ModuleSums::Bytes>& bytes = of->modules.at_peak();
  for (size_t module = 0; module < bytes.size(); ++module) {
    const ModuleMemory memory{.module = of->name_of(module), .bytes = bytes[module]};
    if (total_bytes(memory) != 0) trace_.peak_modules.push_back(memory);
  }
  std::ranges::sort(trace_.peak_modules, [](const ModuleMemory& a, const ModuleMemory& b) {
    return std::pair(-total_bytes(a), a.module) < std::pair(-total_bytes(b), b.module);
  });
}

void Recorder::driver_memory(int rank, int64_t peak, int64_t retries) {
  RankState& state = state_of(rank);
  state.driver_peak = std::max(state.driver_peak, peak);
  state.allocation_retries += retries;
}

void Recorder::add_calls(CallSums& sums, const CallSummary& calls) {
  CallSummary& sum = sums[calls.name];
  sum.name = calls.name;
  sum.calls += calls.calls;
  sum.bytes += calls.bytes;
  sum.total_ns += calls.total_ns;
}

void Recorder::allocations(int rank, absl::string_view operation, int64_t blocks, int64_t bytes) {
  const int weight = state_of(rank).weight;
  add_calls(allocations_,
            {.name = intern(operation), .calls = blocks * weight, .bytes = bytes * weight});
}

void Recorder::synchronisation(int rank, uint32_t name, int64_t waited_ns) {
  const int weight = state_of(rank).weight;
  add_calls(synchronisations_, {.name = name, .calls = weight, .total_ns = waited_ns * weight});
}

void Recorder::file(int rank, absl::string_view operation, int64_t bytes, int64_t waited_ns) {
  if (state_of(rank).weight == 0) return;
  add_calls(files_, {.name = intern(operation), .calls = 1, .bytes = bytes, .total_ns = waited_ns});
}

void Recorder::module_cost(int rank, int device, uint32_t module, int64_t ns, double flops,
                           double bytes) {
  std::vector<ModuleSummary>& costs = state_of(rank).devices.at(device).module_costs;
  if (module >= costs.size()) costs.resize(module + 1);
  ModuleSummary& sum = costs[module];
  ++sum.calls;
  sum.total_ns += ns;
  sum.flops += flops;
  sum.bytes += bytes;
}

std::vector<CallSummary> Recorder::by_name(const CallSums& sums) const {
  std::vector<CallSummary> sorted;
  for (const auto& [name, sum] : sums) sorted.push_back(sum);
  std::ranges::sort(sorted, {}, [this](const CallSummary& sum) {
    return std::string_view(trace_.names[sum.name]);
  });
  return sorted;
}

// Numbers of modules are a device's own, so those of all devices are joined by name.
void Recorder::finish_module_costs() {
  std::map<std::string, ModuleSummary> by_name;
  for (const RankState& state : ranks_) {
    for (const DeviceState& device : state.devices) {
      for (size_t module = 0; module < device.module_costs.size(); ++module) {
        const ModuleSummary& cost = device.module_costs[module];
        if (cost.calls == 0) continue;
        ModuleSummary& sum = by_name[device.name_of(module)];
        sum.calls += cost.calls * state.weight;
        sum.total_ns += cost.total_ns * state.weight;
        sum.flops += cost.flops * state.weight;
        sum.bytes += cost.bytes * state.weight;
      }
    }
  }
  for (auto& [name, sum] : by_name) {
    sum.module = name;
    trace_.modules.push_back(std::move(sum));
  }
}

void Recorder::device_work(int rank, const StepWork& work) {
  RankState& state = state_of(rank);
  state.launches += work.launches;
  add(work, 1, state.step_work);
}

void Recorder::predicted(int rank, int64_t ns) {
  trace_.predicted_ns += ns * state_of(rank).weight;
}

void Recorder::op_cost(int rank, uint32_t name, int64_t ns, double flops, double bytes,
                       double recomputed) {
  ABSL_CHECK_LT(name, trace_.names.size());
  RankState& state = state_of(rank);
  state.flops += flops;
  ++state.step_work.operators;
  state.step_work.bytes += bytes;
  state.step_work.flops += flops;
  state.step_work.recomputed_flops += recomputed;
  if (name >= operators_.size()) operators_.resize(trace_.names.size());
  OperatorSummary& summary = operators_[name];
  summary.name = name;
  summary.calls += state.weight;
  summary.total_ns += ns * state.weight;
  summary.flops += flops * state.weight;
  summary.bytes += bytes * state.weight;
}

void Recorder::collective(const CollectiveSummary& each) {
  CollectiveSummary& sum = collectives_[{each.name, each.algorithm, each.ranks}];
  sum.name = each.name;
  sum.algorithm = each.algorithm;
  sum.ranks = each.ranks;
  sum.calls += each.calls;
  sum.total_ns += each.total_ns;
  sum.shared_ns += each.shared_ns;
  sum.bytes += each.bytes;
  sum.bus_bytes += each.bus_bytes;
}

int Recorder::axis(absl::string_view name) {
  const auto found = std::ranges::find(trace_.axes, name, &TraceAxis::name);
  const auto number = static_cast<int>(found - trace_.axes.begin());
  if (found == trace_.axes.end()) trace_.axes.push_back({.name = std::string(name)});
  return number;
}

void Recorder::place_along(int axis, const std::vector<int>& ranks) {
  std::vector<int>& coordinates = trace_.axes.at(axis).coordinates;
  coordinates.resize(options_.world_size, -1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    // Later groups have some of the ranks along the axis.
    int& coordinate = coordinates.at(ranks[i]);
    if (coordinate < 0) coordinate = static_cast<int>(i);
  }
}

void Recorder::traffic(int source, int target, double bytes, int axis) {
  const int64_t world = options_.world_size;
  ABSL_CHECK(source >= 0 && source < world) << source;
  ABSL_CHECK(target >= 0 && target < world) << target;
  const auto place = static_cast<size_t>(axis + 1);
  if (place >= traffic_.size()) traffic_.resize(place + 1);
  traffic_[place][source * world + target] += bytes;
}

void Recorder::link(int rank, LinkKind kind, double bytes, int64_t start_ns, int64_t end_ns) {
  std::unique_ptr<RankLinks>& links = state_of(rank).links;
  if (links == nullptr) links = std::make_unique<RankLinks>();
  links->add(kind, bytes, start_ns, end_ns);
}

void Recorder::finish_links(const std::vector<LinkClass>& classes) {
  std::vector<const RankLinks*> by_rank;
  std::vector<const RankLinks*> executed;  // files of folded ranks do nothing
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const int counts_as = trace_.counts_as.empty() ? rank : trace_.counts_as[rank];
    by_rank.push_back(ranks_[counts_as].links.get());
    executed.push_back(ranks_[rank].links.get());
  }
  for (const LinkClass& links : classes) {
    const bool is_disk = links.kind == LinkKind::kDiskRead || links.kind == LinkKind::kDiskWrite;
    const LinkSummary summary =
        summarise_links(links, is_disk ? executed : by_rank, trace_, elapsed_ns(trace_));
    if (summary.bytes > 0) trace_.links.push_back(summary);
  }
}

void Recorder::finish_traffic() {
  for (size_t place = 0; place < traffic_.size(); ++place) {
    for (const auto& [pair, bytes] : traffic_[place]) {
      trace_.communication.push_back({.source = static_cast<int32_t>(pair / options_.world_size),
                                      .target = static_cast<int32_t>(pair % options_.world_size),
                                      .bytes = bytes,
                                      .axis = static_cast<int32_t>(place) - 1});
    }
  }
  std::ranges::sort(trace_.communication, {}, [](const Traffic& each) {
    return std::tuple(each.source, each.target, each.axis);
  });
}

void Recorder::end_step_of(int rank) {
  RankState& state = state_of(rank);
  if (state.links != nullptr) state.links->end_step();
  const size_t step = state.steps++;
  if (step >= work_by_step_.size()) work_by_step_.resize(step + 1);
  add(std::exchange(state.step_work, {}), state.weight, work_by_step_[step]);
}

void Recorder::step(int64_t at_ns) {
  end_step_of(0);
  phase(StepPhase::kForward, at_ns);
  const int64_t exposed_ns = ranks_[0].busy.totals().exposed_ns;
  trace_.steps.push_back({.end_ns = at_ns,
                          .exposed_ns = exposed_ns - exposed_before_ns_,
                          .phase_ns = std::exchange(phase_ns_, {})});
  exposed_before_ns_ = exposed_ns;
}

void Recorder::end_rank(int rank, int64_t at_ns) {
  RankState& state = state_of(rank);
  state.end_ns = std::max(state.end_ns, at_ns);
}

void Recorder::fault(int rank, absl::string_view rule, int64_t at_ns) {
  constexpr size_t kMost = 1000;
  if (trace_.strikes.size() == kMost) return;
  trace_.strikes.push_back({.rank = rank, .rule = intern(rule), .at_ns = at_ns});
}

void Recorder::phase(StepPhase next, int64_t at_ns) {
  phase_ns_[static_cast<size_t>(phase_)] += at_ns - phase_began_ns_;
  phase_ = next;
  phase_began_ns_ = at_ns;
}

Trace Recorder::finish(RunDescription run, const std::vector<LinkClass>& links) {
  static_cast<RunDescription&>(trace_) = std::move(run);
  for (const RankState& state : ranks_) {
    const BusyTime::Totals busy = state.busy.totals();
    const MemorySample& peak =
        std::ranges::max_element(state.devices, {}, [](const DeviceState& device) {
          return total_bytes(device.memory.peak());
        })->memory.peak();
    trace_.ranks.push_back({.end_ns = state.end_ns,
                            .compute_ns = busy.compute_ns,
                            .communication_ns = busy.communication_ns,
                            .exposed_ns = busy.exposed_ns,
                            .memory_peak = total_bytes(peak),
                            .at_peak = peak.bytes,
                            .flops = state.flops,
                            .driver_peak = state.driver_peak,
                            .allocation_retries = state.allocation_retries,
                            .launches = state.launches});
    for (const DeviceState& device : state.devices) {
      const std::vector<MemorySample>& samples = device.memory.samples();
      trace_.memory.insert(trace_.memory.end(), samples.begin(), samples.end());
    }
  }
  for (size_t step = 0; step < trace_.steps.size(); ++step) {
    trace_.steps[step].work = work_by_step_[step];
  }
  for (size_t rank = 0; rank < trace_.counts_as.size(); ++rank) {
    trace_.ranks[rank] = trace_.ranks[trace_.counts_as[rank]];
  }
  finish_links(links);
  finish_modules();
  for (const OperatorSummary& summary : operators_) {
    if (summary.calls > 0) trace_.operators.push_back(summary);
  }
  // Ties are broken by name: the order of recording would depend on the interleaving of ranks.
  std::ranges::sort(trace_.operators, [this](const OperatorSummary& a, const OperatorSummary& b) {
    return std::tie(b.total_ns, trace_.names[a.name]) < std::tie(a.total_ns, trace_.names[b.name]);
  });
  for (const auto& [key, sum] : collectives_) trace_.collectives.push_back(sum);
  std::ranges::sort(trace_.collectives, [this](const auto& a, const auto& b) {
    return std::tie(b.total_ns, trace_.names[a.name], trace_.names[a.algorithm], a.ranks) <
           std::tie(a.total_ns, trace_.names[b.name], trace_.names[b.algorithm], b.ranks);
  });
  trace_.allocations = by_name(allocations_);
  trace_.synchronisations = by_name(synchronisations_);
  trace_.files = by_name(files_);
  finish_module_costs();
  finish_traffic();
  ranks_.clear();
  return std::move(trace_);
}

}  // namespace accelerate::simulator
