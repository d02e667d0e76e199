/// What the library keeps of a prepared model, whatever the model's type.
///
/// Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/forward/technique.h"

namespace accelerate {

class ModelLayout;
struct RankRoles;
struct ZeroConfig;

/// Where the parts of a prepared model's tensors are.
struct ModelPlacements {
  struct Entry {
    const TensorPlacement* placement = nullptr;  ///< of the layout
    bool counts = true;                          ///< see TrainedParameter
    bool is_cut = false;                         ///< before rows are divided
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
/// other tensors in their place, and the ranks that divide the rows of these. What a technique
/// leaves as it is that trains others in place of parameters is among them if it is a part of the
/// model's tensor, by its name (`is_cut`).
std::vector<TrainedParameter> trained_under(
    const Techniques& techniques, const torch::nn::Module& module,
    const std::function<bool(const std::string& name)>& is_cut);

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
  void add_no_sync_counts(NoSyncScope::Counts& counts) const;
  /// Appends the techniques that a JoinScope takes in.
  void add_joinables(std::vector<Joinable*>& joinables) const;
  /// See Technique::trigger_sync_in_backward.
  void trigger_sync_in_backward() const;

  /// See Technique::check_reads.
  void check_reads() const;

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

}  // namespace accelerate
