#include "accelerate/parallel/residency/sharded_gradients.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/residency/shard_memory.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"

namespace accelerate {

using internal::flat;
using internal::for_each_dtype;
using internal::padded_numel;
using internal::padded_to;
using internal::rows_of_rank;
using internal::shard_place;
using internal::unpadded;

namespace {

// Whether the backward pass that runs adds to the parameter's gradient. One of autograd::grad gives
// it to its caller instead.
bool is_accumulated(const at::Tensor& parameter) {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;
  const auto node = nodes->find(torch::autograd::impl::try_get_grad_accumulator(parameter).get());
  return node != nodes->end() && node->second.needed_;
}

// A gradient without values.
at::Tensor reduced_gradient(const ParameterShard& shard) {
  at::Tensor absent = make_refused(
      shard.parameter, shard.parameter.device(),
      absl::StrCat("uses the gradient of parameter \"", shard.name,
                   "\", which is divided among ranks: the Accelerator clips gradients, and "
                   "prepared optimizers reset them"));
  set_absent_text(absent, absl::StrCat("absent gradient of parameter \"", shard.name, "\""));
  return absent;
}

}  // namespace

class ShardedGradients::GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  // `first`: the parameter's own hook, which sees whole gradients; may be null.
  GradientHook(std::weak_ptr<ShardedGradients*> owner, size_t group, size_t shard,
               std::unique_ptr<PostAccumulateGradHook> first)
      : owner_(std::move(owner)), group_(group), shard_(shard), first_(std::move(first)) {}

  void operator()(const at::Tensor& parameter) override {
    if (first_ != nullptr) (*first_)(parameter);
    if (const auto owner = owner_.lock()) (*owner)->gradient_is_ready(group_, shard_);
  }

  bool is_of(const ShardedGradients& owner) const {
    const auto own = owner_.lock();
    return own != nullptr && *own == &owner;
  }

 private:
  const std::weak_ptr<ShardedGradients*> owner_;
  const size_t group_, shard_;
  const std::unique_ptr<PostAccumulateGradHook> first_;
};

// One group's gradients on their way.
struct ShardedGradients::Reduction {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  // Padded. Where ranks compare what they do, the last one says how many have departed.
  std::vector<at::Tensor> whole;
  std::vector<at::Tensor> reduced;
  std::vector<size_t> shards;  // kNoGradient: this rank lacks it
  const Group* group = nullptr;
  // Whether it goes to the replicas.
  bool all_reduces = true;

  static constexpr size_t kNoGradient = std::numeric_limits<size_t>::max();

  void wait() {
    for (const auto& work : std::exchange(works, {})) work->wait();
    whole.clear();
  }
};

// Gradients of shards on their way to the host.
struct ShardedGradients::HostCopy {
  std::vector<size_t> shards;
  std::vector<at::Tensor> on_device;  // padded
  std::vector<at::Tensor> on_host;    // padded
  std::optional<internal::SideStream::Mark> end;
};

// A number of a device that the host reads later, when it need not wait for it.
class ShardedGradients::DeferredNumber {
 public:
  // `tensor` has one element, and what computes it was given to the current stream before.
  explicit DeferredNumber(const at::Tensor& tensor)
      : value_(at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true))),
        done_(tensor.device().type()) {
    value_.copy_(tensor, /*non_blocking=*/true);
    done_.record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }

  // Waits for it.
  bool is_nonzero() const {
    done_.synchronize();
    return value_.is_nonzero();
  }

 private:
  const at::Tensor value_;
  c10::Event done_;
};

ShardedGradients::ShardedGradients(ShardGroups groups, c10::Device device,
                                   const ShardingOptions& options,
                                   std::shared_ptr<Residency> residency,
                                   std::shared_ptr<const StepComparison> comparison,
                                   std::shared_ptr<internal::SideStream> copies)
    : groups_(std::move(groups)),
      device_(device),
      options_(options),
      self_(std::make_shared<ShardedGradients*>(this)),
      residency_(std::move(residency)),
      comparison_(std::move(comparison)),
      copies_stream_(std::move(copies)) {}

