#include "accelerate/forward/model_state.h"

#include <unordered_set>

#include <torch/nn/module.h>

namespace accelerate {

std::vector<TrainedParameter> trained_under(
    const Techniques& techniques, const torch::nn::Module& module,
    const std::function<bool(const std::string& name)>& is_cut) {
  std::vector<TrainedParameter> parameters;
  const TrainedInPlace* const in_place = in_place_of_parameters(techniques);
  if (in_place != nullptr) parameters = in_place->tensors;
  std::unordered_set<const at::TensorImpl*> seen;
  for (TrainedParameter& each : parameters) {
    each.shards = in_place->shards;
    seen.insert(each.parameter.unsafeGetTensorImpl());
  }
  for (const auto& item : module.named_parameters()) {
    const bool is_left_out =
        in_place != nullptr &&
        (!is_cut(item.key()) || !seen.insert(item.value().unsafeGetTensorImpl()).second);
    if (!is_left_out) parameters.push_back({item.key(), item.value(), item.value()});
  }
  return parameters;
}

void ModelState::set_techniques(Techniques techniques) {
  techniques_ = std::move(techniques);
  find_trained();
}

void ModelState::insert_technique(size_t outer, std::unique_ptr<Technique> technique) {
  techniques_.insert(techniques_.begin() + static_cast<std::ptrdiff_t>(outer),
                     std::move(technique));
  find_trained();
}

void ModelState::add_no_sync_counts(NoSyncScope::Counts& counts) const {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    if (NoSyncCount count = technique->no_sync_count()) counts.push_back(std::move(count));
  }
}

void ModelState::add_joinables(std::vector<Joinable*>& joinables) const {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    if (Joinable* joinable = technique->joinable()) joinables.push_back(joinable);
  }
}

void ModelState::trigger_sync_in_backward() const {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    technique->trigger_sync_in_backward();
  }
}

void ModelState::check_reads() const {
  for (const std::unique_ptr<Technique>& technique : techniques_) technique->check_reads();
}

void ModelState::set_placements(ModelPlacements placements) {
  placements_ = std::move(placements);
  find_trained();
}

void ModelState::find_trained() {
  in_place_ = in_place_of_parameters(techniques_);
  divided_ = is_divided() ? trained_now() : std::vector<TrainedParameter>();
  by_tensor_.clear();
  for (size_t i = 0; i < divided_.size(); ++i) {
    by_tensor_.emplace(divided_[i].parameter.unsafeGetTensorImpl(), i);
    by_tensor_.emplace(divided_[i].trained.unsafeGetTensorImpl(), i);
  }
}

std::vector<TrainedParameter> ModelState::trained_now() const {
  const auto is_cut = [this](const std::string& name) {
    const auto found = placements_.by_name.find(name);
    return found != placements_.by_name.end() && found->second.is_cut;
  };
  std::vector<TrainedParameter> parameters = trained_under(techniques_, *module_, is_cut);
  for (TrainedParameter& each : parameters) {
    const auto found = placements_.by_name.find(each.name);
    if (found != placements_.by_name.end()) each.placement = found->second.placement;
    // A rank whose optimizers train tensors in other places has all of them, unless they are cut.
    const bool is_elsewhere = each.shards != nullptr
                                  ? each.shards != placements_.shards
                                  : trains_other_tensors() && !placements_.is_cut;
    each.norm = is_elsewhere ? each.shards : placements_.norm;
    if (!is_elsewhere && found != placements_.by_name.end()) each.counts = found->second.counts;
  }
  return parameters;
}

// The parameters of a model that is not divided are those that its module has now.
std::vector<TrainedParameter> ModelState::trained() const {
  return is_divided() ? divided_ : trained_now();
}

const TrainedParameter* ModelState::find_divided(const at::Tensor& tensor) const {
  const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? nullptr : &divided_[found->second];
}

const Fp8Report* ModelState::fp8_report() const {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    if (const Fp8Report* report = technique->fp8_report()) return report;
  }
  return nullptr;
}

}  // namespace accelerate
