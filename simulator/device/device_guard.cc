#include <memory>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "simulator/device/registration.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

constexpr c10::DeviceType kType = c10::kPrivateUse1;

SimDevice& device_of(c10::Device device) {
  return SimDevice::of(device.has_index() ? device.index() : current_device());
}

c10::Stream torch_stream(const SimDevice& device, int stream) {
  return c10::Stream(c10::Stream::UNSAFE, torch_device(device.index()), stream);
}

// The time at which the work before the event ends.
struct SimEvent {
  int64_t at_ns = 0;
};

class DeviceGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    set_current_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override { return torch_device(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kMaxAddressableDevices; }

  c10::Stream getStream(c10::Device device) const noexcept override {
    const SimDevice& of = device_of(device);
    return torch_stream(of, of.current_stream());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torch_stream(device_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    SimDevice& of = device_of(device);
    return torch_stream(of, of.new_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    SimDevice& device = device_of(stream.device());
    const c10::Stream previous = torch_stream(device, device.current_stream());
    device.set_current_stream(checked_stream(device, stream));
    return previous;
  }
  bool queryStream(const c10::Stream& stream) const override {
    const SimDevice& device = device_of(stream.device());
    return device.stream_ns(checked_stream(device, stream)) <= device.host_ns();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    SimDevice& device = device_of(stream.device());
    device.host_waits(device.stream_ns(checked_stream(device, stream)));
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    SimDevice::of(index < 0 ? current_device() : index).synchronize();
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new SimEvent();
    const SimDevice& device = device_of(stream.device());
    // A stream without work ends now.
    static_cast<SimEvent*>(*event)->at_ns =
        std::max(device.stream_ns(checked_stream(device, stream)), device.host_ns());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    SimDevice& device = device_of(stream.device());
    device.stream_waits(checked_stream(device, stream), static_cast<SimEvent*>(event)->at_ns);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return static_cast<SimEvent*>(event)->at_ns <= SimDevice::of(current_device()).host_ns();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    SimDevice::of(current_device()).host_waits(static_cast<SimEvent*>(event)->at_ns);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr,
                "Both events must be recorded before elapsed time is measured");
    const int64_t ns = static_cast<SimEvent*>(to)->at_ns - static_cast<SimEvent*>(from)->at_ns;
    return static_cast<double>(ns) / 1e6;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<SimEvent*>(event);
  }

 private:
  // A stream object may be from an earlier run.
  static int checked_stream(const SimDevice& device, const c10::Stream& stream) {
    return stream.id() < device.num_streams() ? static_cast<int>(stream.id()) : 0;
  }
};

}  // namespace

void install_device_guard() {
  static auto& impl = *new DeviceGuardImpl();
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kType)].store(&impl);
}

}  // namespace accelerate::simulator