ShardedGradients::~ShardedGradients() = default;

void ShardedGradients::add_group(const std::vector<ParameterShard>& shards,
                                 const std::vector<at::ScalarType>& reduce_dtypes,
                                 bool gradients_differ, bool on_host) {
  reduced_together_.push_back(
      {.begin = shards_.size(),
       .end = shards_.size() + shards.size(),
       .ready = std::vector<bool>(shards.size()),
       .purpose = absl::StrCat("gradients of ",
                               text_of_parameters(shards.front().name, shards.back().name)),
       .gradients_differ = gradients_differ,
       .on_host = on_host});
  shards_.insert(shards_.end(), shards.begin(), shards.end());
  reduce_dtypes_.insert(reduce_dtypes_.end(), reduce_dtypes.begin(), reduce_dtypes.end());
  reduced_.resize(shards_.size());
  partial_.resize(shards_.size());
  has_place_hook_.resize(shards_.size());
  sync_with_module(reduced_together_.size() - 1);
}

bool ShardedGradients::departed() const {
  return residency_->with_gradients().departed() || residency_->without_gradients().departed() ||
         reductions_.departed();
}

// Finds hooks that parameters were given, and which of them are trained.
void ShardedGradients::sync_with_module(size_t number) {
  const Group& group = reduced_together_[number];
  for (size_t i = group.begin; i < group.end; ++i) {
    const at::Tensor& parameter = shards_[i].parameter;
    const bool is_trained = parameter.requires_grad();
    if (shards_[i].shard.requires_grad() != is_trained) {
      shards_[i].shard.set_requires_grad(is_trained);
    }
    if (!is_trained) {
      partial_[i].reset();
      continue;
    }
    if (!has_place_hook_[i]) {
      has_place_hook_[i] = true;
      parameter.register_hook(
          [weak = std::weak_ptr<ShardedGradients*>(self_), i](const at::Tensor& /*gradient*/) {
            if (const auto alive = weak.lock()) (*alive)->make_place(i);
          });
    }
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
    const auto* ours = dynamic_cast<const GradientHook*>(hook.get());
    if (ours != nullptr && ours->is_of(*this)) continue;
    hook = std::make_unique<GradientHook>(self_, number, i - group.begin, std::move(hook));
  }
}

// Before a gradient is accumulated.
void ShardedGradients::make_place(size_t shard) {
  residency_->on_backward();
  if (!is_accumulated(shards_[shard].parameter)) return;
  sync_zero_grad(shard);
  at::Tensor& gradient = shards_[shard].parameter.mutable_grad();
  if (gradient.is_same(reduced_[shard])) gradient.reset();
}

// The module's zero_grad resets the parameter's gradient, and the shard's has to follow.
void ShardedGradients::sync_zero_grad(size_t shard) {
  const ParameterShard& each = shards_[shard];
  if (!reduced_[shard].defined() || each.parameter.grad().defined()) return;
  reduced_[shard].reset();
  partial_[shard].reset();
  each.shard.mutable_grad().reset();
}

// One that adds up with those of later passes does so in the dtype in which it is sent, but in fp16
// only if it is so already: it is divided before it is cast.
void ShardedGradients::store_whole_gradient(size_t shard) {
  at::Tensor& gradient = shards_[shard].parameter.mutable_grad();
  if (gradient.is_same(reduced_[shard]) || reduce_dtypes_[shard] == at::kHalf) return;
  gradient = gradient.to(reduce_dtypes_[shard]);
}

