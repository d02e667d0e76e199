#include "accelerate/compile/region_key.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include "absl/container/flat_hash_map.h"
#include "accelerate/hooks/model_hook.h"

namespace accelerate {
namespace {

// About as many.
constexpr size_t kTensorsOfBlock = 32;
constexpr size_t kWordsOfTensor = 6;
constexpr size_t kWordsOfModes = 3;

// A module gives copies of its dictionaries alone, names included, at each call ten times what the
// rest of the guards costs. An explicit instantiation may name what is not public.
using TensorsOf = torch::OrderedDict<std::string, at::Tensor>;
using ChildrenOf = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

const TensorsOf& parameters_of(const torch::nn::Module& module);
const TensorsOf& buffers_of(const torch::nn::Module& module);
const ChildrenOf& children_of(const torch::nn::Module& module);

template <auto kParameters, auto kBuffers, auto kChildren>
struct Members {
  friend const TensorsOf& parameters_of(const torch::nn::Module& module) {
    return module.*kParameters;
  }
  friend const TensorsOf& buffers_of(const torch::nn::Module& module) { return module.*kBuffers; }
  friend const ChildrenOf& children_of(const torch::nn::Module& module) {
    return module.*kChildren;
  }
};
template struct Members<&torch::nn::Module::parameters_, &torch::nn::Module::buffers_,
                        &torch::nn::Module::children_>;

class Builder {
 public:
  explicit Builder(RegionCall& call) : call_(call), words_(call.key.words) {
    call.tensors.reserve(kTensorsOfBlock);
    words_.reserve(kWordsOfTensor * kTensorsOfBlock);
  }

  void add_module(const torch::nn::Module& module) {
    // An address is even, so that there is room for the mode.
    static_assert(alignof(std::type_info) > 1);
    words_.push_back(reinterpret_cast<intptr_t>(&typeid(module)) | (module.is_training() ? 1 : 0));
    const auto* slot = dynamic_cast<const HookSlot*>(&module);
    call_.has_hooks |= slot != nullptr && slot->hook() != nullptr;
    for (const auto& each : parameters_of(module)) {
      if (each.value().defined()) call_.tensors.push_back(each.value());
    }
    for (const auto& each : buffers_of(module)) {
      if (each.value().defined()) buffers_.push_back(each.value());
    }
    for (const auto& child : children_of(module)) {
      if (child.value() != nullptr) add_module(*child.value());
    }
  }

  void add_tensors(const ForwardValues& inputs) {
    std::vector<at::Tensor>& tensors = call_.tensors;
    call_.first_buffer = tensors.size();
    for (at::Tensor& each : buffers_) tensors.push_back(std::move(each));
    call_.first_input = tensors.size();
    inputs.for_each_tensor([&tensors](const at::Tensor& each) { tensors.push_back(each); });
    words_.push_back(static_cast<int64_t>(call_.first_buffer));
    words_.push_back(static_cast<int64_t>(call_.first_input));
    words_.push_back(static_cast<int64_t>(tensors.size()));
    words_.reserve(words_.size() + kWordsOfTensor * tensors.size() + kWordsOfModes);
    by_memory_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) add(tensors[i], i);
  }

  // Automatic mixed precision is about kinds of devices. Tensors that are made inside have the
  // default dtype where they are given none.
  void add_modes() {
    words_.push_back((at::GradMode::is_enabled() ? 1 : 0) |
                     (c10::InferenceMode::is_enabled() ? 2 : 0) |
                     (at::autocast::is_autocast_cache_enabled() ? 4 : 0) |
                     static_cast<int64_t>(c10::get_default_dtype_as_scalartype()) << 3);
    c10::DeviceType type = c10::kCPU;
    for (const at::Tensor& tensor : call_.tensors) {
      if (tensor.defined() && !tensor.is_cpu()) type = tensor.device().type();
    }
    for (const c10::DeviceType each : {c10::kCPU, type}) {
      const bool is_on =
          at::autocast::is_autocast_available(each) && at::autocast::is_autocast_enabled(each);
      words_.push_back(is_on ? static_cast<int64_t>(at::autocast::get_autocast_dtype(each)) : -1);
    }
  }

 private:
  void add(const at::Tensor& tensor, size_t index) {
    if (!tensor.defined()) {
      words_.push_back(-1);
      return;
    }
    const c10::Device device = tensor.device();
    words_.push_back(static_cast<int64_t>(tensor.scalar_type()) |
                     static_cast<int64_t>(device.type()) << 8 |
                     static_cast<int64_t>(static_cast<uint8_t>(device.index())) << 16 |
                     static_cast<int64_t>(tensor.layout()) << 24 |
                     static_cast<int64_t>(tensor.requires_grad()) << 32 |
                     static_cast<int64_t>(tensor.is_conj() || tensor.is_neg()) << 33 |
                     static_cast<int64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 34 |
                     tensor.dim() << 40);
    // Two that share memory may be one tensor, or views of one.
    const void* memory =
        tensor.has_storage()
            ? static_cast<const void*>(
                  tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl())
            : tensor.unsafeGetTensorImpl();
    const auto [first, is_new] = by_memory_.emplace(memory, index);
    if (!is_new) {
      words_.push_back(-2 - static_cast<int64_t>(first->second));
      words_.push_back(tensor.storage_offset() - call_.tensors[first->second].storage_offset());
      words_.push_back(tensor.is_same(call_.tensors[first->second]) ? 1 : 0);
    }
    if (tensor.layout() != at::kStrided) return;
    words_.insert(words_.end(), tensor.sizes().begin(), tensor.sizes().end());
    words_.insert(words_.end(), tensor.strides().begin(), tensor.strides().end());
  }

  RegionCall& call_;
  std::vector<int64_t>& words_;
  std::vector<at::Tensor> buffers_;
  absl::flat_hash_map<const void*, size_t> by_memory_;
};

}  // namespace

RegionCall region_call(const torch::nn::Module& module, ForwardCall& call) {
  RegionCall region;
  Builder builder(region);
  builder.add_module(module);
  builder.add_tensors(call.inputs());
  builder.add_modes();
  ValuesKey others;
  call.inputs().append_key(others);
  region.key.others = std::move(others.text);
  region.is_known = others.is_known;
  return region;
}

}  // namespace accelerate
