#include "accelerate/parallel/residency/shards.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/checksum.h"
#include "accelerate/comm/objects.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

int64_t rows_of(const at::Tensor& parameter) {
  return parameter.dim() == 0 ? 1 : parameter.size(0);
}

// The elements that each rank's part has in a collective.
int64_t padded_numel(const at::Tensor& parameter, int ranks) {
  const int64_t rows = rows_of(parameter);
  return (rows + ranks - 1) / ranks * (parameter.numel() / rows);
}

at::Tensor flat(int64_t numel, at::TensorOptions options, MemoryKind kind) {
  at::Tensor memory = at::empty({numel}, options);
  note_memory(memory, kind);
  return memory;
}

// The parameter's values on the device, contiguous.
at::Tensor values_on(c10::Device device, const at::Tensor& parameter) {
  if (parameter.device() == device) return parameter.detach().contiguous();
  at::Tensor values = at::empty(parameter.sizes(), parameter.options().device(device));
  note_memory(values, MemoryKind::kGatheredParameter);
  return values.copy_(parameter);
}

// The shard's part of memory that is padded to all ranks' size.
at::Tensor unpadded(const at::Tensor& padded, const at::Tensor& parameter, const ShardRows& rows) {
  std::vector<int64_t> sizes = parameter.sizes().vec();
  if (sizes.empty()) sizes.push_back(0);
  sizes[0] = rows.count;
  return padded.narrow(0, 0, parameter.numel() / rows_of(parameter) * rows.count).view(sizes);
}

// Some rows of a contiguous tensor, as a view without dims but one.
at::Tensor flat_rows(const at::Tensor& parameter, const ShardRows& rows) {
  const int64_t row = parameter.numel() / rows_of(parameter);
  return parameter.view({-1}).narrow(0, row * rows.first, row * rows.count);
}

// Whether the backward pass that runs adds to the parameter's gradient. One of autograd::grad gives
// it to its caller instead.
bool is_accumulated(const at::Tensor& parameter) {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;
  const auto node = nodes->find(torch::autograd::impl::try_get_grad_accumulator(parameter).get());
  return node != nodes->end() && node->second.needed_;
}

// A copy that ends with zeros, so that all ranks' parts have the same size.
at::Tensor padded_to(const at::Tensor& elements, int64_t numel, at::TensorOptions options,
                     MemoryKind kind) {
  at::Tensor padded = flat(numel, options, kind);
  padded.narrow(0, 0, elements.numel()).copy_(elements);
  padded.narrow(0, elements.numel(), numel - elements.numel()).zero_();
  return padded;
}

// Backends take tensors of one dtype in a collective, so that there is one for each dtype.
template <typename Begin>
std::vector<c10::intrusive_ptr<c10d::Work>> for_each_dtype(const std::vector<at::Tensor>& a,
                                                           const std::vector<at::Tensor>& b,
                                                           Begin begin) {
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_dtype;
  for (size_t i = 0; i < a.size(); ++i) {
    auto& [first, second] = by_dtype[a[i].scalar_type()];
    first.push_back(a[i]);
    second.push_back(b[i]);
  }
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (auto& [dtype, tensors] : by_dtype) works.push_back(begin(tensors.first, tensors.second));
  return works;
}

// The parameters of one group.
std::string text_of(const ShardedParameters::Shard& first, const ShardedParameters::Shard& last) {
  const std::string begin = absl::StrCat("parameters \"", first.name, "\"");
  return first.name == last.name ? begin : absl::StrCat(begin, " to \"", last.name, "\"");
}

}  // namespace

class ShardedParameters::GatheredGroup final : public ParameterSource {
 public:
  // `padded`: this rank's rows of each parameter, padded, which are gathered in `dtypes`. `copies`:
  // null where they are on the device.
  GatheredGroup(ProcessGroupPtr group, std::vector<Shard> shards, std::vector<at::Tensor> padded,
                std::vector<at::ScalarType> dtypes, c10::Device device,
                std::shared_ptr<internal::SideStream> copies)
      : group_(std::move(group)),
        shards_(std::move(shards)),
        padded_(std::move(padded)),
        dtypes_(std::move(dtypes)),
        device_(device),
        copies_(std::move(copies)),
        purpose_(text_of(shards_.front(), shards_.back())) {}