void ShardedGradients::gradient_is_ready(size_t number, size_t shard) {
  if (!synchronises_ || !reduced_together_[number].reduces) {
    return store_whole_gradient(reduced_together_[number].begin + shard);
  }
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward_ != backward) {
    backward_ = backward;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [weak = std::weak_ptr<ShardedGradients*>(self_)] {
          if (const auto alive = weak.lock()) (*alive)->end_backward();
        });
  }
  Group& group = reduced_together_[number];
  // A user's hook may call ours, which has then run already.
  const size_t index = group.begin + shard;
  if (reduced_[index].defined() && shards_[index].parameter.grad().is_same(reduced_[index])) return;
  group.ready[shard] = true;
  if (group.gradients_differ) return;
  for (size_t i = 0; i < group.ready.size(); ++i) {
    if (!group.ready[i] && shards_[group.begin + i].parameter.requires_grad()) return;
  }
  reduce(number);
  residency_->finish_backward(static_cast<int>(number));
}

// Which parameters of the group have gradients that are not reduced; returns whether any.
bool ShardedGradients::mark_gradients(size_t number) {
  Group& group = reduced_together_[number];
  group.marks_now.clear();
  bool any = false;
  for (size_t i = group.begin; i < group.end; ++i) {
    const at::Tensor& parameter = shards_[i].parameter;
    const bool has = !parameter.grad().is_same(reduced_[i]);
    any = any || has;
    group.marks_now.push_back(static_cast<char>(has ? GradientPresence::kHas
                                                : parameter.requires_grad()
                                                    ? GradientPresence::kLacks
                                                    : GradientPresence::kNotTrained));
  }
  return any;
}

bool ShardedGradients::has_partial_sums(const Group& group) const {
  return std::any_of(partial_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                     partial_.begin() + static_cast<std::ptrdiff_t>(group.end),
                     [](const at::Tensor& sum) { return sum.defined(); });
}

void ShardedGradients::record_reduction(size_t number) {
  Group& group = reduced_together_[number];
  if (reductions_.is_first()) compare_reduction(static_cast<int>(number));
  reductions_.use(static_cast<int>(number));
  if (group.marks == group.marks_now) return;
  if (!reductions_.is_first()) reductions_.depart(internal::crc32c(group.marks_now));
  group.marks = group.marks_now;
}

void ShardedGradients::compare_reduction(int group) {
  if (!comparison_) return;
  try {
    comparison_->compare_reduction(group, [this](int each) {
      mark_gradients(each);
      return reduced_together_[each].marks_now;
    });
  } catch (...) {
    reductions_ = UseTrace();  // all ranks begin anew
    throw;
  }
}

void ShardedGradients::reduce(size_t number) {
  at::NoGradGuard no_grad;
  Group& group = reduced_together_[number];
  group.ready.assign(group.ready.size(), false);
  if (!group.reduces) return;
  // Sums that wait for the replicas go there also from a pass without gradients of this group.
  if (!mark_gradients(number) && !(group.all_reduces && has_partial_sums(group))) return;
  record_reduction(number);
  auto reduction = std::make_unique<Reduction>();
  reduction->group = &group;
  reduction->all_reduces = group.all_reduces;
  std::vector<at::Tensor> parameters;  // where options_.before_reduction wants them
  std::string lacking;
  for (size_t i = group.begin; i < group.end; ++i) {
    const auto mark = static_cast<GradientPresence>(group.marks[i - group.begin]);
    if (mark == GradientPresence::kNotTrained) continue;
    const ParameterShard& each = shards_[i];
    const int64_t part = padded_numel(each.parameter, size_of(groups_.shards));
    const auto options = at::TensorOptions(device_).dtype(reduce_dtypes_[i]);
    if (mark == GradientPresence::kLacks) {
      absl::StrAppend(&lacking, lacking.empty() ? " without \"" : ", \"", each.name, "\"");
      reduction->whole.push_back(at::zeros({part * size_of(groups_.shards)}, options));
      reduction->shards.push_back(partial_[i].defined() ? i : Reduction::kNoGradient);
    } else {
      reduction->whole.push_back(extract_gradient(group, i, options));
      reduction->shards.push_back(i);
    }
    tag_memory(reduction->whole.back(), MemoryKind::kReductionBuffer);
    if (options_.before_reduction) parameters.push_back(each.parameter);
    reduction->reduced.push_back(flat(part, options, MemoryKind::kReductionBuffer));
    name_memory(reduction->whole.back(), each.name);
    name_memory(reduction->reduced.back(), each.name);
  }
  advance_reductions();
  const std::string with_lacking = lacking.empty() ? "" : group.purpose + lacking;
  const CollectivePurpose purpose(lacking.empty() ? group.purpose : with_lacking);
  if (options_.before_reduction) options_.before_reduction(parameters, reduction->whole);
  if (comparison_) {
    const at::TensorOptions options = reduction->whole.front().options();
    reduction->whole.push_back(at::full({size_of(groups_.shards)}, departed() ? 1 : 0, options));
    reduction->reduced.push_back(at::empty({1}, options));
  }
  if (groups_.shards == nullptr) {
    // The sum over one rank.
    for (size_t i = 0; i < reduction->whole.size(); ++i) {
      reduction->reduced[i].copy_(reduction->whole[i]);
    }
  } else {
    reduction->works =
        for_each_dtype(reduction->reduced, reduction->whole, [&](auto& outputs, auto& inputs) {
          return groups_.shards->reduce_scatter_tensor_coalesced(outputs, inputs);
        });
  }
  scattering_ = std::move(reduction);
}

