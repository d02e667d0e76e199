/// What the stages of a pipeline send each other: outputs of stages, and the gradients of these.
///
/// From each rank to each other one that it sends to there is a group of two ranks, whose messages
/// need no tags (accelerate/pipeline/messages.h says why nothing comes to a standstill). A send is
/// started, and kept until it is known to be done. Receives are posted two ahead of the one that is
/// waited for, because with fewer a sender that is early would wait.
///
/// Before the first message of a stage for a batch of some shape its sender says what it is like;
/// both ends remember that, and the sender checks every later message.
/// Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/process_group.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/pipeline/messages.h"
#include "accelerate/pipeline/schedule.h"

namespace accelerate {

/// What tells micro-batches apart whose messages may have other shapes.
using BatchSignature = std::vector<int64_t>;

/// What a stage's output is like.
struct StageOutput {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  /// Whether the stage before wants its gradient.
  bool requires_grad = true;

  bool operator==(const StageOutput&) const = default;
};

/// The groups of a model's stages, and what is known of their outputs.
class StageChannels {
 public:
  /// Makes the groups. `ranks`: by stage, numbers along pp. Collective over these ranks.
  /// Errors: those of Runtime::new_group.
  StageChannels(const std::vector<int>& ranks, const DeviceMesh& mesh);

  /// This rank's number along pp.
  int rank() const { return rank_; }
  /// The group for messages from rank `from` to rank `to`, one of which is this rank. Errors:
  /// std::out_of_range for two ranks without messages.
  const ProcessGroupPtr& between(int from, int to) const { return groups_.at({from, to}); }

  /// Null: not known yet.
  const StageOutput* find_output(int stage, const BatchSignature& signature) const;
  void set_output(int stage, const BatchSignature& signature, StageOutput output);

 private:
  const int rank_;
  std::map<std::pair<int, int>, ProcessGroupPtr> groups_;
  std::map<std::pair<int, BatchSignature>, StageOutput> outputs_;
};

/// The messages of one window on this rank.
class WindowMessages {
 public:
  /// `signatures`: by micro-batch. `device`: where messages come to. `channels` outlives it.
  WindowMessages(StageChannels& channels, const pipeline::Schedule& schedule,
                 std::vector<BatchSignature> signatures, c10::Device device);

  /// Waits for the message, which is this rank's next one from its sender. Undefined: a gradient
  /// that this rank does not want.
  at::Tensor receive(const pipeline::Message& message);
  /// Starts to send it. A gradient may be undefined: it is zero.
  /// Errors: c10::ValueError for an output that is not as before for batches of this shape.
  void send(const pipeline::Message& message, const at::Tensor& tensor);
  /// Waits for all sends.
  void finish();
  /// Whether a stage wants the gradient of its output, which has come here.
  bool wants_gradient(int stage, int micro_batch) const {
    return channels_.find_output(stage, signatures_[static_cast<size_t>(micro_batch)])
        ->requires_grad;
  }

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  struct Pending {
    at::Tensor tensor;
    WorkPtr work;  // null: there is nothing to wait for
  };
  // From one sender.
  struct Incoming {
    std::vector<pipeline::Message> expected;
    size_t taken = 0;
    std::deque<Pending> posted = {};  // those behind the taken ones
  };
  struct Sent {
    int to_rank = 0;
    size_t needed_at = 0;  // by which of its receiver's actions
    std::vector<at::Tensor> tensors;
    WorkPtr work;
  };

  const BatchSignature& signature_of(const pipeline::Message& message) const {
    return signatures_[static_cast<size_t>(message.micro_batch)];
  }
  const StageOutput* find_output(const pipeline::Message& message) const;
  void receive_description(const pipeline::Message& message);
  void send_description(const pipeline::Message& message, const StageOutput& output);
  void start_send(const pipeline::Message& message, at::Tensor tensor);
  // Posts receives of what is known until `ahead` are there.
  void post(Incoming& incoming, size_t ahead);
  // Lets go of what its receiver took before it made this message.
  void drop_arrived(const pipeline::Message& message);
  // The stage's action that makes the message, or needs it.
  pipeline::ActionPlace place_of(const pipeline::Message& message, int stage) const;

  StageChannels& channels_;
  const pipeline::ActionIndex index_;
  const std::vector<BatchSignature> signatures_;
  const c10::Device device_;
  std::map<int, Incoming> incoming_;  // by sender
  std::vector<Sent> sent_;
};

}  // namespace accelerate
