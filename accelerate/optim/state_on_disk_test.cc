#include "accelerate/optim/state_on_disk.h"

#include <functional>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/swap/swapped_tensors.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

class DiskRuntime final : public FakeRuntime {
 public:
  FileSystem& files() override { return disk_; }
  const TemporaryFolder folder;

 private:
  HostFiles disk_;
};

std::vector<Tensor> make_parameters() {
  std::vector<Tensor> parameters;
  for (const int numel : {3, 5, 1, 7, 4}) {
    parameters.push_back(torch::cos(torch::arange(1. * numel)).set_requires_grad(true));
  }
  return parameters;
}

// Steps of which the third has no gradient for one parameter.
void set_gradients(const std::vector<Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad().reset();
    if (step == 2 && i == 2) continue;
    parameters[i].mutable_grad() =
        torch::sin(torch::arange(1. * parameters[i].numel()) + step + 1. * i);
  }
}

const std::vector<Make>& optimizers() {
  static const auto* all = new std::vector<Make>{
      [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.1); },
      [](auto p) {
        return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
      },
      [](auto p) { return std::make_unique<torch::optim::Adam>(p); },
      [](auto p) {
        return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions().amsgrad(true));
      },
      [](auto p) { return std::make_unique<torch::optim::Adagrad>(p); },
      [](auto p) { return std::make_unique<torch::optim::RMSprop>(p); },
      [](auto p) { return std::make_unique<optim::Lion>(p); },
      [](auto p) { return std::make_unique<optim::Lamb>(p); },
      [](auto p) { return std::make_unique<optim::AdamW>(p); },
  };
  return *all;
}

// An optimizer whose parameters, and state, are on a disk.
struct OnDisk {
  OnDisk(DiskRuntime& runtime, const Make& make, SwapOptions options = {}) {
    options.folder = runtime.folder.path();
    disk = std::make_shared<SwappedTensors>(runtime, options);
    parameters = make_parameters();
    for (const Tensor& each : parameters) disk->move_in_place("parameter", each);
    optimizer = make(parameters);
    state = std::make_unique<StateOnDisk>(
        *optimizer, disk, StateOnDisk::Options{.updated = [this](const Tensor& parameter) {
          EXPECT_FALSE(is_absent(parameter));
          updated += parameter.numel();
        }});
  }
  std::shared_ptr<SwappedTensors> disk;
  std::vector<Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<StateOnDisk> state;
  int64_t updated = 0;
};

TEST(StateOnDiskTest, StepsAsInMemory) {
  for (const Make& make : optimizers()) {
    std::vector<Tensor> expected = make_parameters();
    const auto in_memory = make(expected);
    for (int step = 0; step < 4; ++step) {
      set_gradients(expected, step);
      in_memory->step();
    }
    for (const int64_t elements : {0, 1, 8}) {
      DiskRuntime runtime;
      OnDisk on_disk(runtime, make);
      for (int step = 0; step < 4; ++step) {
        set_gradients(on_disk.parameters, step);
        on_disk.state->step(elements);
        for (const Tensor& each : on_disk.parameters) EXPECT_TRUE(is_absent(each));
        for (const auto& [name, tensor] : optimizer_state_dict(*on_disk.optimizer).tensors) {
          EXPECT_TRUE(is_absent(tensor)) << name;
        }
      }
      EXPECT_EQ(on_disk.updated, 4 * 20 - 1);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::equal(on_disk.parameters[i], expected[i]))
            << &make - optimizers().data() << ", " << elements << ", " << i;
      }
    }
  }
}

TEST(StateOnDiskTest, ItsStateIsSavedAndLoadedAsFromMemory) {
  const Make& make = optimizers()[2];
  DiskRuntime runtime;
  OnDisk first(runtime, make), second(runtime, make);
  std::vector<Tensor> expected = make_parameters();
  const auto in_memory = make(expected);
  set_gradients(expected, 0);
  in_memory->step();
  set_gradients(first.parameters, 0);
  first.state->step(4);
  const StateDict saved = optimizer_state_dict(*first.optimizer);
  const StateDict same = optimizer_state_dict(*in_memory);
  ASSERT_EQ(saved.tensors.size(), same.tensors.size());
  for (size_t i = 0; i < saved.tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(saved.tensors[i].second, same.tensors[i].second));
  }
  load_optimizer_state_dict(*second.optimizer, saved);
  second.state->store();
  for (size_t i = 0; i < expected.size(); ++i) {
    const torch::NoGradGuard no_grad;
    second.parameters[i].copy_(first.parameters[i]);
  }
  for (const auto& [name, tensor] : optimizer_state_dict(*second.optimizer).tensors) {
    EXPECT_TRUE(is_absent(tensor)) << name;
  }
  for (int step = 1; step < 3; ++step) {
    set_gradients(expected, step);
    in_memory->step();
    set_gradients(second.parameters, step);
    second.state->step(4);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(second.parameters[i], expected[i]));
  }
}

TEST(StateOnDiskTest, PartsFitInBuffersOfAGivenSize) {
  DiskRuntime runtime;
  // Two parameters with Adam's state, each tensor in a page.
  OnDisk on_disk(runtime, optimizers()[2], {.buffer_bytes = 6 * 4096});
  for (int step = 0; step < 3; ++step) {
    set_gradients(on_disk.parameters, 0);
    on_disk.state->step(0);
  }
  EXPECT_EQ(on_disk.disk->traffic().buffer_bytes, 2 * 6 * 4096);
  OnDisk small(runtime, optimizers()[2], {.buffer_bytes = 2 * 4096});
  set_gradients(small.parameters, 0);
  small.state->step(0);
  set_gradients(small.parameters, 0);
  try {
    small.state->step(0);
    ADD_FAILURE() << "three tensors in a buffer for two";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("make buffers larger"));
  }
}

TEST(StateOnDiskTest, RefusesAnOptimizerThatItDoesNotKnow) {
  class Own : public torch::optim::SGD {
    using SGD::SGD;
  };
  DiskRuntime runtime;
  for (const Make& make :
       std::vector<Make>{[](auto p) { return std::make_unique<Own>(p, 0.1); },
                         [](auto p) { return std::make_unique<torch::optim::LBFGS>(p); },
                         [](auto p) { return std::make_unique<optim::ScheduleFreeAdamW>(p); }}) {
    EXPECT_THROW(OnDisk(runtime, make), c10::ValueError);
  }
}

}  // namespace
}  // namespace accelerate
