#include "accelerate/parallel/residency/residency.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

constexpr size_t kGroupsInTurn = 2;

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

std::string on_this_rank() {
  const Runtime* runtime = Runtime::find_current();
  return runtime == nullptr ? "" : absl::StrCat(" on rank ", runtime->topology().rank);
}

// What sources do is not recorded by autograd and uses no managed parameters.
struct NoTrainingScope {
  const UnwatchedOperators unwatched;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
};

}  // namespace

class Residency::ManagedGroup final : public StorageOwner {
 public:
  ManagedGroup(Residency& residency, int number) : number(number), residency_(&residency) {}

  void acquire(const at::Tensor& tensor, const c10::OperatorHandle& op, bool writes) override {
    const char* const name = op.schema().name().c_str();
    TORCH_CHECK(residency_ != nullptr, name, " uses parameter \"", name_of(tensor), "\"",
                on_this_rank(), ", whose prepared model was freed: its values are gone");
    residency_->use(*this, tensor, name, writes);
    ++users;
  }
  void release() override { --users; }

  void manage(ManagedParameter parameter, c10::Device device) {
    const at::Tensor& tensor = parameter.tensor;
    const auto like = [&tensor](at::ScalarType dtype) {
      return dtype == tensor.scalar_type()
                 ? tensor
                 : at::empty(tensor.sizes(), at::TensorOptions(at::kMeta).dtype(dtype));
    };
    const std::string text = absl::StrCat("absent parameter \"", parameter.name, "\"");
    const at::ScalarType dtype = parameter.dtype.value_or(tensor.scalar_type());
    at::Tensor absent =
        make_absent(like(parameter.packed ? parameter.packed_dtype : dtype), device);
    set_absent_text(absent, text);
    at::Tensor shown = absent;
    if (parameter.packed) {
      // The packed tensor has the values in passes.
      shown = make_refused(
          like(dtype), device,
          absl::StrCat("uses parameter \"", parameter.name, "\"", on_this_rank(),
                       ", which is gathered in 8 bits for its Linear layer in fp8 alone; turn "
                       "enable_fsdp_float8_all_gather off, or use it in a full_parameters scope"));
      set_absent_text(shown, text);
      parameter.packed(absent);
    }
    if (tensor.is_meta()) {
      internal::rebind(tensor, shown);
    } else {
      tensor.set_data(shown);
    }
    storages_.push_back(absent.storage().unsafeGetStorageImpl());
    names_.push_back(parameter.name);
    parameters_.push_back({std::move(parameter), std::move(absent), std::move(shown)});
  }
  void set_source(std::unique_ptr<ParameterSource> source) { source_ = std::move(source); }

