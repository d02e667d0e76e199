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

at::CPUGeneratorImpl& cpu_generator(const at::Generator& generator) {
  return *at::check_generator<at::CPUGeneratorImpl>(generator);
}

void swap_states(at::CPUGeneratorImpl& a, at::CPUGeneratorImpl& b) {
  const at::mt19937 engine = a.engine();
  const auto next_float = a.next_float_normal_sample();
  const auto next_double = a.next_double_normal_sample();
  a.set_engine(b.engine());
  a.set_next_float_normal_sample(b.next_float_normal_sample());
  a.set_next_double_normal_sample(b.next_double_normal_sample());
  b.set_engine(engine);
  b.set_next_float_normal_sample(next_float);
  b.set_next_double_normal_sample(next_double);
}

void swap_with_device(SimDevice& device) {
  swap_states(cpu_generator(at::detail::getDefaultCPUGenerator()),
              cpu_generator(host_generator(default_generator(device))));
}

}  // namespace

BorrowedGenerator::BorrowedGenerator(SimDevice& device) : device_(device) {
  swap_with_device(device_);
}
BorrowedGenerator::~BorrowedGenerator() { swap_with_device(device_); }

const at::Generator& default_generator(SimDevice& device) {
  if (!device.generator().defined()) reset_default_generator(device);
  return device.generator();
}

at::Generator new_generator(int index) { return at::make_generator<DeviceGenerator>(index); }

void reset_default_generator(SimDevice& device) {
  device.generator() = new_generator(device.index());
}

at::Generator host_generator(const at::Generator& generator) {
  if (!generator.defined() || !generator.device().is_privateuseone()) return generator;
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

void install_seeding() {
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  auto seeding = at::make_generator<SeedingGenerator>();
  swap_states(cpu_generator(seeding), cpu_generator(generator));
  // LibTorch hands out a constant reference to an object of its own that is not constant.
  const_cast<at::Generator&>(generator) = std::move(seeding);
}

}  // namespace accelerate::simulator
