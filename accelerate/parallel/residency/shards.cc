#include "accelerate/parallel/residency/shards.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/comm/agree.h"
#include "accelerate/comm/operations.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/residency/gathered_group.h"
#include "accelerate/parallel/residency/shard_disks.h"
#include "accelerate/parallel/residency/shard_memory.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

namespace internal {

// This rank's rows of a model's values, before the model is divided.
//
// Values that parameters have, or those of their recorded construction, are made whole, some
// parameters at a time, and are rank 0's on all ranks. Where values wait in a checkpoint
// (operators/deferred_values.h), each rank reads its rows alone; where only rank 0 has them, it
// reads whole ones and sends them.
class InitialParts {
 public:
  // What it refers to outlives it.
  InitialParts(const ShardGroups& groups, c10::Device device, const ShardingOptions& options)
      : groups_(groups), device_(device), options_(options) {}

  struct ShardRequest {
    at::Tensor parameter;
    at::ScalarType dtype = at::kFloat;  // of its shard
    bool on_host = false;               // where that is
  };

  // The rows of parameters that have values, padded, as memory of shards. Collective.
  std::vector<at::Tensor> of(const std::vector<ShardRequest>& wanted) {
    std::vector<at::Tensor> values, empty, parts;
    if (wanted.empty()) return parts;
    for (const ShardRequest& each : wanted) {
      if (each.parameter.is_meta()) empty.push_back(each.parameter);
    }
    if (options_.initialise && !empty.empty()) {
      options_.initialise(empty);
      std::erase_if(empty, [](const at::Tensor& parameter) { return !parameter.is_meta(); });
    }
    empty = recorded(empty);
    auto next = empty.begin();
    for (const ShardRequest& each : wanted) {
      values.push_back(values_of(each.parameter.is_meta() ? *next++ : each.parameter));
    }
    empty.clear();
    broadcast_tensors(groups_.all, values, 0);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const at::Tensor& parameter = wanted[i].parameter;
      parts.push_back(padded_to(flat_rows(values[i], rows_of_rank(parameter, groups_.shards)),
                                padded_numel(parameter, size_of(groups_.shards)),
                                place_of(wanted[i]), MemoryKind::kParameter));
    }
    return parts;
  }

  // The same of parameters on "meta", in the order of the model, in which random numbers were
  // drawn. No more than a group's bytes, or one parameter, is whole at a time. Collective.
  // Errors: those of reading, on all ranks, naming the ranks.
  std::vector<at::Tensor> of_empty(const std::vector<ShardRequest>& wanted) {
    std::vector<at::Tensor> parts(wanted.size());
    std::vector<ShardRequest> batch;
    std::vector<size_t> places;
    int64_t bytes = 0;
    const auto make = [&] {
      std::vector<at::Tensor> made = of(batch);
      for (size_t i = 0; i < made.size(); ++i) parts[places[i]] = std::move(made[i]);
      batch.clear();
      places.clear();
      bytes = 0;
    };
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (options_.deferred == DeferredReads::kOwnRows &&
          deferred_values(wanted[i].parameter) != nullptr) {
        parts[i] = own_rows(wanted[i]);
        continue;
      }
      batch.push_back(wanted[i]);
      places.push_back(i);
      bytes += static_cast<int64_t>(wanted[i].parameter.nbytes());
      if (bytes >= options_.group_bytes) make();
    }
    make();
    if (options_.deferred != DeferredReads::kNone) {
      throw_failures(exchange_outcomes(groups_.all, "prepare", reading_), "prepare", reading_);
    }
    return parts;
  }

 private:
  // The parameter's values on the device, contiguous.
  at::Tensor values_of(const at::Tensor& parameter) const {
    if (parameter.device() == device_) return parameter.detach().contiguous();
    at::Tensor values = at::empty(parameter.sizes(), parameter.options().device(device_));
    tag_memory(values, MemoryKind::kGatheredParameter);
    return values.copy_(parameter);
  }

  // Read straight to where they stay.
  at::Tensor own_rows(const ShardRequest& wanted) {
    const at::Tensor& parameter = wanted.parameter;
    const ShardRows rows = rows_of_rank(parameter, groups_.shards);
    const int64_t row = parameter.numel() / rows_of(parameter);
    at::Tensor part = flat(padded_numel(parameter, size_of(groups_.shards)), place_of(wanted),
                           MemoryKind::kParameter);
    const int64_t numel = row * rows.count;
    part.narrow(0, numel, part.numel() - numel).zero_();
    if (numel == 0 || !reading_.ok()) return part;
    reading_ = outcome_of([&]() -> std::string {
      deferred_values(parameter)->read(row * rows.first, part.narrow(0, 0, numel));
      return "";
    });
    return part;
  }

  at::TensorOptions place_of(const ShardRequest& wanted) const {
    return shard_place(options_, device_, wanted.on_host).dtype(wanted.dtype);
  }

  // The values of a construction or a checkpoint. A rank that cannot read still takes part in what
  // follows.
  std::vector<at::Tensor> recorded(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> values;
    if (tensors.empty()) return values;
    if (options_.deferred == DeferredReads::kNone) return recorded_values(tensors);
    if (reading_.ok()) {
      reading_ = outcome_of([&]() -> std::string {
        values = recorded_values(tensors);
        return "";
      });
    }
    if (reading_.ok()) return values;
    values.clear();
    for (const at::Tensor& each : tensors) {
      values.push_back(at::empty(each.sizes(), each.options().device(device_)));
    }
    return values;
  }

  const ShardGroups& groups_;
  const c10::Device device_;
  const ShardingOptions& options_;
  RankOutcome reading_;
};

}  // namespace internal