// The parameter's whole gradient as it is sent, padded; the parameter has one without values
// then.
at::Tensor ShardedGradients::extract_gradient(const Group& group, size_t shard,
                                              at::TensorOptions options) {
  const ParameterShard& each = shards_[shard];
  if (!reduced_[shard].defined()) reduced_[shard] = reduced_gradient(each);
  const at::Tensor gradient = std::exchange(each.parameter.mutable_grad(), reduced_[shard]);
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "the gradient of parameter \"", each.name,
                    "\" is sparse, but its shards need dense ones; turn `sparse` off");
  const int64_t numel =
      padded_numel(each.parameter, size_of(groups_.shards)) * size_of(groups_.shards);
  at::Tensor elements = gradient.detach().contiguous().view({-1});
  const at::ScalarType dtype = reduce_dtypes_[shard];
  const double factor = division(group, dtype).before;
  if (dtype == at::kHalf && elements.scalar_type() != dtype && factor != 1) {
    // The quotient may be a number of fp16 where the gradient is beyond its largest one, and is
    // rounded once.
    at::Tensor sent = flat(numel, options, MemoryKind::kReductionBuffer);
    at::Tensor quotients = sent.narrow(0, 0, elements.numel());
    at::div_out(quotients, elements, at::scalar_tensor(factor, at::kDouble));
    sent.narrow(0, elements.numel(), numel - elements.numel()).zero_();
    return sent;
  }
  if (elements.numel() != numel || elements.scalar_type() != dtype) {
    elements = padded_to(elements, numel, options, MemoryKind::kReductionBuffer);
  }
  return factor == 1 ? elements : elements.div(factor);
}

// Gloo has no mean, so sums are divided. Half precision reaches only 65504, so what is sent in it
// is divided in part before it is added up.
ShardedGradients::Division ShardedGradients::division(const Group& group,
                                                      at::ScalarType dtype) const {
  const int ranks = size_of(groups_.shards) * size_of(groups_.replicas);
  const double factor =
      group.divide_factor.value_or(options_.gradient_divide_factor.value_or(ranks));
  double before = options_.gradient_predivide_factor;
  if (dtype != at::kHalf || before != 1) return {.before = before, .after = factor / before};
  while (before * before < factor) before *= 2;
  return {.before = before, .after = factor / before};
}

