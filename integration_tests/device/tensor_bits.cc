#include "integration_tests/device/tensor_bits.h"

#include <cstring>
#include <sstream>

#include <ATen/core/Formatting.h>
#include <ATen/ops/zeros.h>

namespace accelerate::device_test {
namespace {

// A dense CPU tensor with the same elements, in order.
at::Tensor plain(const at::Tensor& tensor) {
  // Zeros that have no memory get one.
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.scalar_type());
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

std::string element_difference(const at::Tensor& expected, const at::Tensor& actual) {
  const at::Tensor left = plain(expected);
  const at::Tensor right = plain(actual);
  if (left.nbytes() == 0) return "";
  const auto* left_bytes = static_cast<const char*>(left.const_data_ptr());
  const auto* right_bytes = static_cast<const char*>(right.const_data_ptr());
  const auto itemsize = static_cast<int64_t>(left.itemsize());
  int64_t num_different = 0;
  int64_t first = -1;
  for (int64_t i = 0; i < left.numel(); ++i) {
    if (std::memcmp(left_bytes + i * itemsize, right_bytes + i * itemsize, itemsize) == 0) continue;
    ++num_different;
    if (first < 0) first = i;
  }
  if (num_different == 0) return "";
  std::ostringstream text;
  text.precision(17);
  text << num_different << " of " << left.numel() << " elements differ, the first is number "
       << first << ": " << left.view(-1)[first].item() << " on the CPU, "
       << right.view(-1)[first].item() << " on the device";
  return text.str();
}

template <typename Value>
bool note(std::ostringstream& text, const char* what, const Value& expected, const Value& actual) {
  if (expected == actual) return false;
  text << what << " " << expected << " on the CPU, " << actual << " on the device";
  return true;
}

}  // namespace

std::string difference(const at::Tensor& expected, const at::Tensor& actual, c10::Device device) {
  std::ostringstream text;
  if (note(text, "defined", expected.defined(), actual.defined())) return text.str();
  if (!expected.defined()) return "";
  if (actual.device() != device) {
    text << "it is on " << actual.device() << ", not on " << device;
    return text.str();
  }
  if (note(text, "dtype", expected.scalar_type(), actual.scalar_type()) ||
      note(text, "layout", expected.layout(), actual.layout()) ||
      note(text, "sizes", expected.sizes(), actual.sizes()) ||
      note(text, "requires_grad", expected.requires_grad(), actual.requires_grad()) ||
      note(text, "is_inference", expected.is_inference(), actual.is_inference())) {
    return text.str();
  }
  if (expected.is_sparse()) {
    if (note(text, "is_coalesced", expected.is_coalesced(), actual.is_coalesced()) ||
        note(text, "sparse_dim", expected.sparse_dim(), actual.sparse_dim())) {
      return text.str();
    }
    const std::string indices =
        difference(expected.detach()._indices(), actual.detach()._indices(), device);
    if (!indices.empty()) return "indices: " + indices;
    const std::string values =
        difference(expected.detach()._values(), actual.detach()._values(), device);
    return values.empty() ? "" : "values: " + values;
  }
  if (note(text, "strides", expected.strides(), actual.strides()) ||
      note(text, "is_conj", expected.is_conj(), actual.is_conj()) ||
      note(text, "is_neg", expected.is_neg(), actual.is_neg())) {
    return text.str();
  }
  return element_difference(expected, actual);
}

}  // namespace accelerate::device_test
