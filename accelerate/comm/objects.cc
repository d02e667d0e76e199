#include "accelerate/comm/objects.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

// The first message: the number of bytes, and the bytes if there are few.
constexpr int64_t kFirstMessage = 256;
constexpr int64_t kFew = kFirstMessage - static_cast<int64_t>(sizeof(int64_t));

// The bytes that one collective carries, over all ranks: enough to be fast, and countable with 32
// bits.
constexpr int64_t kMaxMessage = int64_t{64} << 20;
constexpr int64_t kMinMessage = int64_t{64} << 10;

char* data_of(const at::Tensor& message) { return static_cast<char*>(message.mutable_data_ptr()); }

// Without copying, so `bytes` must outlive it.
at::Tensor message_in(std::string& bytes, int64_t begin, int64_t size) {
  return at::from_blob(bytes.data() + begin, {size}, at::kByte);
}

// [begin, begin + size) of `bytes`, and zeros beyond its end: what travels is the same in each run.
at::Tensor message_of(const std::string& bytes, int64_t begin, int64_t size) {
  const auto length = static_cast<int64_t>(bytes.size());
  if (begin + size <= length) return message_in(const_cast<std::string&>(bytes), begin, size);
  at::Tensor message = at::zeros({size}, at::kByte);
  if (begin < length) std::memcpy(data_of(message), bytes.data() + begin, length - begin);
  return message;
}

at::Tensor first_message(const std::string& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  at::Tensor message = at::zeros({kFirstMessage}, at::kByte);
  std::memcpy(data_of(message), &size, sizeof(size));
  const int64_t sent = size <= kFew ? size : 0;
  std::memcpy(data_of(message) + sizeof(size), bytes.data(), static_cast<size_t>(sent));
  return message;
}

int64_t size_in(const char* first_message) {
  int64_t size = 0;
  std::memcpy(&size, first_message, sizeof(size));
  return size;
}

void check_size(int64_t size) {
  TORCH_CHECK_VALUE(size <= kMaxObjectBytes, "an object of ", size,
                    " bytes is too large to travel; the limit is ", kMaxObjectBytes,
                    ". Send tensors as tensors");
}

// UTF-8 characters, one string each.
std::vector<c10::IValue> characters(const std::string& text) {
  std::vector<c10::IValue> found;
  size_t begin = 0;
  for (size_t end = 1; end <= text.size(); ++end) {
    const bool inside = end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;
    if (inside) continue;
    found.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return found;
}

using Description = std::optional<std::pair<at::ScalarType, std::vector<int64_t>>>;

}  // namespace

namespace internal {

std::vector<c10::IValue> entries_of(const c10::IValue& object) {
  if (object.isTuple()) return object.toTupleRef().elements().vec();
  if (object.isList()) return object.toListRef().vec();
  if (object.isString()) return characters(object.toStringRef());
  if (object.isTensor() && object.toTensor().defined() && object.toTensor().dim() > 0) {
    const std::vector<at::Tensor> rows = object.toTensor().unbind();
    return {rows.begin(), rows.end()};
  }
  TORCH_CHECK_VALUE(false, "gather_object: a ", leaf_type(object),
                    " has no entries to gather; put it into a list");
}

}  // namespace internal

std::vector<std::string> all_gather_bytes(const ProcessGroupPtr& group, const std::string& bytes) {
  if (!group) return {bytes};
  const at::Tensor first = gather_tensor(group, first_message(bytes));
  const auto* table = static_cast<const char*>(first.const_data_ptr());
  const int64_t ranks = group->getSize();
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    most = std::max(most, size_in(table + rank * kFirstMessage));
  }
  // All ranks know by now, so that all complain.
  check_size(most);
  std::vector<std::string> by_rank(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const char* message = table + rank * kFirstMessage;
    const int64_t size = size_in(message);
    if (size <= kFew) by_rank[rank].assign(message + sizeof(size), static_cast<size_t>(size));
  }
  if (most <= kFew) return by_rank;
  const int64_t piece = std::max(kMinMessage, kMaxMessage / ranks);
  for (int64_t begin = 0; begin < most; begin += piece) {
    const int64_t width = std::min(piece, most - begin);
    const at::Tensor pieces = gather_tensor(group, message_of(bytes, begin, width));
    const auto* data = static_cast<const char*>(pieces.const_data_ptr());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t size = size_in(table + rank * kFirstMessage);
      if (size <= kFew || begin >= size) continue;
      by_rank[rank].append(data + rank * width, std::min(width, size - begin));
    }
  }
  return by_rank;
}

std::string broadcast_bytes(const ProcessGroupPtr& group, std::string bytes, int source) {
  if (!group) return bytes;
  internal::check_rank(group, "broadcast", source);
  const bool sends = group->getRank() == source;
  const at::Tensor first = sends ? first_message(bytes) : at::empty({kFirstMessage}, at::kByte);
  broadcast_tensor(group, first, source);
  const char* message = data_of(first);
  const int64_t size = size_in(message);
  check_size(size);
  if (sends && size <= kFew) return bytes;
  if (size <= kFew) return std::string(message + sizeof(size), static_cast<size_t>(size));
  bytes.resize(static_cast<size_t>(size));
  for (int64_t begin = 0; begin < size; begin += kMaxMessage) {
    const int64_t width = std::min(kMaxMessage, size - begin);
    broadcast_tensor(group, message_in(bytes, begin, width), source);
  }
  return bytes;
}

c10::IValue gather_object(const ProcessGroupPtr& group, const c10::IValue& object) {
  if (!group) return object;
  c10::impl::GenericList all(c10::AnyType::get());
  for (c10::IValue& entry : gather_object(group, internal::entries_of(object))) {
    all.push_back(std::move(entry));
  }
  return all;
}

TensorSource gather_tensor_shape(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  std::optional<TensorSource> source;
  std::string owners;
  int count = 0;
  Description own;
  if (tensor.defined()) own.emplace(tensor.scalar_type(), tensor.sizes().vec());
  const std::vector<std::string> by_rank = all_gather_bytes(group, to_bytes(own));
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    Description described = from_bytes<Description>(by_rank[rank]);
    if (!described) continue;
    ++count;
    owners += (owners.empty() ? "" : ", ") + std::to_string(rank);
    source = {.rank = static_cast<int>(rank),
              .information = {.shape = std::move(described->second), .dtype = described->first}};
  }
  TORCH_CHECK_VALUE(count == 1,
                    "copy_tensor_to_devices: exactly one rank must have the tensor, but ",
                    owners.empty() ? "none has it" : "these have one: " + owners);
  return *source;
}

at::Tensor copy_tensor_to_devices(const ProcessGroupPtr& group, const at::Tensor& tensor,
                                  c10::Device device) {
  const TensorSource source = gather_tensor_shape(group, tensor);
  const TensorInformation& information = source.information;
  const at::Tensor copy =
      tensor.defined() ? tensor
                       : at::empty(information.shape, at::device(device).dtype(information.dtype));
  broadcast_tensor(group, copy, source.rank);
  return copy;
}

}  // namespace accelerate