  void begin() {
    const NoTrainingScope guard;
    source_->begin();
  }
  void expect() {
    const NoTrainingScope guard;
    source_->expect();
  }
  void drop() {
    const NoTrainingScope guard;
    source_->drop();
  }
  void finish() {
    const NoTrainingScope guard;
    std::vector<c10::DataPtr> memory = source_->finish();
    TORCH_INTERNAL_ASSERT(memory.size() == parameters_.size());
    for (size_t i = 0; i < memory.size(); ++i) {
      parameters_[i].own.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
          std::move(memory[i]));
      name_memory(parameters_[i].own, names_[i]);
    }
    in_memory_ = true;
  }
  void free_values() {
    if (!std::exchange(in_memory_, false)) return;
    const NoTrainingScope guard;
    for (const Parameter& each : parameters_) {
      drop_memory(each.own.storage());
      if (!is_elsewhere_ && !each.has_own_memory()) each.tensor.set_data(each.shown);
    }
  }
  // The next pass of this step is a backward pass, which is about to need the values again.
  void save_for_backward() {
    if (!awaits_gradient) return;
    const NoTrainingScope guard;
    std::vector<at::Tensor> values;
    for (const Parameter& each : parameters_) values.push_back(each.own);
    source_->save_for_backward(values);
  }
  void drop_kept_for_backward() {
    if (std::exchange(awaits_gradient, false)) source_->drop_kept_for_backward();
  }
  // The parameters become tensors of the CPU with these values, and their own memory is freed.
  void move_to_host() {
    const NoTrainingScope guard;
    is_elsewhere_ = true;
    for (const Parameter& each : parameters_) {
      each.tensor.set_data(each.own.to(at::kCPU, each.own.scalar_type(), /*non_blocking=*/false,
                                       /*copy=*/true));
    }
    free_values();
  }
  // Brings the values as the source keeps them. With `shows` the parameters become tensors of
  // `device` that have them.
  void show_kept_values(c10::Device device, bool shows) {
    const NoTrainingScope guard;
    const std::vector<at::Tensor> values = source_->kept_values();
    if (!shows) return;
    is_elsewhere_ = true;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].kept_dtype = values[i].scalar_type();
      parameters_[i].tensor.set_data(values[i].to(device));
    }
  }
  void come_back() {
    const NoTrainingScope guard;
    if (!std::exchange(is_elsewhere_, false)) return;
    for (Parameter& each : parameters_) {
      each.kept_dtype.reset();
      each.tensor.set_data(each.shown);
    }
  }
  // Takes the values of parameters that were given other memory, as torch::load does, to their own.
  // Values on another device stay on that device, contiguous.
  void adopt() {
    const NoTrainingScope guard;
    for (const Parameter& each : parameters_) {
      if (each.has_own_memory()) continue;
      const at::ScalarType dtype = each.kept_dtype.value_or(each.own.scalar_type());
      TORCH_CHECK_VALUE(
          each.tensor.scalar_type() == dtype && each.tensor.sizes() == each.own.sizes(),
          "full_parameters: parameter \"", each.name, "\"", on_this_rank(),
          " was replaced by one of type ", each.tensor.scalar_type(), " and sizes ",
          each.tensor.sizes(), ", but those of a prepared model stay: ", dtype, " and ",
          each.own.sizes(), "; the scope's changes are dropped");
      if (is_elsewhere_) {
        each.tensor.set_data(each.tensor.contiguous());
      } else {
        each.own.copy_(each.tensor);
        each.tensor.set_data(each.own);
      }
    }
  }
  bool is_current() const { return source_->is_current(); }
  void set_writable(bool writable) { source_->set_writable(writable); }
  void check_store() const { source_->check_store(); }
  void store() {
    const NoTrainingScope guard;
    source_->store();
  }
  // The values are lost for code that holds the parameters longer than this. Their storages keep
  // the group, so it must not keep the parameters.
  void close() {
    free_values();
    residency_ = nullptr;
    source_.reset();
    parameters_.clear();
  }

  const std::string& name_of(const at::Tensor& tensor) const {
    const auto found = std::ranges::find(storages_, tensor.storage().unsafeGetStorageImpl());
    return names_.at(found - storages_.begin());
  }
  bool has_one_of(const std::vector<at::Tensor>& tensors) const {
    return std::ranges::any_of(parameters_, [&](const Parameter& own) {
      return std::ranges::any_of(
          tensors, [&](const at::Tensor& tensor) { return tensor.is_same(own.tensor); });
    });
  }
  bool in_memory() const { return in_memory_; }
  c10::Device device() const { return parameters_.front().own.device(); }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Parameter& each : parameters_) bytes += static_cast<int64_t>(each.own.nbytes());
    return bytes;
  }

  int64_t elements() const {
    int64_t elements = 0;
    for (const Parameter& each : parameters_) elements += each.own.numel();
    return elements;
  }

  const int number;      // among the Residency's groups
  int users = 0;         // operators that run, and scopes
  bool is_held = false;  // by unshard(), which counts as a user
  // Those that begin to be made when this one is used. Absent: the next one that is used.
  std::optional<std::vector<int>> ahead, ahead_in_backward;
  // A forward pass has used the values, and the backward pass that follows has not made their
  // gradients yet.
  bool awaits_gradient = false;
  Retention retention = Retention::kInTurn;
  Retention now = Retention::kInTurn;  // of the values in memory

  bool is_staying() const { return now != Retention::kInTurn; }

 private:
  struct Parameter : ManagedParameter {
    at::Tensor own;    // has the storage that is managed
    at::Tensor shown;  // what the parameter is while it is managed: `own`, unless that is packed
    std::optional<at::ScalarType> kept_dtype = std::nullopt;  // of values that are elsewhere

    bool has_own_memory() const { return tensor.has_storage() && tensor.is_alias_of(shown); }
  };

  Residency* residency_;  // null once it is gone
  std::vector<Parameter> parameters_;
  // By parameter; they stay for messages.
  std::vector<const c10::StorageImpl*> storages_;
  std::vector<std::string> names_;
  std::unique_ptr<ParameterSource> source_;
  bool in_memory_ = false;
  bool is_elsewhere_ = false;  // in other tensors than the managed ones
};

