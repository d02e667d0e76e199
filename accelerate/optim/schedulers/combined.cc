#include "accelerate/optim/schedulers/combined.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedulers/plateau.h"
#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
Combined::Combined(torch::optim::Optimizer& optimizer, const char* kind,
                   const std::vector<MakeScheduler>& makers)
    : Scheduler(optimizer) {
  TORCH_CHECK_VALUE(!makers.empty(), kind, ": there must be at least one scheduler");
  for (const MakeScheduler& make : makers) {
    TORCH_CHECK_VALUE(make != nullptr, kind, ": scheduler ", schedulers_.size(), " is empty");
    // Made on the same rates, they have the same base rates.
    set_rates(optimizer, base_lrs());
    std::unique_ptr<Scheduler> part = make(optimizer);
    TORCH_CHECK_VALUE(part != nullptr && &part->optimizer() == &optimizer, kind, ": scheduler ",
                      schedulers_.size(), " is none of this optimizer");
    TORCH_CHECK_VALUE(dynamic_cast<ReduceLROnPlateau*>(part.get()) == nullptr, kind, ": scheduler ",
                      schedulers_.size(), " is a ReduceLROnPlateau, which needs a metric");
    part->last_epoch_ = -1;
    schedulers_.push_back(std::move(part));
  }
  set_rates(optimizer, base_lrs());
}

void Combined::archive(StateArchive& state) {
  if (!state.loads()) {
    auto parts = nlohmann::ordered_json::array();
    for (const auto& part : schedulers_) parts.push_back(part->state_dict());
    return state.save("_schedulers", parts);
  }
  const nlohmann::ordered_json& parts = state.at("_schedulers");
  TORCH_CHECK_VALUE(parts.is_array() && parts.size() == schedulers_.size(),
                    "a scheduler's state does not have ", schedulers_.size(), " parts");
  for (size_t i = 0; i < parts.size(); ++i) schedulers_[i]->load_state_dict(parts[i]);
}

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Combined(optimizer, "SequentialLR", options.schedulers), milestones_(options.milestones) {
  start();
}

std::optional<int64_t> SequentialLR::end() const {
  const std::optional<int64_t> last = schedulers().back()->end();
  if (!last || milestones_.empty()) return last;
  return milestones_.back() + *last;
}

std::vector<double> SequentialLR::rates_at(int64_t epoch) {
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), epoch);
  Scheduler& part = *schedulers()[static_cast<size_t>(next - milestones_.begin())];
  if (epoch == 0) {
    restart(part);
  } else if (next != milestones_.begin() && *(next - 1) == epoch) {
    step_to_epoch_0(part);
  } else {
    part.step();
  }
  return part.get_last_lr();
}

void SequentialLR::archive(StateArchive& state) {
  state("_milestones", milestones_);
  Combined::archive(state);
}

void SequentialLR::check() const {
  TORCH_CHECK_VALUE(milestones_.size() + 1 == schedulers().size(),
                    "SequentialLR: expected a milestone between any two of the ",
                    schedulers().size(), " schedulers, got ", milestones_.size());
  int64_t before = 0;
  for (const int64_t milestone : milestones_) {
    TORCH_CHECK_VALUE(milestone > before,
                      "SequentialLR: milestones must be positive and rise, got ", milestone,
                      " after ", before);
    before = milestone;
  }
}

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer, const Options& options)
    : Combined(optimizer, "ChainedScheduler", options.schedulers) {
  start();
}

std::optional<int64_t> ChainedScheduler::end() const {
  std::optional<int64_t> end;
  for (const auto& part : schedulers()) end = std::max(end, part->end());
  return end;
}

std::vector<double> ChainedScheduler::rates_at(int64_t epoch) {
  for (const auto& part : schedulers()) {
    if (epoch == 0) {
      restart(*part);
    } else {
      part->step();
    }
  }
  return get_current_lrs();
}

}  // namespace accelerate::optim
