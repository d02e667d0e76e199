#include "simulator/device/generator.h"

#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(int index, at::Generator host = at::detail::createCPUGenerator())
      : GeneratorImpl(torch_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  const at::Generator& host() const { return host_; }

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host_.set_offset(offset); }
  uint64_t get_offset() const override { return host_.get_offset(); }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device().index(), host_.clone());
  }

  at::Generator host_;
};

class SeedingGenerator final : public at::CPUGeneratorImpl {
 public:
  using CPUGeneratorImpl::CPUGeneratorImpl;
  void set_current_seed(uint64_t seed) override {
    CPUGeneratorImpl::set_current_seed(seed);
    for (SimDevice* device : own_devices()) {
      at::Generator generator = default_generator(*device);
      generator.set_current_seed(seed);
    }
  }
};

}  // namespace

BorrowedGenerator::BorrowedGenerator(SimDevice& device)
    : other_(host_generator(default_generator(device))) {
  std::swap(default_cpu_generator(), other_);
}
BorrowedGenerator::~BorrowedGenerator() { std::swap(default_cpu_generator(), other_); }

const at::Generator& default_generator(SimDevice& device) {
  if (!device.generator().defined()) device.generator() = new_generator(device.index());
  return device.generator();
}

at::Generator new_generator(int index) { return at::make_generator<DeviceGenerator>(index); }

at::Generator host_generator(const at::Generator& generator) {
  if (!generator.defined() || !generator.device().is_privateuseone()) return generator;
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

at::Generator& default_cpu_generator() {
  // LibTorch hands out a constant reference to an object of its own that is not constant.
  return const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
}

at::Generator new_cpu_generator() { return at::make_generator<SeedingGenerator>(); }

}  // namespace accelerate::simulator
