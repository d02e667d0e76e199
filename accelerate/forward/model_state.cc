#include "accelerate/forward/model_state.h"

#include <torch/nn/module.h>

namespace accelerate {

std::vector<TrainedParameter> trained_under(const Techniques& techniques,
                                            const torch::nn::Module& module) {
  std::vector<TrainedParameter> parameters;
  if (const Technique* const technique = in_place_of_parameters(techniques)) {
    parameters = *technique->trained();
    for (TrainedParameter& each : parameters) each.shards = technique->shard_group();
    return parameters;
  }
  for (const auto& item : module.named_parameters()) {
    parameters.push_back({item.key(), item.value(), item.value()});
  }
  return parameters;
}

void ModelState::insert_technique(size_t outer, std::unique_ptr<Technique> technique) {
  techniques_.insert(techniques_.begin() + static_cast<std::ptrdiff_t>(outer),
                     std::move(technique));
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

void ModelState::set_placements(ModelPlacements placements) { placements_ = std::move(placements); }

std::vector<TrainedParameter> ModelState::trained() const {
  std::vector<TrainedParameter> parameters = trained_under(techniques_, *module_);
  const bool are_others = trains_other_tensors();
  for (TrainedParameter& each : parameters) {
    const auto found = placements_.by_name.find(each.name);
    if (found != placements_.by_name.end()) each.placement = found->second.placement;
    // A rank whose optimizers train tensors in other places has all of them.
    const bool is_elsewhere =
        each.shards != nullptr ? each.shards != placements_.shards : are_others;
    each.norm = is_elsewhere ? each.shards : placements_.norm;
    if (!is_elsewhere && found != placements_.by_name.end()) each.counts = found->second.counts;
  }
  return parameters;
}

c10::intrusive_ptr<c10d::ProcessGroup> ModelState::shards() const {
  const Technique* technique = in_place_of_parameters(techniques_);
  return technique != nullptr ? technique->shard_group() : nullptr;
}

TrainedOnDisk ModelState::trained_on_disk() const {
  const Technique* technique = in_place_of_parameters(techniques_);
  return technique != nullptr ? technique->trained_on_disk() : TrainedOnDisk();
}

std::shared_ptr<const int> ModelState::overwriting_scopes() const {
  const Technique* technique = in_place_of_parameters(techniques_);
  return technique != nullptr ? technique->overwriting_scopes() : nullptr;
}

const Fp8Report* ModelState::fp8_report() const {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    if (const Fp8Report* report = technique->fp8_report()) return report;
  }
  return nullptr;
}

}  // namespace accelerate