using internal::flat_rows;
using internal::padded_numel;
using internal::padded_to;
using internal::rows_of_rank;
using internal::shard_place;
using internal::unpadded;

namespace {

// Shards on a disk, and their gradients, are the host's; only devices copy from pinned memory.
ShardingOptions with_place(ShardingOptions options, c10::Device device) {
  options.offload = options.offload || options.shards_on_disk.has_value();
  for (std::optional<SwapOptions>* disk : {&options.shards_on_disk, &options.rows_on_disk}) {
    if (disk->has_value()) (*disk)->pin_memory = (*disk)->pin_memory && !device.is_cpu();
  }
  return options;
}

// Null where ranks need not compare what they do: a simulated device compares every call by itself.
std::shared_ptr<StepComparison> make_comparison(const ShardGroups& groups, c10::Device device) {
  if (device.is_privateuseone()) return nullptr;
  if (size_of(groups.shards) == 1 && groups.replicas == nullptr) return nullptr;
  return std::make_shared<StepComparison>(groups.shards, groups.replicas);
}

// The parameter, or the codes that are kept of it.
at::Tensor divided_tensor(const at::Tensor& parameter) {
  const ValueMaker* const maker = find_maker(parameter);
  return maker == nullptr || maker->keeps_elements() ? parameter
                                                     : maker->kept("weight").front().tensor;
}

}  // namespace

struct ShardedParameters::PlannedGroup {
  ShardingGroup info;
  // By shard: the parameter's place among the model's, and this rank's rows, padded, once they are
  // made.
  std::vector<size_t> positions;
  std::vector<Shard> shards;
  std::vector<at::Tensor> parts;
  std::vector<at::ScalarType> gathered_dtypes, reduce_dtypes;
  bool on_host = false;       // its shards
  bool rows_on_disk = false;  // as they are gathered

  int64_t elements() const {
    int64_t sum = 0;
    for (const Shard& each : shards) sum += each.parameter.numel();
    return sum;
  }
  // Whether some are gathered in another dtype than their shards have.
  bool casts(const ShardedParameters& owner) const {
    for (size_t i = 0; i < shards.size(); ++i) {
      if (owner.kept_dtype(shards[i].parameter) != gathered_dtypes[i]) return true;
    }
    return false;
  }

  void add(size_t position, Shard shard, at::ScalarType gathered_dtype,
           at::ScalarType reduce_dtype) {
    info.parameters.push_back(shard.name);
    positions.push_back(position);
    parts.emplace_back();
    shards.push_back(std::move(shard));
    gathered_dtypes.push_back(gathered_dtype);
    reduce_dtypes.push_back(reduce_dtype);
  }
};