  void begin() override {
    versions_.clear();
    for (const Shard& each : shards_) versions_.push_back(each.shard._version());
    start(/*as_kept=*/false);
  }

  std::vector<c10::DataPtr> finish() override {
    std::vector<c10::DataPtr> memory;
    for (const at::Tensor& each : end()) {
      memory.push_back(each.storage().unsafeGetStorageImpl()->set_data_ptr(
          c10::DataPtr(nullptr, each.device())));
    }
    return memory;
  }

  std::vector<at::Tensor> kept_values() override {
    versions_.clear();
    for (const Shard& each : shards_) versions_.push_back(each.shard._version());
    start(/*as_kept=*/true);
    std::vector<at::Tensor> values = end();
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::Tensor& parameter = shards_[i].parameter;
      values[i] = values[i].narrow(0, 0, parameter.numel()).view(parameter.sizes());
      // Without the padding, where code saves the whole storage.
      values[i].storage().unsafeGetStorageImpl()->set_nbytes(values[i].nbytes());
    }
    return values;
  }

  void drop() override {
    gathered_.clear();
    const std::vector<c10::intrusive_ptr<c10d::Work>> works = std::exchange(works_, {});
    // It reads the shards, which change in the next step of an optimizer. After an error ranks may
    // be elsewhere, and the gather may never end.
    if (std::uncaught_exceptions() > 0) return;
    try {
      for (const auto& work : works) work->wait();
      parts_.clear();
    } catch (const std::exception&) {
      // The group has failed, which its next collective says; nothing reads these values.
    }
  }

  void check_store() const override {
    for (size_t i = 0; i < shards_.size(); ++i) {
      TORCH_CHECK_VALUE(
          shards_[i].shard._version() == versions_[i], "full_parameters: the shard of parameter \"",
          shards_[i].name, "\" on rank ", group_->getRank(),
          " was changed inside the scope, as by an optimizer's step, which writing the scope's "
          "values back would undo; step outside of it, or let its options have writeback = false. "
          "The scope's own changes are dropped");
    }
  }

  void store() override {
    for (const Shard& each : shards_) {
      each.shard.view({-1}).copy_(
          flat_rows(each.parameter,
                    shard_rows(rows_of(each.parameter), group_->getSize(), group_->getRank())));
    }
  }

 private:
  void start(bool as_kept) {
    const CollectivePurpose purpose(purpose_);
    std::vector<at::Tensor> gathered, parts;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::ScalarType dtype = as_kept ? padded_[i].scalar_type() : dtypes_[i];
      gathered.push_back(flat(padded_[i].numel() * group_->getSize(),
                              at::TensorOptions(device_).dtype(dtype),
                              MemoryKind::kGatheredParameter));
    }
    std::optional<internal::SideStream::Scope> copies;
    if (copies_ != nullptr) copies.emplace(*copies_);
    for (size_t i = 0; i < shards_.size(); ++i) {
      // The device casts what is copied.
      at::Tensor part = padded_[i];
      if (copies_ != nullptr) part = copied(part, at::TensorOptions(device_).dtype(part.dtype()));
      if (part.dtype() != gathered[i].dtype()) part = copied(part, gathered[i].options());
      parts.push_back(std::move(part));
    }
    works_ = for_each_dtype(gathered, parts, [&](auto& outputs, auto& inputs) {
      return group_->allgather_into_tensor_coalesced(outputs, inputs);
    });
    gathered_ = std::move(gathered);
    parts_ = std::move(parts);
  }

  static at::Tensor copied(const at::Tensor& part, at::TensorOptions options) {
    at::Tensor copy = flat(part.numel(), options, MemoryKind::kGatheredParameter);
    return copy.copy_(part, /*non_blocking=*/true);
  }

  std::vector<at::Tensor> end() {
    std::vector<at::Tensor> gathered = std::exchange(gathered_, {});
    for (const auto& work : std::exchange(works_, {})) work->wait();
    parts_.clear();
    return gathered;
  }

  const ProcessGroupPtr group_;
  const std::vector<Shard> shards_;
  std::vector<at::Tensor> padded_;
  const std::vector<at::ScalarType> dtypes_;
  const c10::Device device_;
  const std::shared_ptr<internal::SideStream> copies_;
  const std::string purpose_;
  // On their way: what is gathered, and this rank's part of it.
  std::vector<at::Tensor> gathered_, parts_;
  std::vector<int64_t> versions_;  // of the shards that were gathered
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