// Each reduction goes one stage further: from the shards to the replicas, from there to
// gradients.
void ShardedGradients::advance_reductions() {
  at::NoGradGuard no_grad;
  if (const auto replicated = std::exchange(replicating_, nullptr)) {
    replicated->wait();
    add_to_gradients(*replicated);
  }
  auto scattered = std::exchange(scattering_, nullptr);
  if (scattered == nullptr) return;
  scattered->wait();
  if (groups_.replicas == nullptr) return add_to_gradients(*scattered);
  if (!scattered->all_reduces) return store_partial_sums(*scattered);
  add_partial_sums(*scattered);
  const CollectivePurpose purpose(scattered->group->purpose);
  scattered->works =
      for_each_dtype(scattered->reduced, scattered->reduced, [&](auto& tensors, auto& /*same*/) {
        return groups_.replicas->allreduce_coalesced(tensors);
      });
  replicating_ = std::move(scattered);
}

// How many ranks have departed is said again by the reduction that goes to all.
void ShardedGradients::store_partial_sums(const Reduction& reduction) {
  for (size_t i = 0; i < reduction.shards.size(); ++i) {
    if (reduction.shards[i] == Reduction::kNoGradient) continue;
    at::Tensor& sum = partial_[reduction.shards[i]];
    if (sum.defined()) {
      sum.add_(reduction.reduced[i]);
    } else {
      sum = reduction.reduced[i];
      tag_memory(sum, MemoryKind::kGradient);
      name_memory(sum, shards_[reduction.shards[i]].name);
    }
  }
}

void ShardedGradients::add_partial_sums(Reduction& reduction) {
  for (size_t i = 0; i < reduction.shards.size(); ++i) {
    if (reduction.shards[i] == Reduction::kNoGradient) continue;
    const at::Tensor sum = std::exchange(partial_[reduction.shards[i]], {});
    if (sum.defined()) reduction.reduced[i].add_(sum);
  }
}

void ShardedGradients::add_to_gradients(const Reduction& reduction) {
  if (comparison_) {
    const at::Tensor& departed = reduction.reduced.back();
    departed_ = departed_.defined() ? departed_ + departed : departed;
  }
  std::vector<size_t> shards;
  std::vector<at::Tensor> means;
  for (size_t i = 0; i < reduction.shards.size(); ++i) {
    const size_t shard = reduction.shards[i];
    if (shard == Reduction::kNoGradient) continue;
    shards.push_back(shard);
    const at::Tensor& sum = reduction.reduced[i];
    const at::ScalarType dtype =
        options_.gradient_dtype.value_or(shards_[shard].shard.scalar_type());
    const double factor = division(*reduction.group, reduce_dtypes_[shard]).after;
    // A mean may be a number of fp16 where the sum is beyond its largest one.
    means.push_back(dtype == at::kHalf ? sum.div_(factor).to(dtype) : sum.to(dtype).div_(factor));
  }
  if (copies_stream_ != nullptr && reduction.group->on_host)
    return copy_to_host(std::move(shards), std::move(means));
  for (size_t i = 0; i < means.size(); ++i) add_to_gradient(shards[i], means[i]);
}

// `mean`: of the shard's gradients, padded.
void ShardedGradients::add_to_gradient(size_t shard, const at::Tensor& padded) {
  const ParameterShard& each = shards_[shard];
  const at::Tensor mean =
      unpadded(padded, each.parameter, rows_of_rank(each.parameter, groups_.shards))
          .variable_data();
  at::Tensor& gradient = each.shard.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(mean);
  } else {
    gradient = mean;
    tag_memory(gradient, MemoryKind::kGradient);
    name_memory(gradient, each.name);
  }
}

void ShardedGradients::copy_to_host(std::vector<size_t> shards, std::vector<at::Tensor> means) {
  finish_copies(/*count=*/1);
  HostCopy copy{.shards = std::move(shards), .on_device = std::move(means)};
  {
    const internal::SideStream::Scope scope(*copies_stream_);
    for (const at::Tensor& mean : copy.on_device) {
      copy.on_host.push_back(
          at::empty(mean.sizes(),
                    shard_place(options_, device_, /*on_host=*/true).dtype(mean.scalar_type())));
      copy.on_host.back().copy_(mean, /*non_blocking=*/true);
    }
    copy.end.emplace(*copies_stream_);
  }
  copies_.push_back(std::move(copy));
}