ShardedParameters::ShardedParameters(const torch::nn::Module& module, ShardGroups groups,
                                     c10::Device device, ShardingOptions options)
    : groups_(std::move(groups)),
      device_(device),
      options_(with_place(std::move(options), device)),
      comparison_(make_comparison(groups_, device)),
      residency_(std::make_shared<Residency>(Residency::Options{
          .prefetch = options_.gather_ahead,
          .prefetch_in_backward = options_.gather_ahead_in_backward,
          .max_reuse_distance = options_.max_reuse_distance,
          .max_live = options_.max_live,
          .compare_use =
              comparison_ == nullptr
                  ? std::function<void(int)>()
                  : [comparison = comparison_](int group) { comparison->compare_use(group); }})),
      copies_stream_(options_.offload && !device.is_cpu()
                         ? std::make_shared<internal::SideStream>(device)
                         : nullptr),
      gradients_(groups_, device_, options_, residency_, comparison_, copies_stream_) {
  at::NoGradGuard no_grad;
  // All are checked before the first one is divided, so that a refused module stays as it is.
  std::vector<PlannedGroup> planned = planned_groups(module);
  choose_places(planned);
  choose_disk(planned);
  if (options_.shards_on_disk || options_.rows_on_disk) {
    disks_ = std::make_shared<internal::ShardDisks>(
        options_, groups_.all != nullptr ? groups_.all : groups_.shards);
  }
  internal::InitialParts parts(groups_, device_, options_);
  make_empty_parts(planned, parts);
  for (PlannedGroup& group : planned) add_group(std::move(group), parts);
  check_reads();
}

std::shared_ptr<SwappedTensors> ShardedParameters::disk() const {
  return disks_ == nullptr ? nullptr : disks_->shards();
}

void ShardedParameters::check_reads() {
  if (disks_ != nullptr) disks_->check();
}

std::function<void(const at::Tensor& shard)> ShardedParameters::keeps_rows() const {
  return [weak = std::weak_ptr<Gathered>(gathered_)](const at::Tensor& shard) {
    const auto gathered = weak.lock();
    if (gathered == nullptr) return;
    const auto found = gathered->find(shard.unsafeGetTensorImpl());
    if (found != gathered->end()) found->second.first->mark_stepped(found->second.second);
  };
}

void ShardedParameters::choose_disk(std::vector<PlannedGroup>& planned) const {
  if (!options_.rows_on_disk) return;
  const int64_t limit = options_.rows_on_disk->buffer_bytes;
  int64_t on_host = 0;  // elements
  for (PlannedGroup& group : planned) {
    int64_t elements = 0, bytes = 0;
    for (size_t i = 0; i < group.shards.size(); ++i) {
      const int64_t numel = padded_numel(group.shards[i].parameter, size_of(groups_.shards));
      elements += numel;
      bytes += SwappedTensors::bytes_in_buffer(
          numel * static_cast<int64_t>(c10::elementSize(group.gathered_dtypes[i])));
    }
    group.rows_on_disk = on_host + elements > options_.rows_on_host;
    if (!group.rows_on_disk) {
      on_host += elements;
      continue;
    }
    TORCH_CHECK_VALUE(
        limit == 0 || bytes <= limit,
        text_of_parameters(group.shards.front().name, group.shards.back().name),
        " are gathered together, and a rank's rows of them have ", bytes,
        " bytes, which do not fit in a buffer of ", limit,
        " bytes for offload to a disk; make buffers larger, or what is gathered together smaller");
  }
}