class ShardedParameters::GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  // `first`: the parameter's own hook, which sees whole gradients; may be null.
  GradientHook(std::weak_ptr<ShardedParameters*> owner, size_t group, size_t shard,
               std::unique_ptr<PostAccumulateGradHook> first)
      : owner_(std::move(owner)), group_(group), shard_(shard), first_(std::move(first)) {}

  void operator()(const at::Tensor& parameter) override {
    if (first_ != nullptr) (*first_)(parameter);
    if (const auto owner = owner_.lock()) (*owner)->gradient_is_ready(group_, shard_);
  }

  bool is_of(const ShardedParameters& owner) const {
    const auto own = owner_.lock();
    return own != nullptr && *own == &owner;
  }

 private:
  const std::weak_ptr<ShardedParameters*> owner_;
  const size_t group_, shard_;
  const std::unique_ptr<PostAccumulateGradHook> first_;
};

// A gradient without values.
class ShardedParameters::ReducedGradient final : public StorageOwner {
 public:
  static at::Tensor make(const Shard& shard) {
    at::Tensor absent = c10::make_intrusive<ReducedGradient>(shard.name)
                            ->make_absent(shard.parameter, shard.parameter.device());
    set_absent_text(absent, absl::StrCat("absent gradient of parameter \"", shard.name, "\""));
    return absent;
  }

  explicit ReducedGradient(std::string name) : name_(std::move(name)) {}

  void acquire(const at::Tensor& /*gradient*/, const c10::OperatorHandle& op,
               bool /*writes*/) override {
    TORCH_CHECK(false, op.schema().name(), " uses the gradient of parameter \"", name_,
                "\", which is divided among ranks: the Accelerator clips gradients, and prepared "
                "optimizers reset them");
  }
  void release() override {}

 private:
  const std::string name_;
};

// One group's gradients on their way.
struct ShardedParameters::Reduction {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<at::Tensor> whole;    // padded
  std::vector<at::Tensor> reduced;  // padded
  std::vector<size_t> shards;

  void wait() {
    for (const auto& work : std::exchange(works, {})) work->wait();
    whole.clear();
  }
};

// Gradients of shards on their way to the host.
struct ShardedParameters::HostCopy {
  std::vector<size_t> shards;
  std::vector<at::Tensor> on_device;  // padded
  std::vector<at::Tensor> on_host;    // padded
  std::optional<internal::SideStream::Mark> end;
};

struct ShardedParameters::PlannedGroup {
  // By shard: the parameter's place among the model's, and this rank's rows, padded, once they are
  // made.
  std::vector<size_t> positions;
  std::vector<Shard> shards;
  std::vector<at::Tensor> parts;
  std::vector<at::ScalarType> gathered_dtypes, reduce_dtypes;
  bool reshard_after_forward = true;