void ParameterSource::store() {
  TORCH_INTERNAL_ASSERT(false, "the source of a group in a scope that writes back takes no values");
}

std::vector<at::Tensor> ParameterSource::kept_values() {
  TORCH_INTERNAL_ASSERT(false, "the source of a group with `shows_copies` has none");
}

Residency::Residency(Options options) : options_(std::move(options)) {}

Residency::~Residency() {
  cancel_prefetched();
  for (const auto& group : groups_) group->close();
}

void Residency::add(Group group, c10::Device device) {
  const NoTrainingScope guard;
  auto managed = c10::make_intrusive<ManagedGroup>(*this, static_cast<int>(groups_.size()));
  for (ManagedParameter& each : group.parameters) managed->manage(std::move(each), device);
  managed->set_source(std::move(group.source));
  managed->retention = group.retention;
  shows_copies_ = shows_copies_ || group.shows_copies;
  groups_.push_back(std::move(managed));
}

void Residency::use(ManagedGroup& group, const at::Tensor& tensor, const char* op, bool writes) {
  const int backward = current_backward();
  TORCH_CHECK(
      passes_ > 0 || backward >= 0 || group.is_held, op, " uses parameter \"",
      group.name_of(tensor), "\"", on_this_rank(),
      " outside of a forward or backward pass of its prepared or dispatched model, where its "
      "values are not in memory; use it inside the model's forward, or in a scope of "
      "full_parameters or, if it was dispatched, of align_module_device");
  TORCH_CHECK(
      !writes || *writers_ > 0, op, " writes to parameter \"", group.name_of(tensor), "\"",
      on_this_rank(),
      ", whose memory holds a copy that is dropped after the pass; change it in a "
      "full_parameters scope with writeback, or, if it was dispatched, where its values are "
      "kept");
  if (backward >= 0) on_backward();
  if (in_memory_.empty() || in_memory_.back() != &group || group.is_held) change_to(group);
}

void Residency::on_backward() {
  const int backward = current_backward();
  if (backward < 0) return;
  TORCH_CHECK_VALUE(!values_are_away_, "full_parameters", on_this_rank(),
                    " with rank0_only or offload_to_cpu, or of a model that computes in another "
                    "dtype than its shards have: the model makes no backward passes inside");
  if (!backwards_.empty() && backwards_.back() == backward) return;
  release_after_backward(backward);
  renew();
}

// The trace that the running step is compared with; null outside of passes.
UseTrace* Residency::trace() {
  if (current_backward() >= 0) return &with_gradients_;
  return passes_ == whole_ ? nullptr : &pass_trace();
}

void Residency::change_to(ManagedGroup& group) {
  UseTrace* const trace = this->trace();
  if (trace != nullptr && trace->is_first()) compare_use(*trace, group.number);
  const bool expected = trace == nullptr || trace->use(group.number);
  if (!expected) cancel_prefetched();
  if (!group.in_memory()) gather(group);
  // The last one in the list is the one that was used last.
  in_memory_.erase(std::ranges::find(in_memory_, &group));
  in_memory_.push_back(&group);
  if (trace == nullptr) return;
  end_hold(group);
  const bool in_backward = current_backward() >= 0;
  const bool ahead = in_backward ? options_.prefetch_in_backward == GatherAhead::kBeforeGradient
                                 : options_.prefetch;
  const auto& listed = in_backward ? group.ahead_in_backward : group.ahead;
  ++group.users;
  const absl::Cleanup end = [&group] { --group.users; };
  if (listed) return prefetch_listed(*listed);
  if (ahead) prefetch(trace->next());
  expect(*trace, ahead ? 1 : 0);
}

