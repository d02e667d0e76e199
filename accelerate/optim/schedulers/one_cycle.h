/// OneCycleLR: up to a large rate and down to almost nothing, once, with the momentum against it.
///
/// Source: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large
///         Learning Rates", 2018.
/// Mirrors: torch.optim.lr_scheduler, OneCycleLR.
/// Differs: a phase without steps (`pct_start * total_steps` of exactly 1, say) is over at once,
///          where PyTorch divides by zero.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "accelerate/optim/schedulers/per_group.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

enum class AnnealStrategy { kCos, kLinear };

struct OneCycleLROptions {
  PerGroup max_lr;  ///< required
  /// Steps of the cycle; instead of it `epochs` and `steps_per_epoch`.
  std::optional<int64_t> total_steps = std::nullopt;
  std::optional<int64_t> epochs = std::nullopt;
  std::optional<int64_t> steps_per_epoch = std::nullopt;
  double pct_start = 0.3;  ///< the rising part of the cycle
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85;  ///< where the rate is largest
  PerGroup max_momentum = 0.95;
  double div_factor = 25;         ///< the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  ///< the last one is the first / final_div_factor
  /// Fall as fast as the rate rose, then to the last rate; else fall to it at once.
  bool three_phase = false;
};

/// Errors: c10::ValueError for arguments outside of their range, cycle_momentum with an optimizer
///         that has none, and for a step beyond total_steps.
class OneCycleLR final : public Scheduler {
 public:
  using Options = OneCycleLROptions;
  OneCycleLR(torch::optim::Optimizer& optimizer, const Options& options);

  std::optional<int64_t> total_steps() const override { return total_steps_; }

 private:
  // What goes from one value to another in a phase.
  struct Range {
    std::vector<double> initial;
    std::vector<double> peak;
    std::vector<double> final;
  };
  // How far between which two.
  struct Place {
    std::vector<double> Range::* from;
    std::vector<double> Range::* to;
    double part;
  };

  Place place_at(int64_t epoch) const;
  std::vector<double> values_at(const Place& place, const Range& range) const;

  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  int64_t total_steps_;
  double pct_start_;
  AnnealStrategy anneal_strategy_;
  bool cycle_momentum_;
  bool three_phase_;
  Range rates_;
  Range momenta_;
};

}  // namespace accelerate::optim

namespace accelerate {

template <>
struct EnumTable<optim::AnnealStrategy> {
  using E = optim::AnnealStrategy;
  static constexpr char kName[] = "AnnealStrategy";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kCos, "cos"},
      {E::kLinear, "linear"},
  });
};

}  // namespace accelerate
