// Meta kernels, LibTorch's and those of simulator/shape_rules, know what operators on a device
// return: sizes, strides, types, aliases and bytes of memory.
//
// While the cases run on a simulated device, every operator whose kernel is a device's own is run
// on Meta tensors of the same geometry as well. One shape each: one device.
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "absl/strings/match.h"
#include "accelerate/operators/operator_mode.h"
#include "integration_tests/device/op_cases.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/install.h"
#include "simulator/device/op_info.h"

namespace accelerate::device_test {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;

// Operators whose results have a shape that depends on values.
const std::set<std::string> kRefused = {
    "aten::_unique",
    "aten::_unique2",
    "aten::bincount",
    "aten::index.Tensor",  // by a mask
    "aten::linalg_lstsq.out",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::unique_consecutive",
    "aten::unique_dim",
};

// Where Meta kernels give other results, and why that does not matter.
const std::map<std::string, std::string> kExceptions = {
    {"aten::replication_pad2d",
     "LibTorch's own Meta kernel pads channels-last images into contiguous ones, of as many bytes"},
};

// An operator's arguments as Meta tensors.
class MetaCall {
 public:
  // A tensor on the device as a Meta tensor; of one storage, Meta tensors share one, too.
  Tensor to_meta(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    for (size_t i = 0; i < originals_.size(); ++i) {
      if (originals_[i].is_same(tensor)) return copies_[i];
    }
    c10::TensorImpl* from = tensor.unsafeGetTensorImpl();
    Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
        storage_for(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::Meta), from->dtype());
    c10::TensorImpl* to = meta.unsafeGetTensorImpl();
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
    if (from->is_wrapped_number()) to->set_wrapped_number(true);
    if (from->is_conj()) to->_set_conj(true);
    if (from->is_neg()) to->_set_neg(true);
    originals_.push_back(tensor);
    copies_.push_back(meta);
    return meta;
  }

  c10::IValue to_meta(const c10::IValue& value) {
    if (value.isTensor()) return to_meta(value.toTensor());
    if (value.isTensorList()) {
      Tensors tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) tensor = to_meta(tensor);
      return c10::List<Tensor>(std::move(tensors));
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
        tensors.push_back(tensor ? std::optional(to_meta(*tensor)) : tensor);
      }
      return tensors;
    }
    if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::kMeta);
    if (value.isGenerator()) return {};
    return value;
  }

 private:
  c10::Storage storage_for(const c10::Storage& original) {
    const c10::StorageImpl* key = original.unsafeGetStorageImpl();
    const auto found = storages_.find(key);
    if (found != storages_.end()) return found->second;
    c10::Storage storage(c10::Storage::use_byte_size_t(), original.nbytes(),
                         c10::DataPtr(nullptr, c10::kMeta), c10::GetAllocator(c10::kMeta),
                         /*resizable=*/true);
    storages_.emplace(key, storage);
    return storage;
  }

  Tensors originals_, copies_;
  std::map<const c10::StorageImpl*, c10::Storage> storages_;
};

void collect(const c10::IValue& value, Tensors& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    append(tensors, value.toTensorVector());
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor) tensors.push_back(*tensor);
    }
  }
}

Tensors tensors_of(c10::ArrayRef<c10::IValue> values) {
  Tensors tensors;
  for (const c10::IValue& value : values) collect(value, tensors);
  return tensors;
}

bool has_storage(const Tensor& tensor) { return tensor.defined() && tensor.has_storage(); }

// What is known of a tensor without its values. An alias is named by the first of `all` that has
// the same storage.
std::string describe(const Tensor& tensor, const Tensors& all) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << tensor.scalar_type() << " sizes " << tensor.sizes() << " strides " << tensor.strides()
       << " offset " << tensor.storage_offset() << (tensor.is_conj() ? " conj" : "")
       << (tensor.is_neg() ? " neg" : "");
  if (!has_storage(tensor)) return text.str();
  text << " bytes " << tensor.storage().nbytes();
  for (size_t i = 0; i < all.size(); ++i) {
    if (has_storage(all[i]) &&
        all[i].storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      text << " memory of " << i;
      break;
    }
  }
  return text.str();
}

// The first difference; empty if there is none.
std::string compare(const Tensors& device, const Tensors& meta, size_t num_arguments) {
  std::ostringstream text;
  if (device.size() != meta.size()) {
    text << device.size() << " tensors on the device, " << meta.size() << " on Meta";
    return text.str();
  }
  for (size_t i = 0; i < device.size(); ++i) {
    const std::string expected = describe(device[i], device);
    const std::string actual = describe(meta[i], meta);
    if (expected == actual) continue;
    if (i < num_arguments) {
      text << "argument " << i;
    } else {
      text << "result " << i - num_arguments;
    }
    text << ": " << expected << " on the device, " << actual << " on Meta";
    return text.str();
  }
  return "";
}

