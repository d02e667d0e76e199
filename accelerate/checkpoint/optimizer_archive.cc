#include "accelerate/checkpoint/optimizer_archive.h"

#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

namespace accelerate::internal {
namespace {

// Where the optimizer's parameters are; absent: in several places.
std::optional<c10::Device> device_of(const torch::optim::Optimizer& optimizer) {
  std::optional<c10::Device> device;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (device && *device != parameter.device()) return std::nullopt;
      device = parameter.device();
    }
  }
  return device;
}

void load(torch::optim::Optimizer& optimizer, const at::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                    static_cast<size_t>(bytes.numel()), device_of(optimizer));
  optimizer.load(archive);
}

}  // namespace

at::Tensor optimizer_archive(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  auto bytes = std::make_shared<std::string>();
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes->append(static_cast<const char*>(data), size);
    return size;
  });
  torch::serialize::InputArchive written;
  written.load_from(bytes->data(), bytes->size(), c10::kCPU);
  TORCH_CHECK_VALUE(!written.keys().empty(), "an optimizer of type ",
                    c10::demangle(typeid(optimizer).name()),
                    " saves nothing: its class must override save and load");
  return at::from_blob(
      bytes->data(), {static_cast<int64_t>(bytes->size())}, [bytes](void*) {}, at::kByte);
}

void load_optimizer_archive(torch::optim::Optimizer& optimizer, const at::Tensor& archive) {
  const at::Tensor before = optimizer_archive(optimizer);
  std::string what;
  try {
    return load(optimizer, archive);
  } catch (const c10::Error& error) {
    what = error.what_without_backtrace();
  } catch (const std::exception& error) {
    what = error.what();
  }
  load(optimizer, before);
  TORCH_CHECK_VALUE(false, "the state of an optimizer of type ",
                    c10::demangle(typeid(optimizer).name()), " cannot be loaded: ", what);
}

}  // namespace accelerate::internal
