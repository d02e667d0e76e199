#include "accelerate/parallel/residency/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::internal {

SideStream::SideStream(c10::Device device) {
  if (device.is_cpu() || device.is_mps() || device.is_meta()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

SideStream::Scope::Scope(const SideStream& stream) {
  if (!stream.stream_) return;
  const c10::Device device = stream.stream_->device();
  c10::Event before(device.type());
  before.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  before.block(*stream.stream_);
  guard_.emplace(*stream.stream_);
}

SideStream::Mark::Mark(const SideStream& stream) {
  if (!stream.stream_) return;
  device_ = stream.stream_->device();
  event_.emplace(stream.stream_->device_type());
  event_->record(*stream.stream_);
}

void SideStream::Mark::wait() {
  if (event_) event_->synchronize();
}

void SideStream::Mark::block_current_stream() {
  if (event_) event_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

}  // namespace accelerate::internal
