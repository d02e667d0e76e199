#include "accelerate/parallel/residency/residency.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "absl/strings/str_cat.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

constexpr int64_t kGroupsInMemory = 2;

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

std::string on_this_rank() {
  const Runtime* runtime = Runtime::find_current();
  return runtime == nullptr ? "" : absl::StrCat(" on rank ", runtime->topology().rank);
}

// What sources do is not recorded by autograd and uses no managed parameters.
struct OutsideOfTraining {
  const UnwatchedOperators unwatched;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
};

}  // namespace

class Residency::ManagedGroup final : public StorageOwner {
 public:
  explicit ManagedGroup(Residency& residency) : residency_(&residency) {}

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
    at::Tensor absent = make_absent(tensor, device);
    tensor.set_data(absent);
    storages_.push_back(absent.storage().unsafeGetStorageImpl());
    names_.push_back(parameter.name);
    parameters_.push_back({std::move(parameter), std::move(absent)});
  }
  void set_source(std::unique_ptr<ParameterSource> source) { source_ = std::move(source); }

  void bring() {
    const OutsideOfTraining guard;
    source_->begin();
    std::vector<c10::DataPtr> memory = source_->finish();
    TORCH_INTERNAL_ASSERT(memory.size() == parameters_.size());
    for (size_t i = 0; i < memory.size(); ++i) {
      parameters_[i].own.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
          std::move(memory[i]));
    }
    in_memory_ = true;
  }
  void let_go() {
    if (!std::exchange(in_memory_, false)) return;
    const OutsideOfTraining guard;
    for (const Parameter& each : parameters_) {
      drop_memory(each.own.storage());
      if (!on_host_ && !each.has_own_memory()) each.tensor.set_data(each.own);
    }
  }
  // The parameters become tensors of the CPU with these values, and their own memory is freed.
  void move_to_host() {
    const OutsideOfTraining guard;
    on_host_ = true;
    for (const Parameter& each : parameters_) {
      each.tensor.set_data(each.own.to(at::kCPU, each.own.scalar_type(), /*non_blocking=*/false,
                                       /*copy=*/true));
    }
    let_go();
  }
  void leave_host() {
    const OutsideOfTraining guard;
    if (!std::exchange(on_host_, false)) return;
    for (const Parameter& each : parameters_) each.tensor.set_data(each.own);
  }
  // Takes the values of parameters that were given other memory, as torch::load does, to their own.
  // Those of the host stay there, contiguous.
  void adopt() {
    const OutsideOfTraining guard;
    for (const Parameter& each : parameters_) {
      if (each.has_own_memory()) continue;
      TORCH_CHECK_VALUE(each.tensor.scalar_type() == each.own.scalar_type() &&
                            each.tensor.sizes() == each.own.sizes(),
                        "full_parameters: parameter \"", each.name, "\"", on_this_rank(),
                        " was replaced by one of type ", each.tensor.scalar_type(), " and sizes ",
                        each.tensor.sizes(),
                        ", but those of a prepared model stay: ", each.own.scalar_type(), " and ",
                        each.own.sizes(), "; the scope's changes are dropped");
      if (on_host_) {
        each.tensor.set_data(each.tensor.contiguous());
      } else {
        each.own.copy_(each.tensor);
        each.tensor.set_data(each.own);
      }
    }
  }
  void check_store() const { source_->check_store(); }
  void store() {
    const OutsideOfTraining guard;
    source_->store();
  }
  // The values are lost for code that holds the parameters longer than this. Their storages keep
  // the group, so it must not keep the parameters.
  void close() {
    let_go();
    residency_ = nullptr;
    source_.reset();
    parameters_.clear();
  }

  const std::string& name_of(const at::Tensor& tensor) const {
    const auto found = std::ranges::find(storages_, tensor.storage().unsafeGetStorageImpl());
    return names_.at(found - storages_.begin());
  }
  bool in_memory() const { return in_memory_; }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Parameter& each : parameters_) bytes += static_cast<int64_t>(each.own.nbytes());
    return bytes;
  }

  int users = 0;           // operators that run, and scopes
  uint64_t last_used = 0;  // by the Residency's clock

 private:
  struct Parameter : ManagedParameter {
    at::Tensor own;  // has the storage that is managed

    bool has_own_memory() const { return tensor.has_storage() && tensor.is_alias_of(own); }
  };

  Residency* residency_;  // null once it is gone
  std::vector<Parameter> parameters_;
  // By parameter; they stay for messages.
  std::vector<const c10::StorageImpl*> storages_;
  std::vector<std::string> names_;
  std::unique_ptr<ParameterSource> source_;
  bool in_memory_ = false;
  bool on_host_ = false;
};