  void add(size_t position, Shard shard, at::ScalarType gathered_dtype,
           at::ScalarType reduce_dtype) {
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
      options_(std::move(options)),
      self_(std::make_shared<ShardedParameters*>(this)),
      residency_(std::make_shared<Residency>(Residency::Options{
          .prefetch = options_.gather_ahead,
          .prefetch_in_backward = options_.gather_ahead_in_backward,
          .on_recorded =
              [weak = std::weak_ptr<ShardedParameters*>(self_)](c10::ArrayRef<int> uses) {
                if (const auto alive = weak.lock()) (*alive)->compare_uses(uses);
              }})),
      copies_stream_(options_.offload && !device.is_cpu()
                         ? std::make_shared<internal::SideStream>(device)
                         : nullptr) {
  at::NoGradGuard no_grad;
  // All are checked before the first one is divided, so that a refused module stays as it is.
  std::vector<PlannedGroup> planned = planned_groups(module);
  make_recorded_parts(planned);
  for (PlannedGroup& group : planned) add_group(std::move(group));
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
  std::vector<PlannedGroup> given(options_.groups.size()), planned;
  const PlannedGroup empty{.reshard_after_forward = options_.reshard_after_forward};
  PlannedGroup by_size = empty;
  int64_t bytes = 0;
  std::unordered_set<const at::TensorImpl*> seen;
  std::map<std::pair<const void*, int64_t>, std::string> memory;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const bool keeps_precision =
        part.value()->named_buffers(/*recurse=*/false).contains("running_mean");
    for (const auto& item : part.value()->named_parameters(/*recurse=*/false)) {
      const at::Tensor& parameter = item.value();
      // A tied parameter has several names.
      if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const std::string name = part.key().empty() ? item.key() : part.key() + "." + item.key();
      const auto place = listed.extract(name);
      if (!place.empty() && place.mapped() == kIgnored) continue;
      TORCH_CHECK_VALUE(parameter.layout() == at::kStrided, "parameter \"", name,
                        "\" cannot be divided among ranks: its layout is ", parameter.layout());
      TORCH_CHECK_VALUE(storage_owner(parameter) == nullptr, "parameter \"", name,
                        "\" is divided among ranks already, as one of another prepared model");
      if (parameter.numel() == 0) continue;
      TORCH_CHECK_VALUE(!parameter.is_meta() || is_recorded(parameter), "parameter \"", name,
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
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].shards.empty()) continue;
    given[i].reshard_after_forward = options_.groups[i].reshard_after_forward;
    planned.push_back(std::move(given[i]));
  }
  std::ranges::sort(planned, {}, [](const PlannedGroup& each) { return each.positions.front(); });
  return planned;
}

ShardedParameters::~ShardedParameters() = default;

std::string ShardedParameters::text_of_group(int group) const {
  return text_of(shards_[reduced_together_[group].begin],
                 shards_[reduced_together_[group].end - 1]);
}

void ShardedParameters::compare_uses(c10::ArrayRef<int> uses) const {
  const int ranks = groups_.shards->getSize();
  if (ranks == 1) return;
  std::string order;
  for (const int group : uses) absl::StrAppend(&order, group, " ");
  const auto differs_from = [](const std::string& own) {
    return [&own](const std::string& other) { return other != own; };
  };
  const std::string digest = sha256(order);
  if (std::ranges::none_of(all_gather_bytes(groups_.shards, digest), differs_from(digest))) return;
  const std::vector<std::string> orders = all_gather_bytes(groups_.shards, order);
  const auto other = std::ranges::find_if(orders, differs_from(orders[0]));
  const auto steps_of = [](const std::string& text) -> std::vector<std::string> {
    return absl::StrSplit(text, ' ', absl::SkipEmpty());
  };
  const std::vector<std::string> first = steps_of(orders[0]), second = steps_of(*other);
  const auto [at_first, at_second] = std::ranges::mismatch(first, second);
  const auto used = [this](const auto& at, const std::vector<std::string>& steps) -> std::string {
    int group = 0;
    if (at == steps.end() || !absl::SimpleAtoi(*at, &group)) return "used no more";
    return absl::StrCat("used ", text_of_group(group));
  };
  TORCH_CHECK(false,
              "ranks that share parameters used them in different orders in one step: as use ",
              at_first - first.begin(), " of a group, rank 0 ", used(at_first, first),
              ", and rank ", other - orders.begin(), " ", used(at_second, second),
              "; a forward pass must use the same parameters in the same order on all ranks");
}

ShardRows ShardedParameters::rows_of_rank(const at::Tensor& parameter) const {
  return shard_rows(rows_of(parameter), groups_.shards->getSize(), groups_.shards->getRank());
}

// This rank's rows of the values that the parameters have, or of those of their recorded
// construction, padded.
std::vector<at::Tensor> ShardedParameters::parts_of(const std::vector<at::Tensor>& parameters) {
  if (parameters.empty()) return {};
  std::vector<at::Tensor> values, recorded, parts;
  for (const at::Tensor& each : parameters) {
    if (each.is_meta()) recorded.push_back(each);
  }
  if (!recorded.empty()) recorded = recorded_values(recorded);
  auto next = recorded.begin();
  for (const at::Tensor& each : parameters) {
    values.push_back(values_on(device_, each.is_meta() ? *next++ : each));
  }
  recorded.clear();
  broadcast_tensors(groups_.all, values, 0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parts.push_back(padded_to(flat_rows(values[i], rows_of_rank(parameters[i])),
                              padded_numel(parameters[i], groups_.shards->getSize()),
                              shard_place().dtype(kept_dtype(parameters[i])),
                              MemoryKind::kParameter));
  }
  return parts;
}

// In the order of the model, in which random numbers were drawn: a group that has the first and the
// last parameter would have all between them made at once.
void ShardedParameters::make_recorded_parts(std::vector<PlannedGroup>& planned) {
  std::map<size_t, std::pair<at::Tensor, at::Tensor*>> recorded;
  for (PlannedGroup& group : planned) {
    for (size_t i = 0; i < group.shards.size(); ++i) {
      const at::Tensor& parameter = group.shards[i].parameter;
      if (parameter.is_meta()) recorded[group.positions[i]] = {parameter, &group.parts[i]};
    }
  }
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor*> places;
  int64_t bytes = 0;
  for (auto each = recorded.begin(); each != recorded.end();) {
    parameters.push_back(each->second.first);
    places.push_back(each->second.second);
    bytes += static_cast<int64_t>(parameters.back().nbytes());
    if (++each != recorded.end() && bytes < options_.group_bytes) continue;
    const std::vector<at::Tensor> parts = parts_of(parameters);
    for (size_t i = 0; i < parts.size(); ++i) *places[i] = parts[i];
    parameters.clear();
    places.clear();
    bytes = 0;
  }
}

void ShardedParameters::add_group(PlannedGroup planned) {
  std::vector<Shard>& group = planned.shards;
  const size_t number = reduced_together_.size();
  std::vector<at::Tensor> parameters, padded = std::move(planned.parts);
  for (size_t i = 0; i < group.size(); ++i) {
    if (!padded[i].defined()) parameters.push_back(group[i].parameter);
  }
  std::vector<at::Tensor> parts = parts_of(parameters);
  for (auto next = parts.begin(); at::Tensor & part : padded) {
    if (!part.defined()) part = std::move(*next++);
  }
  parts.clear();
  Residency::Group managed{.stays = !planned.reshard_after_forward};
  for (size_t i = 0; i < group.size(); ++i) {
    Shard& each = group[i];
    // Not a view: a leaf of its own that shares the memory.
    each.shard = unpadded(padded[i], each.parameter, rows_of_rank(each.parameter)).variable_data();
    each.shard.set_requires_grad(each.parameter.requires_grad());
    managed.parameters.push_back({each.name, each.parameter, planned.gathered_dtypes[i]});
    managed.casts = managed.casts || planned.gathered_dtypes[i] != each.shard.scalar_type();
  }
  for (size_t i = 0; i < group.size(); ++i) {
    if (!group[i].parameter.requires_grad()) continue;
    group[i].parameter.register_hook([weak = std::weak_ptr<ShardedParameters*>(self_),
                                      shard = shards_.size() + i](const at::Tensor& /*gradient*/) {
      if (const auto alive = weak.lock()) (*alive)->make_place(shard);
    });
  }
  managed.source = std::make_unique<GatheredGroup>(
      groups_.shards, group, std::move(padded), planned.gathered_dtypes, device_, copies_stream_);
  residency_->add(std::move(managed), device_);
  reduced_together_.push_back({.begin = shards_.size(),
                               .end = shards_.size() + group.size(),
                               .ready = std::vector<bool>(group.size())});
  shards_.insert(shards_.end(), group.begin(), group.end());
  reduce_dtypes_.insert(reduce_dtypes_.end(), planned.reduce_dtypes.begin(),
                        planned.reduce_dtypes.end());
  reduced_.resize(shards_.size());
  watch_gradients(number);
}

// Where shards and their gradients are.
at::TensorOptions ShardedParameters::shard_place() const {
  if (!options_.offload) return at::TensorOptions(device_);
  return at::TensorOptions(at::kCPU).pinned_memory(options_.pin_memory && !device_.is_cpu());
}

void ShardedParameters::watch_gradients(size_t number) {
  const Group& group = reduced_together_[number];
  for (size_t i = group.begin; i < group.end; ++i) {
    const at::Tensor& parameter = shards_[i].parameter;
    if (!parameter.requires_grad()) continue;
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
    const auto* ours = dynamic_cast<const GradientHook*>(hook.get());
    if (ours != nullptr && ours->is_of(*this)) continue;
    hook = std::make_unique<GradientHook>(self_, number, i - group.begin, std::move(hook));
  }
}

// Before a gradient is accumulated.
void ShardedParameters::make_place(size_t shard) {
  if (!is_accumulated(shards_[shard].parameter)) return;
  follow_zero_grad(shard);
  at::Tensor& gradient = shards_[shard].parameter.mutable_grad();
  if (gradient.is_same(reduced_[shard])) gradient.reset();
}

// The module's zero_grad resets the parameter's gradient, and the shard's has to follow.
void ShardedParameters::follow_zero_grad(size_t shard) {
  const Shard& each = shards_[shard];
  if (!reduced_[shard].defined() || each.parameter.grad().defined()) return;
  reduced_[shard].reset();
  each.shard.mutable_grad().reset();
}

// One that adds up with those of later passes does so in the dtype in which it is sent.
void ShardedParameters::keep_whole_gradient(size_t shard) {
  at::Tensor& gradient = shards_[shard].parameter.mutable_grad();
  if (gradient.is_same(reduced_[shard])) return;
  gradient = gradient.to(reduce_dtypes_[shard]);
}

void ShardedParameters::gradient_is_ready(size_t number, size_t shard) {
  if (!synchronises_) return keep_whole_gradient(reduced_together_[number].begin + shard);
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward_ != backward) {
    backward_ = backward;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [weak = std::weak_ptr<ShardedParameters*>(self_)] {
          if (const auto alive = weak.lock()) (*alive)->end_backward();
        });
  }
  Group& group = reduced_together_[number];
  // A user's hook may call ours, which has then run already.
  const size_t index = group.begin + shard;
  if (reduced_[index].defined() && shards_[index].parameter.grad().is_same(reduced_[index])) return;
  group.ready[shard] = true;
  for (size_t i = 0; i < group.ready.size(); ++i) {
    if (!group.ready[i] && shards_[group.begin + i].parameter.requires_grad()) return;
  }
  reduce(number);
  residency_->finish_backward(static_cast<int>(number));
}