// Whether the device has a kernel for the operator that Meta has to have as well.
bool has_kernel(const c10::OperatorHandle& op) {
  static const std::set<std::string> kOfDevicesAlone = {"aten::copy_", "aten::_copy_from",
                                                        "aten::record_stream"};
  if (kOfDevicesAlone.contains(op.schema().name())) return false;
  switch (simulator::op_support(op)) {
    case simulator::OpSupport::kCpuKernel: return true;
    case simulator::OpSupport::kDevice:
      return !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    default: return false;
  }
}

// Runs every operator of a device on Meta tensors, too.
class MetaShadow final : public OperatorHandler {
 public:
  MetaShadow() : OperatorHandler(OperatorOrder::kLinearProducts) {}

  void call(const OperatorCall& call) override {
    torch::jit::Stack& stack = call.stack();
    const size_t num_arguments = call.op().schema().arguments().size();
    const size_t first = stack.size() - num_arguments;
    const torch::jit::Stack arguments(stack.begin() + static_cast<ptrdiff_t>(first), stack.end());
    if (!comparable(call.op(), arguments)) return call.proceed();
    MetaCall meta_call;
    torch::jit::Stack meta_arguments;
    for (const c10::IValue& argument : arguments) {
      meta_arguments.push_back(meta_call.to_meta(argument));
    }
    call.proceed();
    Tensors device = tensors_of(arguments);
    const size_t num_argument_tensors = device.size();
    append(device, tensors_of(c10::ArrayRef<c10::IValue>(stack).slice(first)));
    // What the host reads is not a tensor and has no shape.
    const bool only_reads_values =
        device.size() == num_argument_tensors && simulator::op_info(call.op()).written == 0;
    if (!on_device(device) || only_reads_values) return;
    ++num_compared;
    const std::string name = c10::toString(call.op().operator_name());
    try {
      Tensors meta = tensors_of(meta_arguments);
      append(meta, tensors_of(run(call.op(), std::move(meta_arguments))));
      const std::string difference = compare(device, meta, num_argument_tensors);
      if (!difference.empty()) note(name, difference);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (absl::StrContains(text, "depends on values")) {
        refused.insert(name);
      } else {
        note(name, text.substr(0, 300));
      }
    }
  }

  std::string case_name;
  int64_t num_compared = 0;
  std::set<std::string> refused;
  std::map<std::string, std::string> differing;  // by operator

 private:
  static bool comparable(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
    for (const c10::IValue& argument : arguments) {
      if (argument.isStorage()) return false;
    }
    for (const Tensor& tensor : tensors_of(arguments)) {
      if (tensor.defined() && (tensor.layout() != c10::kStrided || tensor._is_zerotensor())) {
        return false;
      }
    }
    return has_kernel(op);
  }

  static bool on_device(const Tensors& tensors) {
    bool any = false;
    for (const Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      if (tensor.layout() != c10::kStrided || tensor._is_zerotensor()) return false;
      any = any || tensor.is_privateuseone();
    }
    return any;
  }

  static torch::jit::Stack run(const c10::OperatorHandle& op, torch::jit::Stack stack) {
    const OperatorModeScope unseen = OperatorModeScope::without(OperatorOrder::kLinearProducts);
    c10::impl::ExcludeDispatchKeyGuard below(simulator::kAboveKernels);
    op.callBoxed(&stack);
    return stack;
  }

  void note(const std::string& name, const std::string& difference) {
    differing.try_emplace(name, "in " + case_name + ": " + difference);
  }
};

TEST(OpShapes, AreKnownWithoutValues) {
  Cluster cluster("1x1:h100");
  const auto shadow = std::make_shared<MetaShadow>();
  cluster.run_on_every_rank([&](Rank& rank) {
    const OperatorModeScope scope(shadow);
    for (const OpCase& op_case : all_op_cases()) {
      shadow->case_name = op_case.name;
      torch::manual_seed(1);
      Inputs inputs(rank.runtime().device());
      op_case.run(inputs);
    }
  });
  EXPECT_GT(shadow->num_compared, 5000);
  for (const auto& [op, difference] : shadow->differing) {
    EXPECT_TRUE(kExceptions.contains(op)) << op << " " << difference;
  }
  for (const auto& [op, reason] : kExceptions) {
    EXPECT_TRUE(shadow->differing.contains(op)) << op << " gives equal results now: " << reason;
  }
  EXPECT_EQ(shadow->refused, kRefused);
}

TEST(OpShapes, ThatDependOnValuesAreErrorsThatNameTheOperator) {
  simulator::install_sim_device();
  const Tensor mask = at::empty({4, 6}, at::device(c10::kMeta).dtype(at::kBool));
  try {
    at::nonzero(mask);
    FAIL() << "it has a shape";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_THAT(
        std::string(error.what_without_backtrace()),
        HasSubstr("the shape of aten::nonzero's result depends on values, which numerics = shapes "
                  "does not compute"));
  }
  EXPECT_THROW(mask.index({mask}), c10::NotImplementedError);
}

}  // namespace
}  // namespace accelerate::device_test