Residency::Residency() = default;

Residency::~Residency() {
  for (const auto& group : groups_) group->close();
}

void Residency::add(Group group, c10::Device device) {
  const OutsideOfTraining guard;
  auto managed = c10::make_intrusive<ManagedGroup>(*this);
  for (ManagedParameter& each : group.parameters) managed->manage(std::move(each), device);
  managed->set_source(std::move(group.source));
  groups_.push_back(std::move(managed));
}

void Residency::use(ManagedGroup& group, const at::Tensor& tensor, const char* op, bool writes) {
  const int backward = current_backward();
  TORCH_CHECK(passes_ > 0 || backward >= 0, op, " uses parameter \"", group.name_of(tensor), "\"",
              on_this_rank(),
              " outside of a forward or backward pass of its prepared model, where its values are "
              "not in memory; use it inside the model's forward, or in a full_parameters scope");
  TORCH_CHECK(!writes || *writers_ > 0, op, " writes to parameter \"", group.name_of(tensor), "\"",
              on_this_rank(),
              ", whose memory holds a copy that is dropped after the pass; change it in a "
              "full_parameters scope with writeback");
  group.last_used = ++clock_;
  if (backward >= 0 && backward != last_backward_) release_after_backward();
  if (!group.in_memory()) bring(group);
}

void Residency::bring(ManagedGroup& group) {
  for (;;) {
    ManagedGroup* oldest = nullptr;
    int64_t in_memory = 0;
    for (const auto& each : groups_) {
      if (!each->in_memory()) continue;
      ++in_memory;
      const bool is_older = oldest == nullptr || each->last_used < oldest->last_used;
      if (each->users == 0 && is_older) oldest = each.get();
    }
    if (in_memory < kGroupsInMemory || oldest == nullptr) break;
    oldest->let_go();
  }
  group.bring();
  ++times_brought_;
}

void Residency::release_after_backward() {
  last_backward_ = current_backward();
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->release_all();
  });
}

void Residency::release_all() {
  for (const auto& group : groups_) {
    if (group->users == 0) group->let_go();
  }
}

int64_t Residency::bytes_in_memory() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) bytes += group->in_memory() ? group->bytes() : 0;
  return bytes;
}

Residency::Pass::Pass(Residency& residency)
    : residency_(residency), exceptions_(std::uncaught_exceptions()) {
  TORCH_CHECK_VALUE(!residency_.values_are_away_, "full_parameters", on_this_rank(),
                    " with rank0_only or offload_to_cpu: the model makes no passes inside");
  // The values may have changed since an earlier pass that no backward pass followed.
  if (residency_.passes_++ == 0 && current_backward() < 0) residency_.release_all();
}

Residency::Pass::~Pass() {
  const bool failed = std::uncaught_exceptions() > exceptions_;
  if (--residency_.passes_ > 0 || current_backward() >= 0) return;
  // The last groups are the first ones that a backward pass needs.
  if (failed || !at::GradMode::is_enabled()) residency_.release_all();
}

WholeParameters::WholeParameters(std::shared_ptr<Residency> residency,
                                 WholeParametersOptions options)
    : residency_(std::move(residency)), options_(options), exceptions_(std::uncaught_exceptions()) {
  if (residency_ == nullptr) return;
  TORCH_CHECK_VALUE(
      !residency_->values_are_away_ && (options_.in_place() || residency_->passes_ == 0),
      "full_parameters", on_this_rank(),
      " with rank0_only or offload_to_cpu is no scope inside of a pass or another scope, nor "
      "around "
      "one");
  residency_->release_all();
  residency_->values_are_away_ = !options_.in_place();
  residency_->passes_ += options_.in_place();
  *residency_->writers_ += options_.writeback;
  try {
    bring();
  } catch (...) {
    end();
    throw;
  }
}

void WholeParameters::bring() {
  for (const auto& group : residency_->groups_) {
    if (!group->in_memory()) residency_->bring(*group);
    if (options_.in_place()) {
      ++group->users;
      ++held_;
    } else if (options_.this_rank) {
      group->move_to_host();
    } else {
      group->let_go();
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
  for (const auto& group : residency_->groups_) group->adopt();
  for (const auto& group : residency_->groups_) group->check_store();
  for (const auto& group : residency_->groups_) group->store();
}

void WholeParameters::end() {
  for (size_t i = 0; i < held_; ++i) --residency_->groups_[i]->users;
  for (const auto& group : residency_->groups_) group->leave_host();
  residency_->values_are_away_ = false;
  residency_->passes_ -= options_.in_place();
  *residency_->writers_ -= options_.writeback;
  residency_->release_all();
}

}  // namespace accelerate
