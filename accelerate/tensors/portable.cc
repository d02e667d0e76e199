#include "accelerate/tensors/portable.h"

#include <cstring>

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

// An undefined tensor's dtype.
constexpr int8_t kUndefined = -1;

}  // namespace

void PortableWriter::write_bytes(const void* data, size_t size) {
  if (size > 0) bytes_.append(static_cast<const char*>(data), size);
}

void PortableWriter::write_string(const std::string& text) {
  const auto size = static_cast<uint64_t>(text.size());
  write_bytes(&size, sizeof(size));
  write_bytes(text.data(), text.size());
}

void PortableWriter::write_tensor(const at::Tensor& tensor) {
  const auto dtype = tensor.defined() ? static_cast<int8_t>(tensor.scalar_type()) : kUndefined;
  write_bytes(&dtype, sizeof(dtype));
  if (dtype == kUndefined) return;
  const int64_t dim = tensor.dim();
  write_bytes(&dim, sizeof(dim));
  write_bytes(tensor.sizes().data(), sizeof(int64_t) * tensor.sizes().size());
  tensors_.push_back(tensor);
}

void PortableWriter::write_ivalue(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  const std::vector<char> bytes = torch::jit::pickle(value, &tensors);
  write_string(std::string(bytes.begin(), bytes.end()));
  const auto count = static_cast<uint64_t>(tensors.size());
  write_bytes(&count, sizeof(count));
  for (const at::Tensor& tensor : tensors) write_tensor(tensor);
}

std::string PortableWriter::pack() && {
  for (const at::Tensor& tensor : tensors_) {
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_meta(), "a tensor with layout ",
                      tensor.layout(), " on ", tensor.device(), " cannot travel in an object");
    const at::Tensor data = internal::without_flags(tensor.detach().cpu()).contiguous();
    write_bytes(data.const_data_ptr(), data.nbytes());
  }
  return std::move(bytes_);
}

void PortableReader::read_bytes(void* data, size_t size) {
  TORCH_CHECK(size <= bytes_.size() - used_, "a value from another rank ends too early");
  if (size > 0) std::memcpy(data, bytes_.data() + used_, size);
  used_ += size;
}

std::string PortableReader::read_string() {
  uint64_t size = 0;
  read_bytes(&size, sizeof(size));
  TORCH_CHECK(size <= bytes_.size() - used_, "a value from another rank ends too early");
  std::string text = bytes_.substr(used_, size);
  used_ += size;
  return text;
}

at::Tensor PortableReader::read_tensor() {
  int8_t dtype = kUndefined;
  read_bytes(&dtype, sizeof(dtype));
  if (dtype == kUndefined) return {};
  int64_t dim = 0;
  read_bytes(&dim, sizeof(dim));
  TORCH_CHECK(dim >= 0 && dim <= 64, "a value from another rank is damaged");
  std::vector<int64_t> sizes(static_cast<size_t>(dim));
  read_bytes(sizes.data(), sizeof(int64_t) * sizes.size());
  tensors_.push_back(
      at::empty(sizes, at::device(device_).dtype(static_cast<at::ScalarType>(dtype))));
  return tensors_.back();
}

void PortableReader::unpack() {
  for (at::Tensor& tensor : tensors_) read_bytes(tensor.mutable_data_ptr(), tensor.nbytes());
}

void PortableReader::read_ivalue(c10::IValue& value) {
  const std::string bytes = read_string();
  uint64_t count = 0;
  read_bytes(&count, sizeof(count));
  std::vector<at::Tensor> tensors;
  for (uint64_t i = 0; i < count; ++i) tensors.push_back(read_tensor());
  value = torch::jit::unpickle(bytes.data(), bytes.size(), nullptr, tensors);
}

}  // namespace accelerate