// Where this rank's rows are kept as they are gathered, with their values if shards leave memory.
std::vector<at::Tensor> ShardedParameters::kept_rows(const PlannedGroup& planned,
                                                     const std::vector<at::Tensor>& padded,
                                                     const std::vector<at::Tensor>& whole) {
  const bool on_device = options_.keeps_cast_shards && !options_.rows_on_disk &&
                         (planned.on_host || planned.casts(*this));
  const bool have_values = disks_ != nullptr;
  std::vector<at::Tensor> kept;
  if (whole.empty() && !on_device && !have_values) return kept;
  for (size_t i = 0; i < padded.size(); ++i) {
    const int64_t numel = padded[i].numel();
    if (!whole.empty()) {
      kept.push_back(whole[i].narrow(0, numel * rank_of(groups_.shards), numel));
    } else {
      const auto place =
          on_device ? at::TensorOptions(device_) : shard_place(options_, device_, planned.on_host);
      kept.push_back(
          internal::flat(numel, place.dtype(planned.gathered_dtypes[i]), MemoryKind::kParameter));
    }
    if (have_values) kept[i].copy_(padded[i]);
    if (planned.rows_on_disk) {
      kept[i] = disks_->moved(*disks_->rows(), planned.shards[i].name, kept[i]);
    }
  }
  return kept;
}

void ShardedParameters::choose_places(std::vector<PlannedGroup>& planned) const {
  if (!options_.offload) return;
  int64_t total = 0, taken = 0;
  for (const PlannedGroup& group : planned) total += group.elements();
  for (PlannedGroup& group : planned) {
    taken += group.elements();
    group.on_host =
        static_cast<double>(taken) > options_.part_on_device * static_cast<double>(total);
  }
}

// The dtype of a parameter's shards.
at::ScalarType ShardedParameters::kept_dtype(const at::Tensor& parameter) const {
  const bool widens =
      options_.param_dtype && parameter.requires_grad() && parameter.is_floating_point();
  return widens ? at::kFloat : parameter.scalar_type();
}

std::vector<ShardedParameters::PlannedGroup> ShardedParameters::planned_groups(
    const torch::nn::Module& module) const {
  // By name: the number of its group among those of the options, or kIgnored.
  constexpr size_t kIgnored = std::numeric_limits<size_t>::max();
  std::map<std::string, size_t> listed;
  for (const std::string& name : options_.ignored) listed.emplace(name, kIgnored);
  for (size_t i = 0; i < options_.groups.size(); ++i) {
    for (const std::string& name : options_.groups[i].parameters) {
      TORCH_CHECK_VALUE(listed.emplace(name, i).second, "parameter \"", name,
                        "\" is in two groups of parameters, or is ignored as well");
    }
  }
  std::vector<PlannedGroup> given, planned;
  for (const ShardingGroup& each : options_.groups) {
    given.push_back({.info = each});
    given.back().info.parameters.clear();
  }
  const PlannedGroup empty{.info = {.reshard_after_forward = options_.reshard_after_forward,
                                    .reshard_after_backward = options_.reshard_after_backward}};
  PlannedGroup by_size = empty;
  int64_t bytes = 0;
  std::unordered_set<const at::TensorImpl*> seen;
  std::map<std::pair<const void*, int64_t>, std::string> memory;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const bool keeps_precision =
        part.value()->named_buffers(/*recurse=*/false).contains("running_mean");
    for (const auto& item : part.value()->named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      // A tied parameter has several names.
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      const at::Tensor parameter = divided_tensor(item.value());
      const std::string name = part.key().empty() ? item.key() : part.key() + "." + item.key();
      const auto place = listed.extract(name);
      if (!place.empty() && place.mapped() == kIgnored) continue;
      TORCH_CHECK_VALUE(parameter.layout() == at::kStrided, "parameter \"", name,
                        "\" cannot be divided among ranks: its layout is ", parameter.layout());
      TORCH_CHECK_VALUE(storage_owner(parameter) == nullptr, "parameter \"", name,
                        "\" is divided among ranks already, as one of another prepared model");
      if (parameter.numel() == 0) continue;
      TORCH_CHECK_VALUE(!parameter.is_meta() || is_recorded(parameter) || options_.initialise,
                        "parameter \"", name,
                        "\" has no values to be divided among ranks: it is on \"meta\" and was not "
                        "made in init_empty_weights; load a checkpoint into it, or make it there");
      const auto [other, is_new] = memory.try_emplace(
          {parameter.storage().unsafeGetStorageImpl(), parameter.storage_offset()}, name);
      TORCH_CHECK_VALUE(is_new, "parameters \"", other->second, "\" and \"", name,
                        "\" share memory, but are two tensors, so they cannot be divided among "
                        "ranks; register one tensor under both names");
      at::ScalarType gathered = parameter.scalar_type(), reduced = gathered;
      if (parameter.is_floating_point() && !keeps_precision) {
        gathered = options_.param_dtype.value_or(gathered);
        reduced = options_.reduce_dtype.value_or(gathered);
      }
      PlannedGroup& group = place.empty() ? by_size : given[place.mapped()];
      if (place.empty()) bytes += static_cast<int64_t>(parameter.nbytes());
      group.add(seen.size(), {name, parameter, {}}, gathered, reduced);
    }
    if (bytes >= options_.group_bytes) {
      planned.push_back(std::exchange(by_size, empty));
      bytes = 0;
    }
  }
  for (const auto& [name, group] : listed) {
    TORCH_CHECK_VALUE(group == kIgnored, "group \"", options_.groups[group].name,
                      "\" of the sharding options has parameter \"", name,
                      "\", which the model does not have under this name");
  }
  if (!by_size.shards.empty()) planned.push_back(std::move(by_size));
  for (PlannedGroup& each : given) {
    if (!each.shards.empty()) planned.push_back(std::move(each));
  }
  std::ranges::sort(planned, {}, [](const PlannedGroup& each) { return each.positions.front(); });
  return planned;
}

