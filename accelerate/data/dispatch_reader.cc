#include "accelerate/data/dispatch_reader.h"

#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/data/dataset_error.h"

namespace accelerate::internal {
namespace {

constexpr int64_t kHeaderSize = 8;
static_assert(sizeof(DispatchChannel::Header) <= kHeaderSize * sizeof(int64_t));

}  // namespace

void DispatchChannel::broadcast_header(Header& header) {
  at::Tensor numbers = at::zeros({kHeaderSize}, at::kLong);
  int64_t* data = numbers.mutable_data_ptr<int64_t>();
  std::memcpy(data, &header, sizeof(header));
  std::vector<at::Tensor> tensors{numbers};
  group_->broadcast(tensors)->wait();
  std::memcpy(&header, data, sizeof(header));
}

void DispatchChannel::broadcast_tensors(const std::vector<at::Tensor>& tensors) {
  at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> in_flight;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    in_flight.push_back({as_carried(tensor)});
    works.push_back(group_->broadcast(in_flight.back()));
  }
  for (const auto& work : works) work->wait();
}

void DispatchChannel::send(Header header, const std::string& structure,
                           const std::vector<at::Tensor>& tensors) {
  if (!group_) return;
  if (structure != structure_) header.structure_bytes = static_cast<int64_t>(structure.size());
  broadcast_header(header);
  if (header.structure_bytes != Header::kSameStructure)
    structure_ = broadcast_bytes(group_, structure);
  broadcast_tensors(tensors);
}

void DispatchChannel::send(Header::Kind kind, const std::string& text) {
  if (!group_) return;
  Header header{.kind = kind};
  broadcast_header(header);
  if (kind != Header::kEnd) broadcast_bytes(group_, text);
}

std::string DispatchChannel::receive_pass() {
  const Header header = receive_header();
  TORCH_CHECK(header.kind == Header::kPass,
              "dispatch_batches: rank 0 is still in its loop while "
              "rank ",
              group_->getRank(),
              " begins another pass: all ranks must leave it after the "
              "same batch");
  return broadcast_bytes(group_, "");
}

DispatchChannel::Header DispatchChannel::receive_header() {
  Header header;
  broadcast_header(header);
  if (header.kind == Header::kError) {
    throw DatasetError("rank 0, which reads for all ranks, failed: " + broadcast_bytes(group_, ""));
  }
  if (header.structure_bytes != Header::kSameStructure) structure_ = broadcast_bytes(group_, "");
  return header;
}

}  // namespace accelerate::internal
