/// The bytes of tensors that a thread asks for, on devices of one kind, while it is watched:
///
///   const auto memory = std::make_shared<WatchedMemory>(c10::kCPU);
///   const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, memory);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace examples {

class WatchedMemory : public c10::MemoryReportingInfoBase {
 public:
  explicit WatchedMemory(c10::DeviceType type) : type_(type) {}

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() != type_) return;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t in_use() const { return in_use_; }
  int64_t peak() const { return peak_; }
  /// The peak begins anew with what is in use.
  void forget_peak() { peak_ = in_use_; }

 private:
  const c10::DeviceType type_;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

}  // namespace examples