ShardedParameters::~ShardedParameters() = default;

std::vector<int> ShardedParameters::groups_of(const std::string& unit, bool inner) const {
  const bool is_all = inner && unit.empty();
  const auto is_below = [&unit](const std::string& parameter) {
    return parameter.size() > unit.size() && parameter[unit.size()] == '.' &&
           parameter.starts_with(unit);
  };
  std::vector<int> groups;
  for (size_t i = 0; i < group_infos_.size(); ++i) {
    const ShardingGroup& info = group_infos_[i];
    if (is_all || info.unit == unit || (inner && std::ranges::any_of(info.parameters, is_below))) {
      groups.push_back(static_cast<int>(i));
    }
  }
  return groups;
}

// In the order of the model: a group that has the first and the last parameter would have all
// between them made at once. Before anything is divided, so that a refused module stays as it is.
void ShardedParameters::make_empty_parts(std::vector<PlannedGroup>& planned,
                                         internal::InitialParts& parts) const {
  std::map<size_t, std::pair<internal::InitialParts::ShardRequest, at::Tensor*>> empty;
  for (PlannedGroup& group : planned) {
    for (size_t i = 0; i < group.shards.size(); ++i) {
      const at::Tensor& parameter = group.shards[i].parameter;
      if (!parameter.is_meta()) continue;
      empty[group.positions[i]] = {{parameter, kept_dtype(parameter), group.on_host},
                                   &group.parts[i]};
    }
  }
  std::vector<internal::InitialParts::ShardRequest> wanted;
  for (const auto& [position, each] : empty) wanted.push_back(each.first);
  std::vector<at::Tensor> made = parts.of_empty(wanted);
  auto next = made.begin();
  for (const auto& [position, each] : empty) *each.second = std::move(*next++);
}

void ShardedParameters::refresh_packed() {
  if (options_.packed != nullptr) options_.packed->refresh(shards(), groups_.shards);
}

void ShardedParameters::unshard(int group) {
  refresh_packed();
  residency_->unshard(group);
}

Retention ShardedParameters::retention_of(const ShardingGroup& group) const {
  if (options_.keeps_parameters || !group.reshard_after_backward) return Retention::kWhileCurrent;
  return group.reshard_after_forward ? Retention::kInTurn : Retention::kUntilGradient;
}

void ShardedParameters::set_reshard_after_forward(int group, bool reshards) {
  group_infos_.at(group).reshard_after_forward = reshards;
  residency_->set_retention(group, retention_of(group_infos_[group]));
}

void ShardedParameters::set_reshard_after_backward(int group, bool reshards) {
  group_infos_.at(group).reshard_after_backward = reshards;
  residency_->set_retention(group, retention_of(group_infos_[group]));
}