// How long values that are brought now stay.
Retention Residency::stay_now(const ManagedGroup& group) {
  const bool has_gradients = has_gradients_ || current_backward() >= 0;
  if (group.retention == Retention::kWhileCurrent) return group.retention;
  if (group.retention == Retention::kUntilGradient) {
    return has_gradients ? group.retention : Retention::kInTurn;
  }
  if (options_.max_reuse_distance == 0) return Retention::kInTurn;
  const UseTrace* const trace = this->trace();
  const auto between = trace != nullptr ? trace->until_reuse(group.number) : std::nullopt;
  if (!between) return Retention::kInTurn;
  int64_t distance = 0, live = group.elements();
  for (const int other : *between) distance += groups_[other]->elements();
  for (const ManagedGroup* other : in_memory_) live += other->elements();
  return distance <= options_.max_reuse_distance && live <= options_.max_live
             ? Retention::kUntilGradient
             : Retention::kInTurn;
}

void Residency::gather(ManagedGroup& group) {
  group.now = stay_now(group);
  if (current_backward() < 0 && passes_ > whole_ && has_gradients_) group.awaits_gradient = true;
  if (std::erase(coming_, &group) == 0) {
    if (!group.is_staying()) release_until(kGroupsInTurn - 1);
    group.begin();
  }
  group.finish();
  in_memory_.push_back(&group);
  ++times_brought_;
}

// Lets go of the least recently used groups that no running operator uses, until `count` are left
// of those that do not stay.
void Residency::release_until(size_t count) {
  size_t in_turn = std::ranges::count(in_memory_, Retention::kInTurn, &ManagedGroup::now);
  for (size_t i = 0; i < in_memory_.size() && in_turn > count;) {
    ManagedGroup& group = *in_memory_[i];
    if (group.is_staying() || group.users > 0) {
      ++i;
      continue;
    }
    group.save_for_backward();
    group.free_values();
    in_memory_.erase(in_memory_.begin() + static_cast<std::ptrdiff_t>(i));
    --in_turn;
  }
}

void Residency::drop_kept_for_backward() {
  for (const auto& group : groups_) group->drop_kept_for_backward();
}

// Lets go of all groups that no running operator uses; of those that stay while they are current
// only with `all`.
void Residency::release_in_memory(bool all) {
  std::erase_if(in_memory_, [all](ManagedGroup* group) {
    if (group->users > 0 || (group->now == Retention::kWhileCurrent && !all)) return false;
    group->free_values();
    return true;
  });
}

void Residency::finish_backward(int number) {
  ManagedGroup& group = *groups_[number];
  group.drop_kept_for_backward();
  if (group.in_memory() && group.now == Retention::kUntilGradient && group.users == 0) {
    group.free_values();
    in_memory_.erase(std::ranges::find(in_memory_, &group));
  }
  if (options_.prefetch_in_backward != GatherAhead::kAfterGradient || group.ahead_in_backward) {
    return;
  }
  if (UseTrace* const trace = this->trace()) prefetch(trace->next());
}

void Residency::set_retention(int number, Retention retention) {
  ManagedGroup& group = *groups_.at(number);
  group.retention = retention;
  if (group.now == Retention::kWhileCurrent) group.now = retention;
}

// Begins to make the values of the group that is used after the one in use.
void Residency::prefetch(int next) {
  if (next == UseTrace::kNone || !coming_.empty() || groups_[next]->in_memory()) return;
  if (stay_now(*groups_[next]) == Retention::kInTurn) {
    release_until(1);
    const auto in_turn = std::ranges::count(in_memory_, Retention::kInTurn, &ManagedGroup::now);
    if (in_turn >= static_cast<std::ptrdiff_t>(kGroupsInTurn)) return;
  }
  groups_[next]->begin();
  coming_.push_back(groups_[next].get());
}

// As many at a time as a program asks for.
void Residency::prefetch_listed(const std::vector<int>& groups) {
  for (const int number : groups) {
    ManagedGroup* const group = groups_[number].get();
    if (group->in_memory() || std::ranges::count(coming_, group) > 0) continue;
    release_until(1);
    group->begin();
    coming_.push_back(group);
  }
}