void ShardedParameters::reduce(size_t number) {
  at::NoGradGuard no_grad;
  Group& group = reduced_together_[number];
  group.ready.assign(group.ready.size(), false);
  auto reduction = std::make_unique<Reduction>();
  for (size_t i = group.begin; i < group.end; ++i) {
    const Shard& each = shards_[i];
    if (each.parameter.grad().is_same(reduced_[i])) continue;
    if (!reduced_[i].defined()) reduced_[i] = ReducedGradient::make(each);
    const at::Tensor gradient = std::exchange(each.parameter.mutable_grad(), reduced_[i]);
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "the gradient of parameter \"", each.name,
                      "\" is sparse, but its shards need dense ones; turn `sparse` off");
    const int64_t part = padded_numel(each.parameter, groups_.shards->getSize());
    const int64_t numel = part * groups_.shards->getSize();
    const auto options = at::TensorOptions(gradient.device()).dtype(reduce_dtypes_[i]);
    at::Tensor elements = gradient.detach().contiguous().view({-1});
    if (elements.numel() != numel || elements.scalar_type() != reduce_dtypes_[i]) {
      elements = padded_to(elements, numel, options, MemoryKind::kReductionBuffer);
    }
    const double factor = division(reduce_dtypes_[i]).before;
    if (factor != 1) elements = elements.div(factor);
    note_memory(elements, MemoryKind::kReductionBuffer);
    reduction->whole.push_back(std::move(elements));
    reduction->reduced.push_back(flat(part, options, MemoryKind::kReductionBuffer));
    reduction->shards.push_back(i);
  }
  if (reduction->shards.empty()) return;
  advance_reductions();
  reduction->works =
      for_each_dtype(reduction->reduced, reduction->whole, [&](auto& outputs, auto& inputs) {
        return groups_.shards->reduce_scatter_tensor_coalesced(outputs, inputs);
      });
  scattering_ = std::move(reduction);
}

