/// One GradScaler for all the optimizers of a rank.
///
/// Its scale adapts once per iteration: when the last of them has stepped. Where one has stepped
/// twice meanwhile, not all of them step in each iteration, and it adapts before the next backward
/// pass. Gradients that were unscaled for a look get their scale back before a backward pass adds
/// to them, so it does no harm to look and not to step.
///
/// Threads: the rank's thread.
/// Mirrors: nothing in the peer, where each prepared optimizer's step updates the scale.
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

  /// The scaler's state and, under "accelerate", how far each optimizer is since its last update,
  /// in the order in which they were prepared. Local; waits for the device.
  nlohmann::ordered_json state_dict() const;
  /// A state without "accelerate", such as a peer's, is that of a scaler just updated.
  /// Errors: c10::ValueError naming the field that is missing or of another type, or if there are
  ///         other optimizers; nothing has changed then.
  void load_state_dict(const nlohmann::ordered_json& state);

  /// To be called before a loss is scaled.
  void begin_backward();

  /// An optimizer's share in it, as long as that is in use.
  class User {
   public:
    User();
    User(std::shared_ptr<SharedScaler> shared, torch::optim::Optimizer& optimizer);
    ~User();
    User(User&& other) noexcept;
    User& operator=(User&& other) noexcept;

    explicit operator bool() const { return shared_ != nullptr; }

    /// As GradScaler::unscale_, but not twice.
    void unscale();
    /// As GradScaler::step.
    bool step();
    /// Its gradients are gone.
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
