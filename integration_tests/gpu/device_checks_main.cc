// Checks the library on the device of this machine by running it: mixed precision, pinned loading,
// memory and its cache, NCCL with one member, and a sharded model whose one rank has all rows.
//
// A program and no test of a framework, because machines with a GPU often have neither Bazel nor
// GoogleTest; ci/gpu.sh builds it with CMake. Without a GPU it checks on the CPU what there is to
// be checked there, and says what it left out. An argument is a part of the names of the checks to
// run. Exit code: 0 if all checks hold.
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/parallel/replicated/ddp.h"
#include "accelerate/parallel/residency/shards.h"
#include "integration_tests/gpu/checks.h"

namespace accelerate::device_checks {
namespace {

constexpr int64_t kSamples = 64;
constexpr int64_t kFeatures = 16;

// The losses of 20 steps of a small regression, in the given precision and with the given loading.
std::vector<double> losses(PrecisionType precision, DataLoaderConfiguration loading,
                           bool pin_memory) {
  std::vector<double> result;
  as_program([&] {
    torch::manual_seed(1);
    // A scale with which no step of fp16 overflows, so that none is skipped.
    Accelerator accelerator({.mixed_precision = precision,
                             .dataloader_config = loading,
                             .kwargs_handlers = {GradScalerKwargs{.init_scale = 16}}});
    const c10::Device device = accelerator.device();
    torch::nn::Linear line(kFeatures, 1);
    torch::optim::SGD sgd(line->parameters(), /*lr=*/0.05);
    const at::Tensor x = at::randn({kSamples, kFeatures});
    const at::Tensor y = x.sum(1, /*keepdim=*/true);
    DataLoader data(make_tensor_dataset(x, y),
                    {.batch_size = kSamples / 4, .pin_memory = pin_memory});
    auto [model, optimizer, loader] = accelerator.prepare(line, sgd, data);
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (auto& [inputs, targets] : loader) {
        expect(inputs.device() == device, "a batch is not on the device");
        at::Tensor loss = torch::nn::functional::mse_loss(model(inputs), targets);
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        result.push_back(loss.item<double>());
      }
    }
  });
  return result;
}

void check_training() {
  const std::vector<double> full = losses(PrecisionType::kNo, {}, false);
  expect(full.back() < full.front() / 2, "the loss does not fall");
}

void check_precision(PrecisionType precision) {
  const std::vector<double> full = losses(PrecisionType::kNo, {}, false);
  const std::vector<double> mixed = losses(precision, {}, false);
  for (size_t i = 0; i < full.size(); ++i) {
    expect_near(full[i], mixed[i], 0.05 * full.front(), absl::StrCat("the loss of step ", i));
  }
  expect(full != mixed, "mixed precision changed nothing");
}

void check_pinned_loading() {
  const std::vector<double> plain = losses(PrecisionType::kNo, {}, false);
  const std::vector<double> pinned = losses(PrecisionType::kNo, {.non_blocking = true}, true);
  expect(plain == pinned, "pinned, asynchronous loading changes the losses");
}

void check_cache() {
  Accelerator accelerator;
  at::Tensor big = at::ones({1 << 24}, at::TensorOptions().device(accelerator.device()));
  expect(big.sum().item<float>() == 1 << 24, "a sum on the device is wrong");
  release_memory(big);
  expect(!big.defined(), "released memory is still held");
}

// The allocator's numbers.
void check_memory_numbers() {
  Accelerator accelerator;
  const auto before = accelerator.runtime().device_memory();
  at::Tensor big = at::ones({1 << 24}, at::TensorOptions().device(accelerator.device()));
  const auto during = accelerator.runtime().device_memory();
  expect(during->in_use - before->in_use >= int64_t{4} << 24, "64 MiB are not counted");
}

void check_backend(const std::string& name, c10::DeviceType device) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto backend =
      make_backend(name, {.store = store, .timeout = std::chrono::milliseconds(30'000)});
  std::vector<at::Tensor> tensors = {at::arange(5, at::TensorOptions(device).dtype(at::kFloat))};
  backend->allreduce(tensors)->wait();
  expect(tensors[0].sum().item<float>() == 10, "an all-reduce of one member changes its tensor");
  backend->barrier()->wait();
}

c10::intrusive_ptr<c10d::ProcessGroup> group_of_one(const std::string& backend,
                                                    c10d::ProcessGroup::BackendType type,
                                                    c10::Device device) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, /*rank=*/0, /*size=*/1);
  group->setBackend(
      device.type(), type,
      make_backend(backend, {.store = store, .timeout = std::chrono::milliseconds(30'000)}));
  group->setDefaultBackend(type);
  // What ranks tell each other about their models is on the CPU.
  if (!device.is_cpu()) {
    group->setBackend(
        c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
        make_backend("gloo", {.store = store, .timeout = std::chrono::milliseconds(30'000)}));
  }
  return group;
}

// A replicated model of one rank, whose buckets the backend reduces, trains as a plain one.
void check_replica(const std::string& backend, c10d::ProcessGroup::BackendType type,
                   c10::Device device, bool find_unused_parameters) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(kFeatures, kFeatures),
                            torch::nn::Linear(kFeatures, 1));
  net->to(device);
  torch::nn::Sequential plain = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  DistributedDataParallel ddp(net.ptr(), group_of_one(backend, type, device),
                              {.find_unused_parameters = find_unused_parameters});
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.05), plain_sgd(plain->parameters(), 0.05);
  const at::Tensor x = at::randn({kSamples, kFeatures}, device);
  for (int step = 0; step < 4; ++step) {
    ddp.before_forward();
    const at::Tensor output = ddp.after_forward({net->forward(x)}).at(0);
    output.square().mean().backward();
    plain->forward(x).square().mean().backward();
    sgd.step();
    plain_sgd.step();
    net->zero_grad();
    plain->zero_grad();
  }
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    expect(at::allclose(net->parameters()[i], plain->parameters()[i], 1e-5, 1e-6),
           absl::StrCat("parameter ", i, " differs"));
  }
}

// A sharded model's parameters come and go, also on the threads of the device's backward passes,
// and it trains as one that has them at all times.
void check_sharding(const std::string& backend, c10d::ProcessGroup::BackendType type,
                    c10::Device device) {
  const auto group = group_of_one(backend, type, device);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(kFeatures, kFeatures),
                            torch::nn::Linear(kFeatures, kFeatures),
                            torch::nn::Linear(kFeatures, 1));
  net->to(device);
  torch::nn::Sequential whole = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  ShardedParameters sharded(*net, {.shards = group}, device, {.group_bytes = 1});
  std::vector<at::Tensor> shards;
  for (const auto& each : sharded.shards()) shards.push_back(each.shard);
  torch::optim::SGD sgd(shards, /*lr=*/0.05), plain(whole->parameters(), /*lr=*/0.05);
  const at::Tensor x = at::randn({kSamples, kFeatures}, device);
  for (int step = 0; step < 4; ++step) {
    at::Tensor loss;
    {
      sharded.begin_step();
      const Residency::Pass pass(*sharded.residency());
      loss = net->forward(x).square().mean();
    }
    loss.backward();
    expect(sharded.residency()->bytes_in_memory() == 0, "parameters are left in memory");
    const at::Tensor other = whole->forward(x).square().mean();
    other.backward();
    expect_near(loss.item<double>(), other.item<double>(), 1e-6, absl::StrCat("step ", step));
    for (torch::optim::Optimizer* each : {static_cast<torch::optim::Optimizer*>(&sgd),
                                          static_cast<torch::optim::Optimizer*>(&plain)}) {
      each->step();
      each->zero_grad();
    }
    net->zero_grad();
  }
  const WholeParameters scope(sharded.residency(), {.writeback = false});
  for (size_t i = 0; i < shards.size(); ++i) {
    expect(at::allclose(net->parameters()[i], whole->parameters()[i], 1e-5, 1e-6),
           absl::StrCat("parameter ", i, " differs"));
  }
}

class Report {
 public:
  // Only checks with `part` in their names.
  explicit Report(std::string part) : part_(std::move(part)) {}

  void check(const std::string& name, const std::function<void()>& body) {
    if (name.find(part_) == std::string::npos) return;
    try {
      body();
      std::printf("ok       %s\n", name.c_str());
    } catch (const c10::Error& error) {
      fail(name, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(name, error.what());
    }
    std::fflush(stdout);
  }

  void leave_out(const std::string& name, const std::string& why) {
    std::printf("left out %s: %s\n", name.c_str(), why.c_str());
  }

  int failures() const { return failures_; }

 private:
  void fail(const std::string& name, const char* why) {
    ++failures_;
    std::printf("FAILED   %s: %s\n", name.c_str(), why);
  }

  const std::string part_;
  int failures_ = 0;
};

int check_all(const char* part) {
  Report report(part);
  c10::Device device = c10::kCPU;
  bool counts_memory = false;
  as_program([&] {
    device = Runtime::current().device();
    counts_memory = Runtime::current().device_memory().has_value();
  });
  std::printf("device   %s\n", device.str().c_str());
  report.check("training", check_training);
  report.check("bf16", [] { check_precision(PrecisionType::kBf16); });
  report.check("cache", [] { as_program(check_cache); });
  report.check("dispatch: device, host and disk", [] { as_program(check_dispatch); });
  report.check("layerwise casting", [] { as_program(check_layerwise_casting); });
  report.check("weights in 8 bits", [] { as_program(check_int8); });
  report.check("weights in 4 bits", [] { as_program(check_nf4); });
  report.check("attention by blocks", [&] { check_attention_blocks(device); });
  const bool cuda = device.is_cuda();
  for (const std::string& backend : backend_names()) {
    if (backend == "nccl" && cuda) {
      report.check("nccl, one member", [] { check_backend("nccl", c10::kCUDA); });
      report.check("sharding, nccl", [&] {
        as_program([&] { check_sharding("nccl", c10d::ProcessGroup::BackendType::NCCL, device); });
      });
      for (const bool unused : {false, true}) {
        report.check(absl::StrCat("replica, nccl", unused ? ", find_unused_parameters" : ""), [&] {
          as_program([&] {
            check_replica("nccl", c10d::ProcessGroup::BackendType::NCCL, device, unused);
          });
        });
      }
      report.check("cache of CUDA's allocator", [] {
        expect(release_device_cache(c10::kCUDA), "nothing is registered that empties it");
      });
    } else if (backend == "gloo") {
      report.check("gloo, one member", [] { check_backend("gloo", c10::kCPU); });
      report.check("replica, gloo", [] {
        as_program(
            [] { check_replica("gloo", c10d::ProcessGroup::BackendType::GLOO, c10::kCPU, true); });
      });
      report.check("sharding, gloo", [] {
        as_program(
            [] { check_sharding("gloo", c10d::ProcessGroup::BackendType::GLOO, c10::kCPU); });
      });
    }
  }
  if (cuda) {
    report.check("fp16", [] { check_precision(PrecisionType::kFp16); });
    report.check("pinned loading", check_pinned_loading);
    report.check("CUDA graph of a step", [] { as_program(check_cuda_graph); });
  } else {
    for (const char* name : {"fp16", "pinned loading", "nccl", "CUDA graph of a step"}) {
      report.leave_out(name, "there is no GPU");
    }
  }
  if (counts_memory) {
    report.check("memory numbers", [] { as_program(check_memory_numbers); });
  } else {
    report.leave_out("memory numbers", "the Runtime does not count this device's memory");
  }
  std::printf("device checks: %d failed\n", report.failures());
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace accelerate::device_checks

int main(int argc, char** argv) {
  return accelerate::device_checks::check_all(argc > 1 ? argv[1] : "");
}
