/// What the ranks of a pipeline send each other, and when.
///
/// From each rank to each other one that it sends to there is one channel, as a process group of
/// two ranks: messages go through it in one order and need no tags. A rank starts a send and goes
/// on; it waits for a message before the action that needs it. The order of a channel is the one in
/// which its receiver needs the messages. Most schedules make them in the same order; in zb_v a
/// rank's outputs and gradients go to the same neighbour, and one that is ready early waits until
/// those before it are sent. Its receiver waits for those anyway, so nothing comes late.
///
/// So a schedule that check_schedule (check.h) passes cannot come to a standstill, even where a
/// message moves only when both ends have come to it.
/// Threads: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "accelerate/pipeline/schedule.h"

namespace accelerate::pipeline {

/// The output of a stage for the next stage, or the gradient of its input for the one before. The
/// stages are on different ranks.
struct Message {
  int from_stage = 0;
  int to_stage = 0;
  int micro_batch = 0;
  int from_rank = 0;
  int to_rank = 0;

  bool is_gradient() const { return to_stage < from_stage; }

  bool operator==(const Message&) const = default;
};

/// An action with its messages.
struct Step {
  Action action;
  /// Must have come before the action.
  std::optional<Message> receive = std::nullopt;
  /// Are sent behind the action, in this order: its own message, unless that has to wait for a
  /// later action, and those that waited for it.
  std::vector<Message> sends = {};
};

/// The steps of each rank, for a schedule that check_schedule passes.
std::vector<std::vector<Step>> schedule_steps(const Schedule& schedule);

}  // namespace accelerate::pipeline
