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

namespace accelerate::internal {

class SideStream {
 public:
  explicit SideStream(c10::Device device);

  /// While it lives, the stream is the current one. What it is given begins when what the current
  /// stream has been given before is done.
  class Scope {
   public:
    explicit Scope(const SideStream& stream);

   private:
    std::optional<c10::StreamGuard> guard_;
  };

  /// What the stream has been given so far.
  class Mark {
   public:
    explicit Mark(const SideStream& stream);
    /// Returns when it is done.
    void wait();
    /// What the device's current stream is given from now on begins when it is done.
    void block_current_stream();

   private:
    std::optional<c10::Event> event_;
    c10::Device device_ = c10::kCPU;
  };

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace accelerate::internal