// Gloo has no mean, so sums are divided. Half precision reaches only 65504, so what is sent in it
// is divided in part before it is added up.
ShardedParameters::Division ShardedParameters::division(at::ScalarType dtype) const {
  const int ranks =
      groups_.shards->getSize() * (groups_.replicas ? groups_.replicas->getSize() : 1);
  const double factor = options_.gradient_divide_factor.value_or(ranks);
  if (dtype != at::kHalf) return {.before = 1, .after = factor};
  double before = 1;
  while (before * before < factor) before *= 2;
  return {.before = before, .after = factor / before};
}

// Each reduction goes one stage further: from the shards to the replicas, from there to gradients.
void ShardedParameters::advance_reductions() {
  at::NoGradGuard no_grad;
  if (const auto replicated = std::exchange(replicating_, nullptr)) {
    replicated->wait();
    add_to_gradients(*replicated);
  }
  auto scattered = std::exchange(scattering_, nullptr);
  if (scattered == nullptr) return;
  scattered->wait();
  if (groups_.replicas == nullptr) return add_to_gradients(*scattered);
  scattered->works =
      for_each_dtype(scattered->reduced, scattered->reduced, [&](auto& tensors, auto& /*same*/) {
        return groups_.replicas->allreduce_coalesced(tensors);
      });
  replicating_ = std::move(scattered);
}