// Until so many copies are left that go on beside the backward pass.
void ShardedGradients::finish_copies(size_t count) {
  while (copies_.size() > count) {
    HostCopy& copy = copies_.front();
    copy.end->wait();
    for (size_t i = 0; i < copy.shards.size(); ++i)
      add_to_gradient(copy.shards[i], copy.on_host[i]);
    copies_.erase(copies_.begin());
  }
}

void ShardedGradients::set_gradient(size_t shard, at::Tensor gradient) {
  const ParameterShard& each = shards_[shard];
  each.shard.mutable_grad() = std::move(gradient);
  // A whole gradient that waits for its reduction stays.
  if (!each.shard.grad().defined()) return;
  reduced_[shard] = reduced_gradient(each);
  if (!each.parameter.grad().defined()) each.parameter.mutable_grad() = reduced_[shard];
}

// By the reductions of this pass, or of the one before where the host does not wait for this one's.
bool ShardedGradients::some_rank_departed() {
  const at::Tensor departed = std::exchange(departed_, {});
  if (!departed.defined()) return false;
  if (departed.is_cpu()) return departed.is_nonzero();
  const auto earlier = std::exchange(earlier_departed_, std::make_unique<DeferredNumber>(departed));
  return earlier != nullptr && earlier->is_nonzero();
}

// Gradients of zeros where this rank has made none.
void ShardedGradients::fill_gradients(const Group& group) {
  for (size_t i = group.begin; i < group.end; ++i) {
    const at::Tensor& parameter = shards_[i].parameter;
    if (!parameter.requires_grad()) continue;
    if (parameter.grad().defined() && !parameter.grad().is_same(reduced_[i])) continue;
    parameter.mutable_grad() =
        at::zeros(parameter.sizes(), at::TensorOptions(device_).dtype(parameter.scalar_type()));
  }
}

void ShardedGradients::end_backward() {
  backward_.reset();
  // Passes need no begin_step where a graph is used again.
  for (size_t i = 0; i < shards_.size(); ++i) sync_zero_grad(i);
  for (const Group& each : reduced_together_) {
    if (each.gradients_differ && each.reduces) fill_gradients(each);
  }
  // Groups with gradients that this pass, or earlier ones without synchronisation, have made in
  // part: the others are not used.
  for (size_t i = reduced_together_.size(); i-- > 0;) reduce(i);
  while (scattering_ != nullptr || replicating_ != nullptr) advance_reductions();
  finish_copies(/*count=*/0);
  if (reductions_.end()) compare_reduction(UseTrace::kNone);
  if (!some_rank_departed()) return;
  earlier_departed_.reset();
  comparison_->compare_steps(residency_->with_gradients(), residency_->without_gradients(),
                             reductions_,
                             [this](int each) { return reduced_together_[each].marks; });
}

void ShardedGradients::begin_step() {
  for (size_t i = 0; i < reduced_together_.size(); ++i) sync_with_module(i);
  for (size_t i = 0; i < shards_.size(); ++i) sync_zero_grad(i);
  if (torch::autograd::get_current_graph_task_id() >= 0) return;
  reductions_.begin_step();
  if (!backward_) return;
  // First everything is as without that pass, and then what is on its way may fail.
  backward_.reset();
  departed_.reset();
  for (Group& group : reduced_together_) group.ready.assign(group.ready.size(), false);
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i].parameter.mutable_grad() = reduced_[i];
  std::vector<HostCopy> copies = std::exchange(copies_, {});
  const auto scattering = std::exchange(scattering_, nullptr);
  const auto replicating = std::exchange(replicating_, nullptr);
  for (HostCopy& copy : copies) copy.end->wait();
  for (const auto* reduction : {&scattering, &replicating}) {
    if (*reduction != nullptr) (*reduction)->wait();
  }
}

}  // namespace accelerate
