/// Schedules that rise and fall, with the momentum against the rate: CyclicLR, again and again, and
/// OneCycleLR, once.
///
/// Mirrors: torch.optim.lr_scheduler, the classes of these names.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "accelerate/base/enum_text.h"
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

/// Goes up and down between two rates, again and again.
/// Source: Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017.
/// Errors: c10::ValueError for step sizes below 1, and for cycle_momentum with an optimizer that
/// has
///         no momentum.
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
  Options options_;
  std::vector<double> max_lrs_;
  std::vector<double> base_momentums_;
  std::vector<double> max_momentums_;
};

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

/// Goes up to a large rate and down to almost nothing, once.
/// Source: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large
///         Learning Rates", 2018.
/// Errors: c10::ValueError for arguments outside their range, for cycle_momentum with an optimizer
///         that has no momentum, and for a step beyond total_steps.
/// Differs: a phase without steps (if `pct_start * total_steps` is exactly 1, for example) is over
///          at once, where PyTorch divides by zero.
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
  Options options_;
  Range rates_;
  Range momenta_;
};

/// The momentum of a parameter group: the first of Adam's `betas`, SGD's and RMSprop's `momentum`,
/// or that of a user's options which derive from this class.
class HasMomentum {
 public:
  virtual ~HasMomentum() = default;
  virtual double momentum_value() const = 0;
  virtual void set_momentum_value(double momentum) = 0;
};

/// That of options with two betas as Adam's, of which the first is the momentum.
class HasBetas : public HasMomentum {
 public:
  using Betas = std::tuple<double, double>;
  virtual const Betas& betas_value() const = 0;
  virtual void set_betas_value(const Betas& betas) = 0;

  double momentum_value() const final { return std::get<0>(betas_value()); }
  void set_momentum_value(double momentum) final {
    set_betas_value({momentum, std::get<1>(betas_value())});
  }
};

/// Gives the groups their momenta, as many as there are values.
/// Errors: c10::ValueError, before any is set, if a group's options have none.
void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta);

/// Whether all groups have betas: Adam's, AdamW's, or those of HasBetas.
bool has_betas(torch::optim::Optimizer& optimizer);
/// Gives the groups their betas, as many as there are momenta. \pre has_betas()
void set_betas(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta,
               double beta2);

}  // namespace accelerate::optim

namespace accelerate {

ACCELERATE_ENUM_TEXTS(optim::CyclicMode, "CyclicMode", "triangular", "triangular2", "exp_range")

ACCELERATE_ENUM_TEXTS(optim::CyclicScaleMode, "CyclicScaleMode", "cycle", "iterations")

ACCELERATE_ENUM_TEXTS(optim::AnnealStrategy, "AnnealStrategy", "cos", "linear")

}  // namespace accelerate
