/// One GradScaler for all the optimizers of a rank, whose scale adapts once per iteration: when the
/// last of them has stepped or, where not all do in each iteration, before the next backward pass.
///
/// Threads: the rank's thread.
/// Mirrors: nothing in the peer, where each prepared optimizer's step updates the scale.
#pragma once

#include <memory>
#include <utility>

#include "accelerate/precision/grad_scaler.h"

namespace accelerate {

class SharedScaler {
 public:
  explicit SharedScaler(GradScaler scaler) : scaler_(std::move(scaler)) {}

  GradScaler& scaler() { return scaler_; }

  /// To be called before a loss is scaled.
  void begin_backward() {
    if (scaler_.stepped() > 0) scaler_.update();
  }

  /// An optimizer's share in it, as long as that is in use.
  class User {
   public:
    User() = default;
    explicit User(std::shared_ptr<SharedScaler> shared) : shared_(std::move(shared)) {
      if (shared_) ++shared_->users_;
    }
    User(User&& other) noexcept = default;
    User& operator=(User&& other) noexcept {
      std::swap(shared_, other.shared_);
      return *this;
    }
    ~User() {
      if (shared_) --shared_->users_;
    }

    explicit operator bool() const { return shared_ != nullptr; }

    /// As GradScaler::unscale_, but not twice.
    void unscale(torch::optim::Optimizer& optimizer) {
      if (!shared_->scaler_.is_unscaled(optimizer)) shared_->scaler_.unscale_(optimizer);
    }

    /// As GradScaler::step.
    bool step(torch::optim::Optimizer& optimizer) {
      const bool done = shared_->scaler_.step(optimizer);
      if (shared_->scaler_.stepped() >= shared_->users_) shared_->scaler_.update();
      return done;
    }

   private:
    std::shared_ptr<SharedScaler> shared_;
  };

 private:
  GradScaler scaler_;
  int users_ = 0;
};

}  // namespace accelerate
