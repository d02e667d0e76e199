#include "accelerate/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"

namespace accelerate::pipeline {
namespace {

using enum Pass;

constexpr int64_t kMostActions = 10'000'000;

// The list of one rank. The actions of a kind on a stage are for one micro-batch after another.
class RankOrder {
 public:
  // What is added is of these stages, which are called by their places in the list.
  RankOrder(std::vector<int> stages, int micro_batches)
      : stages_(std::move(stages)), micro_batches_(micro_batches), next_(stages_.size()) {}

  struct Part {
    Pass pass = kForward;
    size_t place = 0;
  };

  // The parts in this order, over and over. Micro-batches beyond the last one are left out, so that
  // an order for many is one for few, too.
  void add(absl::Span<const Part> parts, int times) {
    bool adds = true;
    for (int i = 0; i < times && adds; ++i) {
      adds = false;
      for (const auto& [pass, place] : parts) {
        int& next = next_[place][static_cast<size_t>(pass)];
        if (next >= micro_batches_) continue;
        actions_.push_back({pass, stages_[place], next++});
        adds = true;
      }
    }
  }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  const std::vector<int> stages_;
  const int micro_batches_;
  std::vector<std::array<int, 4>> next_;  // micro-batches, by place and pass
  std::vector<Action> actions_;
};

using Part = RankOrder::Part;

// GPipe, where a rank has one stage, and looped breadth-first.
std::vector<Action> breadth_first(RankOrder order, const PipelineShape& shape, int /*rank*/) {
  const auto stages = static_cast<size_t>(shape.stages_per_rank);
  for (size_t i = 0; i < stages; ++i) order.add({{kForward, i}}, shape.micro_batches);
  for (size_t i = stages; i-- > 0;) order.add({{kBackward, i}}, shape.micro_batches);
  return order.take();
}

std::vector<Action> one_forward_one_backward(RankOrder order, const PipelineShape& shape,
                                             int rank) {
  const int warm = std::min(shape.ranks - rank - 1, shape.micro_batches);
  order.add({{kForward, 0}}, warm);
  order.add({{kForward, 0}, {kBackward, 0}}, shape.micro_batches - warm);
  order.add({{kBackward, 0}}, warm);
  return order.take();
}

// How many groups the micro-batches of an interleaved schedule make; 0: they do not divide.
int interleaved_rounds(int ranks, int micro_batches) {
  const int rounds = std::max(1, micro_batches / ranks);
  return micro_batches % rounds == 0 ? rounds : 0;
}

std::vector<Action> interleaved(RankOrder order, const PipelineShape& shape, int rank) {
  const int stages = shape.stages_per_rank;
  const int group = shape.micro_batches / interleaved_rounds(shape.ranks, shape.micro_batches);
  const int total = stages * shape.micro_batches;
  // The i-th pass of a direction is one of its group's turn at a stage.
  const auto forward = [&](int i) {
    order.add({{kForward, static_cast<size_t>(i / group % stages)}}, 1);
  };
  const auto backward = [&](int i) {
    order.add({{kBackward, static_cast<size_t>(stages - 1 - i / group % stages)}}, 1);
  };
  const int warm = std::min(2 * (shape.ranks - rank - 1) + (stages - 1) * group, total);
  for (int i = 0; i < warm; ++i) forward(i);
  for (int i = 0; i < total - warm; ++i) {
    forward(warm + i);
    backward(i);
  }
  for (int i = total - warm; i < total; ++i) backward(i);
  return order.take();
}

// 1F1B's order of forward passes and input gradients. Weight gradients are `rank` micro-batches
// late, because the rank has so much less to wait for at the end.
std::vector<Action> zero_bubble_h1(RankOrder order, const PipelineShape& shape, int rank) {
  const int warm = std::min(shape.ranks - rank - 1, shape.micro_batches);
  const int steady = shape.micro_batches - warm;
  const int late = std::min(rank, steady);
  order.add({{kForward, 0}}, warm);
  order.add({{kForward, 0}, {kInputGradient, 0}}, late);
  order.add({{kForward, 0}, {kInputGradient, 0}, {kWeightGradient, 0}}, steady - late);
  order.add({{kInputGradient, 0}, {kWeightGradient, 0}}, warm);
  order.add({{kWeightGradient, 0}}, late);
  return order.take();
}

// The order of 2p - 1 micro-batches or more. Place 0 is the rank's stage on the way to the last
// rank, place 1 that on the way back.
std::vector<Action> zero_bubble_v(RankOrder order, const PipelineShape& shape, int rank) {
  const int to_end = shape.ranks - rank;
  const int micro_batches = std::max(shape.micro_batches, 2 * shape.ranks - 1);
  const Part forward = {kForward, 0};
  const Part input = {kInputGradient, 0};
  const Part weight = {kWeightGradient, 0};
  const Part back_forward = {kForward, 1};
  const Part back_input = {kInputGradient, 1};
  const Part back_weight = {kWeightGradient, 1};
  order.add({forward}, 2 * to_end - 1);
  order.add({back_forward, forward}, rank);
  order.add({back_forward, back_input, back_weight}, to_end);
  order.add({forward, input, weight, back_forward, back_input, back_weight},
            micro_batches - (2 * shape.ranks - 1 - rank));
  order.add({input, weight, back_forward, back_input, back_weight}, to_end - 1);
  order.add({input, back_input}, rank);
  order.add({input, weight}, to_end);
  order.add({back_weight}, rank);
  order.add({weight}, rank);
  return order.take();
}

struct Kind {
  std::vector<Action> (*order)(RankOrder order, const PipelineShape& shape, int rank);
  // How many stages a rank may have, what errors call that, and the kind to take else.
  int least = 1;
  int most = std::numeric_limits<int>::max();
  const char* text = "";
  const char* advice = "";
};

// By ScheduleKind.
constexpr Kind kKinds[] = {
    {breadth_first, 1, 1, "1 stage", "; looped_bfs has several"},
    {one_forward_one_backward, 1, 1, "1 stage", "; interleaved has several"},
    {.order = interleaved, .least = 2, .text = "2 stages or more", .advice = "; 1f1b has 1"},
    {.order = breadth_first},
    {zero_bubble_h1, 1, 1, "1 stage", "; zb_v has 2"},
    {zero_bubble_v, 2, 2, "2 stages", "; zb_h1 has 1"},
};

absl::Status check_rounds(const PipelineShape& shape) {
  const auto divides = [&](int m) { return interleaved_rounds(shape.ranks, m) > 0; };
  if (divides(shape.micro_batches)) return absl::OkStatus();
  int fewer = shape.micro_batches - 1;
  while (!divides(fewer)) --fewer;
  int more = shape.micro_batches + 1;
  while (!divides(more)) ++more;
  return invalid("the pipeline schedule interleaved cannot divide ", shape.micro_batches,
                 " micro-batches into ", shape.micro_batches / shape.ranks, " equal groups, with ",
                 shape.ranks, " ranks; it can divide ", fewer, " or ", more);
}

absl::Status check_shape(ScheduleKind kind, const PipelineShape& shape) {
  for (const auto& [what, size] :
       {std::pair("rank", shape.ranks), std::pair("stage a rank", shape.stages_per_rank),
        std::pair("micro-batch", shape.micro_batches)}) {
    if (size < 1) return invalid("a pipeline has at least 1 ", what, ", but got ", size);
  }
  const Kind& row = kKinds[static_cast<size_t>(kind)];
  if (shape.stages_per_rank < row.least || shape.stages_per_rank > row.most) {
    return invalid("the pipeline schedule ", to_string(kind), " has ", row.text,
                   " a rank, but got ", shape.stages_per_rank, row.advice);
  }
  // Division, as the product may be too large for a number.
  const int64_t most = kMostActions / 3 / shape.ranks / shape.stages_per_rank;
  if (shape.micro_batches > most) {
    return invalid("a pipeline of ", shape.ranks, " ranks with ", shape.stages_per_rank,
                   " stages each has at most ", most, " micro-batches, but got ",
                   shape.micro_batches);
  }
  return kind == ScheduleKind::kInterleaved ? check_rounds(shape) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<ScheduleKind> parse_schedule_kind(absl::string_view text) {
  if (const auto kind = value_of<ScheduleKind>({text.data(), text.size()})) return *kind;
  return invalid("\"", text, "\" is not a pipeline schedule; ",
                 suggestion(text, texts<ScheduleKind>()));
}

absl::StatusOr<Schedule> make_schedule(ScheduleKind kind, const PipelineShape& shape) {
  ACCELERATE_RETURN_IF_ERROR(check_shape(kind, shape));
  Schedule schedule = {.stages = shape.ranks * shape.stages_per_rank,
                       .micro_batches = shape.micro_batches};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<int> stages;
    for (int i = 0; i < shape.stages_per_rank; ++i) stages.push_back(rank + i * shape.ranks);
    if (kind == ScheduleKind::kZeroBubbleV) stages.back() = 2 * shape.ranks - 1 - rank;
    RankOrder order(std::move(stages), shape.micro_batches);
    schedule.ranks.push_back(
        kKinds[static_cast<size_t>(kind)].order(std::move(order), shape, rank));
  }
  return schedule;
}

Schedule forward_passes(const Schedule& schedule) {
  Schedule forward = schedule;
  for (std::vector<Action>& actions : forward.ranks) {
    std::erase_if(actions, [](const Action& each) { return each.pass != kForward; });
  }
  return forward;
}

std::vector<int> stage_ranks(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<size_t>(schedule.stages), -1);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      ranks[static_cast<size_t>(action.stage)] = static_cast<int>(rank);
    }
  }
  return ranks;
}

