/// CyclicLR: up and down between two rates, again and again.
///
/// Source: Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017.
/// Mirrors: torch.optim.lr_scheduler, CyclicLR.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "accelerate/optim/schedulers/per_group.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

enum class CyclicMode {
  kTriangular,   ///< all cycles are the same
  kTriangular2,  ///< each is half as high as the one before
  kExpRange,     ///< the height is scaled by gamma ^ step
};

/// What a scale_fn is given: the number of the cycle, from 1, or of the step, from 0.
enum class CyclicScaleMode { kCycle, kIterations };

struct CyclicLROptions {
  PerGroup base_lr;  ///< required
  PerGroup max_lr;   ///< required
  int64_t step_size_up = 2000;
  std::optional<int64_t> step_size_down = std::nullopt;  ///< absent: step_size_up
  CyclicMode mode = CyclicMode::kTriangular;
  double gamma = 1.0;
  /// Scales the height, instead of the mode.
  std::function<double(double)> scale_fn = nullptr;
  CyclicScaleMode scale_mode = CyclicScaleMode::kCycle;
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8;  ///< where the rate is largest
  PerGroup max_momentum = 0.9;
};

/// Errors: c10::ValueError for step sizes below 1, and cycle_momentum with an optimizer that has
///         none.
class CyclicLR final : public Scheduler {
 public:
  using Options = CyclicLROptions;
  CyclicLR(torch::optim::Optimizer& optimizer, Options options);

 private:
  double scale(double cycle, int64_t epoch) const;

  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  double total_size_;
  double step_ratio_;
  CyclicMode mode_;
  double gamma_;
  std::function<double(double)> scale_fn_;
  CyclicScaleMode scale_mode_;
  bool cycle_momentum_;
  std::vector<double> max_lrs_;
  std::vector<double> base_momentums_;
  std::vector<double> max_momentums_;
};

}  // namespace accelerate::optim

namespace accelerate {

template <>
struct EnumTable<optim::CyclicMode> {
  using E = optim::CyclicMode;
  static constexpr char kName[] = "CyclicMode";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kTriangular, "triangular"},
      {E::kTriangular2, "triangular2"},
      {E::kExpRange, "exp_range"},
  });
};

template <>
struct EnumTable<optim::CyclicScaleMode> {
  using E = optim::CyclicScaleMode;
  static constexpr char kName[] = "CyclicScaleMode";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kCycle, "cycle"},
      {E::kIterations, "iterations"},
  });
};

}  // namespace accelerate