// Tells the group that is used so many uses after the next one, or first in the next step.
void Residency::expect(const UseTrace& trace, size_t after) {
  int later = trace.next(after);
  if (later == UseTrace::kNone) later = trace.first();
  if (later != UseTrace::kNone && !groups_[later]->in_memory()) groups_[later]->expect();
}

void Residency::set_ahead(int number, bool in_backward, std::vector<int> groups) {
  ManagedGroup& group = *groups_.at(number);
  (in_backward ? group.ahead_in_backward : group.ahead) = std::move(groups);
}

void Residency::unshard(int number) {
  TORCH_CHECK_VALUE(passes_ == 0 && !values_are_away_ && current_backward() < 0, "unshard",
                    on_this_rank(),
                    ": inside of a pass or a full_parameters scope parameters are in memory when "
                    "they are used; call it outside");
  renew();
  ManagedGroup& group = *groups_.at(number);
  if (group.is_held) return;
  cancel_prefetched();
  if (!group.in_memory()) gather(group);
  group.is_held = true;
  ++group.users;
}

void Residency::end_hold(ManagedGroup& group) {
  if (std::exchange(group.is_held, false)) --group.users;
}

void Residency::reshard(int number) {
  ManagedGroup& group = *groups_.at(number);
  end_hold(group);
  if (!group.in_memory() || group.users > 0) return;
  group.free_values();
  in_memory_.erase(std::ranges::find(in_memory_, &group));
}

void Residency::cancel_prefetched() {
  for (ManagedGroup* const group : std::exchange(coming_, {})) group->drop();
}

// Values that were made before their source changed.
void Residency::renew() {
  if (!std::ranges::all_of(coming_, &ManagedGroup::is_current)) cancel_prefetched();
  for (size_t i = 0; i < in_memory_.size();) {
    ManagedGroup& group = *in_memory_[i];
    if (group.users == 0 && !group.is_current()) {
      group.free_values();
      in_memory_.erase(in_memory_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    // A scope uses it, or it is held. With writeback a scope's end refuses what has changed.
    const bool is_used = group.is_held || (whole_ > 0 && *writers_ == 0);
    if (is_used && !group.is_current()) {
      group.begin();
      group.finish();
      ++times_brought_;
    }
    ++i;
  }
}

void Residency::compare_use(UseTrace& trace, int next) {
  if (!options_.compare_use) return;
  const NoTrainingScope guard;
  try {
    options_.compare_use(next);
  } catch (...) {
    trace = UseTrace();  // all ranks begin anew
    throw;
  }
}

void Residency::end_step(UseTrace& trace) {
  if (trace.end()) compare_use(trace, UseTrace::kNone);
}

// At the end of the outermost one: a recomputation may run a backward pass inside of another one.
void Residency::release_after_backward(int backward) {
  backwards_.push_back(backward);
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), backward] {
    const auto alive = weak.lock();
    if (alive == nullptr) return;
    // Those behind it were inside of it, and have failed.
    auto& running = alive->backwards_;
    running.erase(std::ranges::find(running, backward), running.end());
    if (!running.empty()) return;
    alive->drop_kept_for_backward();
    alive->release_all();
    alive->end_step(alive->with_gradients_);
  });
}

void Residency::release_all() {
  cancel_prefetched();
  release_in_memory();
}

int64_t Residency::bytes_in_memory() const {
  int64_t bytes = 0;
  for (const ManagedGroup* group : in_memory_) bytes += group->bytes();
  return bytes;
}

Residency::Pass::Pass(Residency& residency)
    : residency_(residency), exceptions_(std::uncaught_exceptions()) {
  TORCH_CHECK_VALUE(!residency_.values_are_away_, "full_parameters", on_this_rank(),
                    " with rank0_only or offload_to_cpu, or of a model that computes in another "
                    "dtype than its shards have: the model makes no passes inside");
  if (residency_.passes_ <= residency_.whole_ && current_backward() < 0) {
    residency_.backwards_.clear();
    // Those of an earlier pass that no backward pass followed.
    residency_.drop_kept_for_backward();
    residency_.release_all();
    residency_.renew();
    residency_.has_gradients_ = at::GradMode::is_enabled();
    residency_.pass_trace().begin_step();
  }
  ++residency_.passes_;
}

