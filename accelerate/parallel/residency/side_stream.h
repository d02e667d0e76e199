/// A stream of a device beside the current one, for copies that go on while the device computes.
/// On devices without streams its work is done in order.
///
/// Threads: one at a time.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::internal {

class SideStream {
 public:
  explicit SideStream(c10::Device device) {
    if (device.is_cpu() || device.is_mps() || device.is_meta()) return;
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
  }

  /// While it lives, the stream is the current one. What it is given begins when what the current
  /// stream has been given before is done.
  class Scope {
   public:
    explicit Scope(const SideStream& stream) {
      if (!stream.stream_) return;
      const c10::Device device = stream.stream_->device();
      c10::Event before(device.type());
      before.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      before.block(*stream.stream_);
      guard_.emplace(*stream.stream_);
    }

   private:
    std::optional<c10::StreamGuard> guard_;
  };

  /// What the stream has been given so far.
  class Mark {
   public:
    explicit Mark(const SideStream& stream) {
      if (!stream.stream_) return;
      device_ = stream.stream_->device();
      event_.emplace(stream.stream_->device_type());
      event_->record(*stream.stream_);
    }
    /// Returns when it is done.
    void wait() {
      if (event_) event_->synchronize();
    }
    /// What the device's current stream is given from now on begins when it is done.
    void block_current_stream() {
      if (event_) event_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    }

   private:
    std::optional<c10::Event> event_;
    c10::Device device_ = c10::kCPU;
  };

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace accelerate::internal
