/// One GradScaler for all the optimizers of a rank.
///
/// The scale adapts once per iteration, when all optimizers have stepped. If one has stepped twice
/// before that, not all of them step in each iteration, and the scale adapts before the next
/// backward pass. Gradients that were unscaled without a step are scaled again before a backward
/// pass adds to them.
///
/// Threads: the rank's thread.
/// Mirrors: nothing in HF Accelerate, where each prepared optimizer's step updates the scale.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/precision/grad_scaler.h"

namespace accelerate {

class SharedScaler {
 public:
  explicit SharedScaler(GradScaler scaler) : scaler_(std::move(scaler)) {}
  SharedScaler(const SharedScaler&) = delete;
  SharedScaler& operator=(const SharedScaler&) = delete;

  GradScaler& scaler() { return scaler_; }

  /// The scaler's state and, under "accelerate", each optimizer's progress since the last update,
  /// in the order of preparation. Local; waits for the device.
  nlohmann::ordered_json state_dict() const;
  /// A state without "accelerate", such as HF Accelerate's, is that of a scaler just updated.
  /// Local.
  /// Errors: c10::ValueError that names a missing field or one of another type, or for another
  ///         number of optimizers; nothing is changed.
  void load_state_dict(const nlohmann::ordered_json& state);

  /// Call before scaling a loss. Local; may wait for the device.
  void begin_backward();

  /// Registers an optimizer with the scaler for its lifetime.
  class User {
   public:
    User();
    User(std::shared_ptr<SharedScaler> shared, torch::optim::Optimizer& optimizer);
    ~User();
    User(User&& other) noexcept;
    User& operator=(User&& other) noexcept;

    explicit operator bool() const { return shared_ != nullptr; }

    /// As GradScaler::unscale_; no effect on unscaled gradients.
    void unscale();
    /// As GradScaler::step.
    bool step();
    /// Call when the optimizer's gradients were cleared.
    void forget_gradients();

   private:
    struct Entry;
    friend class SharedScaler;
    std::shared_ptr<SharedScaler> shared_;
    std::unique_ptr<Entry> entry_;
  };

 private:
  void update();

  GradScaler scaler_;
  std::vector<User::Entry*> users_;
};

}  // namespace accelerate
