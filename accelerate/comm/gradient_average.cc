#include "accelerate/comm/gradient_average.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

constexpr int64_t kBufferBytes = int64_t{25} << 20;
constexpr size_t kOnTheirWay = 2;

// One flat buffer: the places of its tensors, and after them one element for each that says whether
// the rank had the tensor.
struct Buffer {
  std::vector<size_t> members;  // indices
  int64_t numel = 0;
  at::Tensor flat = {};
  c10::intrusive_ptr<c10d::Work> work = {};
};

// What is packed: where to put it, and what is there now (undefined: zero).
struct Item {
  at::Tensor place;  // has the shape, the dtype and the device
  at::Tensor value;
};

std::vector<Buffer> plan(const std::vector<Item>& items) {
  std::vector<Buffer> buffers;
  std::vector<size_t> open;  // the buffer of each kind that is being filled
  for (size_t i = 0; i < items.size(); ++i) {
    const at::Tensor& place = items[i].place;
    const int64_t bytes = place.numel() * place.element_size();
    auto fits = [&](size_t candidate) {
      const at::Tensor& other = items[buffers[candidate].members.front()].place;
      return other.scalar_type() == place.scalar_type() && other.device() == place.device();
    };
    auto found = std::find_if(open.begin(), open.end(), fits);
    if (found == open.end()) found = open.insert(open.end(), buffers.size());
    const bool full = *found < buffers.size() &&
                      buffers[*found].numel * place.element_size() + bytes > kBufferBytes;
    if (full) *found = buffers.size();
    if (*found == buffers.size()) buffers.emplace_back();
    buffers[*found].members.push_back(i);
    buffers[*found].numel += place.numel();
  }
  return buffers;
}

void send(const ProcessGroupPtr& group, const std::vector<Item>& items, Buffer& buffer) {
  const auto options = items[buffer.members.front()].place.options().requires_grad(false);
  const auto count = static_cast<int64_t>(buffer.members.size());
  buffer.flat = at::empty({buffer.numel + count}, options);
  std::vector<float> present;
  int64_t offset = 0;
  for (size_t member : buffer.members) {
    const auto& [place, value] = items[member];
    at::Tensor part = buffer.flat.narrow(0, offset, place.numel());
    offset += place.numel();
    present.push_back(value.defined() ? 1 : 0);
    if (value.defined()) {
      part.view(place.sizes()).copy_(value);
    } else {
      part.zero_();
    }
  }
  buffer.flat.narrow(0, buffer.numel, count).copy_(at::tensor(present));
  buffer.flat.div_(group->getSize());
  std::vector<at::Tensor> tensors{buffer.flat.is_complex() ? at::view_as_real(buffer.flat)
                                                           : buffer.flat};
  buffer.work = group->allreduce(tensors);
}

// `put(item, mean)` for each item that some rank had.
template <typename Put>
void receive(const std::vector<Item>& items, Buffer& buffer, const Put& put) {
  buffer.work->wait();
  const auto count = static_cast<int64_t>(buffer.members.size());
  at::Tensor ranks = buffer.flat.narrow(0, buffer.numel, count);
  if (ranks.is_complex()) ranks = at::view_as_real(ranks).select(1, 0);
  ranks = ranks.to(at::kCPU, at::kFloat).contiguous();
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    const size_t member = buffer.members[i];
    const at::Tensor& place = items[member].place;
    if (ranks.const_data_ptr<float>()[i] > 0) {
      put(items[member], buffer.flat.narrow(0, offset, place.numel()).view(place.sizes()));
    }
    offset += place.numel();
  }
  buffer = {};
}

template <typename Put>
void average(const ProcessGroupPtr& group, const std::vector<Item>& items, const Put& put) {
  std::vector<Buffer> buffers = plan(items);
  for (size_t i = 0; i < buffers.size() + kOnTheirWay; ++i) {
    if (i >= kOnTheirWay) receive(items, buffers[i - kOnTheirWay], put);
    if (i < buffers.size()) send(group, items, buffers[i]);
  }
}

}  // namespace

void average_tensors(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), "average_tensors: a tensor is undefined");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "average_tensors: a tensor is sparse");
    TORCH_CHECK_VALUE(tensor.is_floating_point() || tensor.is_complex(),
                      "average_tensors: the mean of ", tensor.scalar_type(), " is not defined");
  }
  if (!group) return;
  at::NoGradGuard no_grad;
  std::vector<Item> items;
  for (const at::Tensor& tensor : tensors) items.push_back({.place = tensor, .value = tensor});
  average(group, items, [](const Item& item, const at::Tensor& mean) { item.place.copy_(mean); });
}

void average_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters) {
  if (!group) return;
  at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<Item> items;
  for (const at::Tensor& parameter : parameters) {
    TORCH_CHECK_VALUE(parameter.defined(), "average_gradients: a parameter is undefined");
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    at::Tensor grad = parameter.grad();
    if (grad.defined() && grad.layout() != at::kStrided) grad = grad.to_dense();
    items.push_back({.place = parameter, .value = std::move(grad)});
  }
  average(group, items, [](const Item& item, const at::Tensor& mean) {
    at::Tensor& grad = item.place.mutable_grad();
    // A gradient that is there may be somebody's view.
    if (!grad.defined() || grad.layout() != at::kStrided) grad = at::empty_like(item.place);
    grad.copy_(mean);
  });
}

}  // namespace accelerate