std::string action_text(const Action& action) {
  return absl::StrCat(action.stage, to_string(action.pass), action.micro_batch);
}

ActionIndex::ActionIndex(const Schedule& schedule)
    : stages_(schedule.stages),
      micro_batches_(static_cast<size_t>(schedule.micro_batches)),
      forward_(static_cast<size_t>(stages_) * micro_batches_),
      gradients_(forward_.size()) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const auto& [pass, stage, micro_batch] = schedule.ranks[rank][i];
      if (pass == Pass::kWeightGradient) continue;
      std::vector<ActionPlace>& places = pass == Pass::kForward ? forward_ : gradients_;
      places[cell(stage, micro_batch)] = {rank, i};
    }
  }
}

std::vector<ActionPlace> ActionIndex::needs(const Action& action) const {
  const auto& [pass, stage, micro_batch] = action;
  switch (pass) {
    case Pass::kForward:
      if (stage == 0) return {};
      return {forward(stage - 1, micro_batch)};
    case Pass::kWeightGradient: return {gradient(stage, micro_batch)};
    case Pass::kBackward:
    case Pass::kInputGradient: break;
  }
  if (stage == stages_ - 1) return {forward(stage, micro_batch)};
  return {forward(stage, micro_batch), gradient(stage + 1, micro_batch)};
}

}  // namespace accelerate::pipeline