Residency::Pass::~Pass() noexcept(false) {
  const bool failed = std::uncaught_exceptions() > exceptions_;
  if (--residency_.passes_ > residency_.whole_ || current_backward() >= 0) return;
  // The last groups are the first ones that a backward pass needs.
  // What is on its way is dropped by the next pass, which can wait for it.
  if (failed) {
    residency_.drop_kept_for_backward();
    residency_.release_in_memory();
  } else if (!residency_.has_gradients_ || !expects_backward_) {
    residency_.drop_kept_for_backward();
    residency_.release_all();
    residency_.end_step(residency_.pass_trace());
  }
}

WholeParameters::WholeParameters(std::shared_ptr<Residency> residency,
                                 WholeParametersOptions options)
    : residency_(std::move(residency)),
      options_(options),
      in_place_(!options.offload_to_cpu && (!options.rank0_only || Runtime::is_on_first_rank()) &&
                residency_ != nullptr && !residency_->shows_copies_),
      exceptions_(std::uncaught_exceptions()) {
  TORCH_CHECK_VALUE(!options_.rank0_only || !options_.writeback,
                    "full_parameters: rank0_only needs writeback = false, because the other ranks "
                    "have no values that could be written back");
  if (residency_ == nullptr) return;
  TORCH_CHECK_VALUE(!residency_->values_are_away_ && (allows_passes() || residency_->passes_ == 0),
                    "full_parameters", on_this_rank(),
                    " with rank0_only or offload_to_cpu, or of a model that computes in another "
                    "dtype than its shards have, cannot be inside of a pass or another scope, nor "
                    "around one");
  for (const auto& group : residency_->groups_) {
    residency_->end_hold(*group);
    if (options_.only.empty() || group->has_one_of(options_.only)) groups_.push_back(group.get());
  }
  residency_->release_all();
  residency_->renew();
  residency_->values_are_away_ = !allows_passes();
  residency_->passes_ += in_place_;
  residency_->whole_ += in_place_;
  if (options_.writeback && ++*residency_->writers_ == 1) set_writable(true);
  try {
    gather();
  } catch (...) {
    end();
    throw;
  }
}

void WholeParameters::set_writable(bool writable) {
  for (Residency::ManagedGroup* group : groups_) group->set_writable(writable);
}

void WholeParameters::gather() {
  const bool shows = !options_.rank0_only || Runtime::is_on_first_rank();
  for (Residency::ManagedGroup* group : groups_) {
    if (residency_->shows_copies_) {
      group->show_kept_values(options_.offload_to_cpu ? c10::Device(at::kCPU) : group->device(),
                              shows);
      continue;
    }
    if (!group->in_memory()) residency_->gather(*group);
    if (in_place_) {
      ++group->users;
      ++held_;
    } else {
      if (shows) group->move_to_host();
      residency_->release_in_memory(/*all=*/true);
    }
  }
}

WholeParameters::~WholeParameters() noexcept(false) {
  if (residency_ == nullptr) return;
  try {
    if (options_.writeback && std::uncaught_exceptions() == exceptions_) write_back();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void WholeParameters::write_back() {
  // All of them first, so that nothing is stored where one is refused.
  for (Residency::ManagedGroup* group : groups_) group->adopt();
  for (Residency::ManagedGroup* group : groups_) group->check_store();
  for (Residency::ManagedGroup* group : groups_) group->store();
}

void WholeParameters::end() {
  for (size_t i = 0; i < held_; ++i) --groups_[i]->users;
  for (Residency::ManagedGroup* group : groups_) group->come_back();
  residency_->values_are_away_ = false;
  residency_->passes_ -= in_place_;
  residency_->whole_ -= in_place_;
  if (options_.writeback && --*residency_->writers_ == 0) set_writable(false);
  residency_->cancel_prefetched();
  // Where the scope could be written to, values in memory may differ from those of the sources.
  residency_->release_in_memory(/*all=*/options_.writeback);
}

}  // namespace accelerate
