/// A user's model after `Accelerator::prepare`.
///
/// The module itself is untouched: `model->parameters()`, `model->train()` and its other members
/// are reached through `->`. Calls go through `model(input)` (or `model.forward(input)`), which
/// runs the model's techniques (see technique.h); a call of the bare module is local to the rank
/// and synchronises nothing. A PreparedModel is a handle: copies are the same model.
/// Errors: c10::Error for a handle that was reset.
/// Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "accelerate/base/access.h"
#include "accelerate/forward/forward_call.h"
#include "accelerate/forward/technique.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class ModelLayout;
struct RankRoles;
struct ZeroConfig;

/// Where the parts of a prepared model's tensors are.
struct ModelPlacements {
  struct Entry {
    const TensorPlacement* placement = nullptr;  ///< of the layout
    bool counts = true;                          ///< see TrainedParameter
  };
  /// Null for a model that was not prepared.
  std::shared_ptr<const ModelLayout> layout = nullptr;
  /// The same before rows are divided; null: the module has all of the model.
  std::shared_ptr<const ModelLayout> cuts = nullptr;
  std::unordered_map<std::string, Entry> by_name = {};
  /// Whether the module has parts of the model's tensors, before rows are divided.
  bool is_cut = false;
  /// This rank among those of the layout.
  int rank = 0;
  /// What its groups were for when the model was prepared; null where `layout` is.
  std::shared_ptr<const RankRoles> roles = nullptr;
  /// The ranks that divide rows, and those that together have each element of the model; null for
  /// one.
  c10::intrusive_ptr<c10d::ProcessGroup> shards = nullptr;
  c10::intrusive_ptr<c10d::ProcessGroup> norm = nullptr;
};

/// The module's parameters with what optimizers train where it has these techniques: themselves, or
/// other tensors in their place, and the ranks that divide the rows of these.
std::vector<TrainedParameter> trained_under(const Techniques& techniques,
                                            const torch::nn::Module& module);

/// The part of a prepared model that does not depend on its type.
class ModelState {
 public:
  explicit ModelState(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

  const Techniques& techniques() const { return techniques_; }
  void set_techniques(Techniques techniques);
  /// `outer`: how many of the techniques surround the new one.
  void insert_technique(size_t outer, std::unique_ptr<Technique> technique);

  /// The technique of type T; null if the model has none.
  template <typename T>
  T* find_technique() const {
    return accelerate::find_technique<T>(techniques_);
  }

  /// Appends the counts of the techniques that synchronise gradients.
  void add_no_sync_counts(NoSyncScope::Counts& counts) const {
    for (const std::unique_ptr<Technique>& technique : techniques_) {
      if (NoSyncCount count = technique->no_sync_count()) counts.push_back(std::move(count));
    }
  }
  /// Appends the techniques that a JoinScope takes in.
  void add_joinables(std::vector<Joinable*>& joinables) const {
    for (const std::unique_ptr<Technique>& technique : techniques_) {
      if (Joinable* joinable = technique->joinable()) joinables.push_back(joinable);
    }
  }
  /// See Technique::trigger_sync_in_backward.
  void trigger_sync_in_backward() const {
    for (const std::unique_ptr<Technique>& technique : techniques_) {
      technique->trigger_sync_in_backward();
    }
  }

  /// See Technique::check_reads.
  void check_reads() const {
    for (const std::unique_ptr<Technique>& technique : techniques_) technique->check_reads();
  }

  const ModelPlacements& placements() const { return placements_; }
  void set_placements(ModelPlacements placements);

  /// The module's parameters with the tensors that optimizers train: themselves, or their shards.
  std::vector<TrainedParameter> trained() const;
  /// Which of them has the tensor as its parameter, or as what is trained; null for another tensor,
  /// and for a model that is not divided. Nothing is allocated.
  const TrainedParameter* find_divided(const at::Tensor& tensor) const;
  /// Whether optimizers train other tensors in place of the module's parameters: rows of them, or
  /// tensors in other places.
  bool trains_other_tensors() const { return in_place_ != nullptr; }
  /// The same, or the module has parts of the model's parameters.
  bool is_divided() const { return placements_.is_cut || trains_other_tensors(); }
  /// What a technique trains in place of the parameters; null: nothing.
  const TrainedInPlace* in_place() const { return in_place_; }

  /// That of the technique which computes layers in fp8; null without such a technique.
  const Fp8Report* fp8_report() const;

  /// The configuration of ZeRO by which it was prepared; null: none.
  std::shared_ptr<const ZeroConfig> zero;
  /// Whether it was prepared to be trained.
  bool is_trained = false;
  /// Set while an optimizer that steps during the backward pass reduces this model's gradients.
  std::unique_ptr<NoSyncScope> reduced_by_optimizer;

 private:
  // To be called when techniques or placements have changed.
  void find_trained();
  std::vector<TrainedParameter> trained_now() const;

  const std::shared_ptr<torch::nn::Module> module_;
  Techniques techniques_;
  ModelPlacements placements_;
  const TrainedInPlace* in_place_ = nullptr;
  // What is trained of a model that is divided; by parameters and by trained tensors.
  std::vector<TrainedParameter> divided_;
  std::unordered_map<const at::TensorImpl*, size_t> by_tensor_;
};

namespace internal {

// The module's forward as a function.
template <typename Module>
struct ModuleForward {
  Module& module;

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) const
      -> decltype(module.forward(std::forward<Inputs>(inputs)...)) {
    return module.forward(std::forward<Inputs>(inputs)...);
  }
};

}  // namespace internal

template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelState> state)
      : module_(std::move(module)), state_(std::move(state)) {}

  /// The module's own forward, inside the model's techniques: in the job's precision, for instance.
  /// Collective while gradients are synchronised. A forward that is a template over its parameters
  /// must compile for const arguments as well.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    TORCH_CHECK(module_ != nullptr, "this prepared model was freed");
    if (state_->techniques().empty()) return module_->forward(std::forward<Inputs>(inputs)...);
    const internal::ModuleForward<Module> module{*module_};
    ForwardCallOf<const internal::ModuleForward<Module>, Inputs...> call(
        module, std::forward<Inputs>(inputs)...);
    ForwardPass(state_->techniques(), call).proceed();
    return call.take_output();
  }
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  Module* operator->() const { return &**this; }
  Module& operator*() const {
    TORCH_CHECK(module_ != nullptr, "this prepared model was freed");
    return *module_;
  }

  /// The user's module, as it was given to prepare.
  const std::shared_ptr<Module>& module() const { return module_; }

  /// Which layers are computed in fp8, and why others are not; null in other precisions.
  const Fp8Report* fp8_report() const { return state_ ? state_->fp8_report() : nullptr; }

  /// Whether it was not reset.
  explicit operator bool() const { return module_ != nullptr; }
  /// Lets go of the model; the handle is of no use afterwards.
  void reset() {
    state_.reset();
    module_.reset();
  }

 private:
  friend struct internal::Access;
  const std::shared_ptr<ModelState>& internals() const {
    TORCH_CHECK(state_ != nullptr, "this prepared model was freed");
    return state_;
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelState> state_;
};

/// The model's technique of type T; null if it has none.
template <typename T, typename Module>
T* find_technique(const PreparedModel<Module>& model) {
  return internal::Access::to(model)->template find_technique<T>();
}

}  // namespace accelerate