void ShardedParameters::add_to_gradients(const Reduction& reduction) {
  std::vector<at::Tensor> means;
  for (size_t i = 0; i < reduction.shards.size(); ++i) {
    const size_t shard = reduction.shards[i];
    means.push_back(reduction.reduced[i]
                        .to(shards_[shard].shard.scalar_type())
                        .div_(division(reduce_dtypes_[shard]).after));
  }
  if (copies_stream_ != nullptr) return copy_to_host(reduction.shards, std::move(means));
  for (size_t i = 0; i < means.size(); ++i) add_to_gradient(reduction.shards[i], means[i]);
}

// `mean`: of the shard's gradients, padded.
void ShardedParameters::add_to_gradient(size_t shard, const at::Tensor& padded) {
  const Shard& each = shards_[shard];
  const at::Tensor mean =
      unpadded(padded, each.parameter, rows_of_rank(each.parameter)).variable_data();
  at::Tensor& gradient = each.shard.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(mean);
  } else {
    gradient = mean;
    note_memory(gradient, MemoryKind::kGradient);
  }
}

void ShardedParameters::copy_to_host(std::vector<size_t> shards, std::vector<at::Tensor> means) {
  finish_copies(/*count=*/1);
  HostCopy copy{.shards = std::move(shards), .on_device = std::move(means)};
  {
    const internal::SideStream::Scope scope(*copies_stream_);
    for (const at::Tensor& mean : copy.on_device) {
      copy.on_host.push_back(at::empty(mean.sizes(), shard_place().dtype(mean.scalar_type())));
      copy.on_host.back().copy_(mean, /*non_blocking=*/true);
    }
    copy.end.emplace(*copies_stream_);
  }
  copies_.push_back(std::move(copy));
}

// Until so many copies are left that go on beside the backward pass.
void ShardedParameters::finish_copies(size_t count) {
  while (copies_.size() > count) {
    HostCopy& copy = copies_.front();
    copy.end->wait();
    for (size_t i = 0; i < copy.shards.size(); ++i)
      add_to_gradient(copy.shards[i], copy.on_host[i]);
    copies_.erase(copies_.begin());
  }
}

void ShardedParameters::set_gradient(size_t shard, at::Tensor gradient) {
  const Shard& each = shards_[shard];
  each.shard.mutable_grad() = std::move(gradient);
  // A whole gradient that waits for its reduction stays.
  if (!each.shard.grad().defined()) return;
  reduced_[shard] = ReducedGradient::make(each);
  if (!each.parameter.grad().defined()) each.parameter.mutable_grad() = reduced_[shard];
}

void ShardedParameters::end_backward() {
  backward_.reset();
  // Passes need no begin_step where a graph is used again.
  for (size_t i = 0; i < shards_.size(); ++i) follow_zero_grad(i);
  // Groups with gradients that this pass, or earlier ones without synchronisation, have made in
  // part: the others are not used.
  for (size_t i = reduced_together_.size(); i-- > 0;) reduce(i);
  while (scattering_ != nullptr || replicating_ != nullptr) advance_reductions();
  finish_copies(/*count=*/0);
}

void ShardedParameters::begin_step() {
  for (size_t i = 0; i < reduced_together_.size(); ++i) watch_gradients(i);
  for (size_t i = 0; i < shards_.size(); ++i) follow_zero_grad(i);
  if (!backward_ || torch::autograd::get_current_graph_task_id() >= 0) return;
  backward_.reset();
  for (auto* reduction : {&scattering_, &replicating_}) {
    if (const auto failed = std::exchange(*reduction, nullptr)) failed->wait();
  }
  for (HostCopy& copy : copies_) copy.end->wait();
  copies_.clear();
  for (Group& group : reduced_together_) group.ready.assign(group.ready.size(), false);
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i].parameter.mutable_grad() = reduced_[i];
}

}  // namespace accelerate