// Persistent memory for whole parameters, if the options ask for it. This rank's shard becomes a
// view into that memory if the shard has its dtype and device.
std::vector<at::Tensor> ShardedParameters::whole_memory(
    std::vector<at::Tensor>& padded, const std::vector<at::ScalarType>& dtypes) const {
  std::vector<at::Tensor> memory;
  if (!options_.keeps_parameters) return memory;
  for (size_t i = 0; i < padded.size(); ++i) {
    const int64_t numel = padded[i].numel();
    at::Tensor& whole = memory.emplace_back(
        internal::flat(numel * size_of(groups_.shards), at::TensorOptions(device_).dtype(dtypes[i]),
                       MemoryKind::kParameter));
    if (padded[i].device() != whole.device() || padded[i].dtype() != whole.dtype()) continue;
    padded[i] = whole.narrow(0, numel * rank_of(groups_.shards), numel).copy_(padded[i]);
  }
  return memory;
}

void ShardedParameters::add_group(PlannedGroup planned, internal::InitialParts& initial) {
  std::vector<Shard>& group = planned.shards;
  std::vector<internal::InitialParts::ShardRequest> wanted;
  std::vector<at::Tensor> padded = std::move(planned.parts);
  for (size_t i = 0; i < group.size(); ++i) {
    const at::Tensor& parameter = group[i].parameter;
    if (!padded[i].defined()) {
      wanted.push_back({parameter, kept_dtype(parameter), planned.on_host});
    }
  }
  std::vector<at::Tensor> parts = initial.of(wanted);
  for (auto next = parts.begin(); at::Tensor & part : padded) {
    if (!part.defined()) part = std::move(*next++);
  }
  parts.clear();
  std::vector<at::Tensor> whole = whole_memory(padded, planned.gathered_dtypes);
  // What is on a disk is read as it is kept for scopes, on all ranks or on none.
  Residency::Group managed{.retention = retention_of(planned.info),
                           .shows_copies = !whole.empty() || disks_ != nullptr};
  // Whole memory is of the parameters themselves.
  const auto packed = options_.keeps_parameters ? nullptr : options_.packed;
  std::vector<at::Tensor> kept = kept_rows(planned, padded, whole);
  for (size_t i = 0; i < group.size(); ++i) {
    Shard& each = group[i];
    if (options_.shards_on_disk) padded[i] = disks_->moved(*disks_->shards(), each.name, padded[i]);
    // Not a view: a leaf of its own that shares the memory.
    each.shard = unpadded(padded[i], each.parameter, rows_of_rank(each.parameter, groups_.shards))
                     .variable_data();
    each.shard.set_requires_grad(each.parameter.requires_grad());
    managed.parameters.push_back({each.name, each.parameter, planned.gathered_dtypes[i]});
    if (packed != nullptr && packed->packs(each.parameter)) {
      managed.parameters.back().packed_dtype = packed->dtype();
      managed.parameters.back().packed = [packed, parameter = each.parameter](at::Tensor values) {
        packed->set_values(parameter, std::move(values));
      };
    }
    managed.shows_copies =
        managed.shows_copies || planned.gathered_dtypes[i] != each.shard.scalar_type();
  }
  auto source = std::make_unique<internal::GatheredGroup>(
      groups_, group,
      internal::RowsToGather::Memory{.padded = std::move(padded),
                                     .dtypes = planned.gathered_dtypes,
                                     .kept = std::move(kept),
                                     .packed = packed,
                                     .disks = disks_,
                                     .kept_on_disk = planned.rows_on_disk},
      std::move(whole), device_, planned.on_host ? copies_stream_ : nullptr);
  for (size_t i = 0; options_.shards_on_disk && i < group.size(); ++i) {
    gathered_->emplace(group[i].shard.unsafeGetTensorImpl(), std::pair(source.get(), i));
  }
  managed.source = std::move(source);
  residency_->add(std::move(managed), device_);
  for (const Shard& each : group) internal::GatheredGroup::share_version(each);
  if (comparison_) comparison_->add_group(planned.info.parameters);
  gradients_.add_group(group, planned.reduce_dtypes, planned.info.gradients_differ,
                       planned.on_host);
  group_infos_.push_back(std::move(planned.info));
}

}  // namespace accelerate
