#include "accelerate/parallel/pipeline/stage_messages.h"

#include <algorithm>
#include <set>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using pipeline::ActionPlace;
using pipeline::Message;

constexpr size_t kAhead = 2;
constexpr int kTag = 0;

// A description has the dtype, whether a gradient is wanted, the number of dims, and their sizes.
constexpr size_t kMostDims = 13;
constexpr size_t kDescription = 3 + kMostDims;

std::string text_of(const StageOutput& output) {
  return absl::StrCat(c10::toString(output.dtype), " [", absl::StrJoin(output.sizes, ", "), "]",
                      output.requires_grad ? "" : " without a gradient");
}

}  // namespace

StageChannels::StageChannels(const std::vector<int>& ranks, const DeviceMesh& mesh)
    : rank_(mesh.coordinate(MeshAxis::kPp)) {
  std::set<std::pair<int, int>> pairs;
  for (size_t i = 0; i + 1 < ranks.size(); ++i) {
    if (ranks[i] == ranks[i + 1]) continue;
    pairs.insert({ranks[i], ranks[i + 1]});
    pairs.insert({ranks[i + 1], ranks[i]});
  }
  // In one order on all ranks, so that none waits for another in a circle.
  for (const auto& [from, to] : pairs) {
    if (from == rank_ || to == rank_) groups_[{from, to}] = mesh.channel(MeshAxis::kPp, from, to);
  }
}

const StageOutput* StageChannels::find_output(int stage, const BatchSignature& signature) const {
  const auto found = outputs_.find({stage, signature});
  return found != outputs_.end() ? &found->second : nullptr;
}

void StageChannels::set_output(int stage, const BatchSignature& signature, StageOutput output) {
  outputs_[{stage, signature}] = std::move(output);
}

WindowMessages::WindowMessages(StageChannels& channels, const pipeline::Schedule& schedule,
                               std::vector<BatchSignature> signatures, c10::Device device)
    : channels_(channels), index_(schedule), signatures_(std::move(signatures)), device_(device) {
  const auto steps = pipeline::schedule_steps(schedule);
  for (const pipeline::Step& step : steps[static_cast<size_t>(channels.rank())]) {
    if (step.receive) incoming_[step.receive->from_rank].expected.push_back(*step.receive);
  }
  for (auto& [sender, incoming] : incoming_) post(incoming, kAhead);
}

at::Tensor WindowMessages::receive(const Message& message) {
  Incoming& incoming = incoming_.at(message.from_rank);
  TORCH_INTERNAL_ASSERT(
      incoming.taken < incoming.expected.size() && incoming.expected[incoming.taken] == message,
      "rank ", message.to_rank, " along pp takes messages of rank ", message.from_rank,
      " in another order");
  if (find_output(message) == nullptr) receive_description(message);
  post(incoming, kAhead + 1);
  const Pending pending = std::move(incoming.posted.front());
  incoming.posted.pop_front();
  ++incoming.taken;
  if (pending.work != nullptr) {
    pending.work->wait();
    drop_arrived(message);
  }
  return pending.tensor;
}

void WindowMessages::post(Incoming& incoming, size_t ahead) {
  while (incoming.posted.size() < ahead) {
    const size_t next = incoming.taken + incoming.posted.size();
    if (next == incoming.expected.size()) return;
    const Message& message = incoming.expected[next];
    const StageOutput* const output = find_output(message);
    // Its description comes before it, and is waited for when the message is needed.
    if (output == nullptr) return;
    Pending& pending = incoming.posted.emplace_back();
    if (message.is_gradient() && !output->requires_grad) continue;
    pending.tensor = at::empty(output->sizes, at::TensorOptions(device_).dtype(output->dtype));
    std::vector<at::Tensor> tensors = {pending.tensor};
    pending.work = channels_.between(message.from_rank, message.to_rank)
                       ->recv(tensors, message.from_rank > message.to_rank ? 1 : 0, kTag);
  }
}

void WindowMessages::send(const Message& message, const at::Tensor& tensor) {
  const StageOutput* known = find_output(message);
  if (message.is_gradient()) {
    if (!known->requires_grad) return;
    return start_send(
        message, tensor.defined()
                     ? tensor.to(known->dtype)
                     : at::zeros(known->sizes, at::TensorOptions(device_).dtype(known->dtype)));
  }
  const StageOutput output = {.sizes = tensor.sizes().vec(),
                              .dtype = tensor.scalar_type(),
                              .requires_grad = tensor.requires_grad()};
  if (known == nullptr) {
    send_description(message, output);
    channels_.set_output(message.from_stage, signature_of(message), output);
  } else {
    TORCH_CHECK_VALUE(output == *known, "pipeline: the output of stage ", message.from_stage,
                      " for micro-batch ", message.micro_batch, " is ", text_of(output),
                      ", but was ", text_of(*known),
                      " before for a batch of the same shape; the next stage waits for that");
  }
  start_send(message, tensor.detach());
}

void WindowMessages::finish() {
  for (const Sent& each : sent_) each.work->wait();
  sent_.clear();
}

const StageOutput* WindowMessages::find_output(const Message& message) const {
  return channels_.find_output(std::min(message.from_stage, message.to_stage),
                               signature_of(message));
}

void WindowMessages::receive_description(const Message& message) {
  std::vector<at::Tensor> tensors = {at::empty({kDescription}, at::kLong)};
  channels_.between(message.from_rank, message.to_rank)
      ->recv(tensors, message.from_rank > message.to_rank ? 1 : 0, kTag)
      ->wait();
  const int64_t* const numbers = tensors[0].const_data_ptr<int64_t>();
  channels_.set_output(message.from_stage, signature_of(message),
                       {.sizes = {numbers + 3, numbers + 3 + numbers[2]},
                        .dtype = static_cast<at::ScalarType>(numbers[0]),
                        .requires_grad = numbers[1] != 0});
}

void WindowMessages::send_description(const Message& message, const StageOutput& output) {
  TORCH_CHECK_VALUE(output.sizes.size() <= kMostDims, "pipeline: the output of stage ",
                    message.from_stage, " has ", output.sizes.size(), " dims; the most is ",
                    kMostDims);
  const at::Tensor description = at::zeros({kDescription}, at::kLong);
  auto* const numbers = description.mutable_data_ptr<int64_t>();
  numbers[0] = static_cast<int64_t>(output.dtype);
  numbers[1] = output.requires_grad ? 1 : 0;
  numbers[2] = static_cast<int64_t>(output.sizes.size());
  std::ranges::copy(output.sizes, numbers + 3);
  start_send(message, description);
}

void WindowMessages::start_send(const Message& message, at::Tensor tensor) {
  Sent& sent = sent_.emplace_back(Sent{.to_rank = message.to_rank,
                                       .needed_at = place_of(message, message.to_stage).index,
                                       .tensors = {internal::without_flags(tensor).contiguous()},
                                       .work = nullptr});
  sent.work = channels_.between(message.from_rank, message.to_rank)
                  ->send(sent.tensors, message.to_rank > message.from_rank ? 1 : 0, kTag);
}

void WindowMessages::drop_arrived(const Message& message) {
  const size_t made_at = place_of(message, message.from_stage).index;
  std::erase_if(sent_, [&](const Sent& each) {
    if (each.to_rank != message.from_rank || each.needed_at > made_at) return false;
    each.work->wait();
    return true;
  });
}

ActionPlace WindowMessages::place_of(const Message& message, int stage) const {
  return message.is_gradient() ? index_.gradient(stage, message.micro_batch)
                               : index_.forward(stage, message.micro_batch);
}

}  // namespace accelerate
