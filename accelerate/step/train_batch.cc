// A window of micro-batches: forward and backward passes in the order of a schedule, and what
// becomes of their losses.
#include "accelerate/step/train_batch.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/parallel/pipeline/late_gradients.h"
#include "accelerate/parallel/pipeline/model_stages.h"
#include "accelerate/parallel/pipeline/pipeline_technique.h"
#include "accelerate/parallel/pipeline/stage_messages.h"
#include "accelerate/parallel/pipeline/window.h"
#include "accelerate/pipeline/check.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"

namespace accelerate::internal {
namespace {

using pipeline::Pass;
using pipeline::Schedule;

// The rows of each micro-batch.
struct Rows {
  int64_t first = 0;
  int64_t count = 0;
};

std::vector<Rows> rows_of_batch(const WindowCalls& calls, const TrainBatchOptions& options) {
  TORCH_CHECK_VALUE(calls.inputs.defined() && calls.inputs.dim() > 0,
                    "train_batch: a batch's inputs are a tensor with rows");
  const int64_t rows = calls.inputs.size(0);
  TORCH_CHECK_VALUE(!calls.label_rows || *calls.label_rows == rows, "train_batch: a batch has ",
                    rows, " rows of inputs, and ", *calls.label_rows, " of labels");
  const int micro_batches = *options.micro_batches;
  TORCH_CHECK_VALUE(micro_batches > 0, "train_batch: a window has at least 1 micro-batch, but got ",
                    micro_batches);
  TORCH_CHECK_VALUE(micro_batches <= rows, "train_batch: a batch of ", rows, " rows has no ",
                    micro_batches, " micro-batches; it has ", rows, " at most");
  std::vector<Rows> all;
  int64_t first = 0;
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t count = rows / micro_batches + (i < rows % micro_batches ? 1 : 0);
    all.push_back({first, count});
    first += count;
  }
  return all;
}

// What a window is for.
enum class Purpose { kTraining, kEvaluation };

Schedule schedule_for(const PipelineTechnique& pipeline, const TrainBatchOptions& options,
                      Purpose purpose) {
  const int ranks = static_cast<int>(pipeline.group()->getSize());
  const int stages = pipeline.stages().count();
  Schedule schedule;
  if (options.own_schedule) {
    schedule = *options.own_schedule;
    check_pipeline_status(check_schedule(schedule));
    TORCH_CHECK_VALUE(schedule.micro_batches == *options.micro_batches,
                      "train_batch: the program's schedule has ", schedule.micro_batches,
                      " micro-batches, and the window ", *options.micro_batches);
  } else {
    schedule = checked_value(make_schedule(options.schedule.value_or(pipeline.schedule()),
                                           {.ranks = ranks,
                                            .stages_per_rank = stages / ranks,
                                            .micro_batches = *options.micro_batches}));
  }
  TORCH_CHECK_VALUE(stage_ranks(schedule) == pipeline.stages().ranks,
                    "train_batch: the schedule has stages on the ranks ",
                    absl::StrJoin(stage_ranks(schedule), ", "), " along pp, and the model on ",
                    absl::StrJoin(pipeline.stages().ranks, ", "),
                    "; give the Accelerator a PipelinePlan with the schedule");
  if (purpose == Purpose::kEvaluation) return forward_passes(schedule);
  TORCH_CHECK_VALUE(pipeline::has_backward_passes(schedule),
                    "train_batch: the schedule has no backward passes");
  return schedule;
}

// What the ranks of a pipeline must have alike.
std::string window_text(const WindowCalls& calls, const TrainBatchOptions& options,
                        const Schedule& schedule, const ModelState& model, Purpose purpose,
                        bool synchronises) {
  std::string name = options.schedule ? to_string(*options.schedule) : "its plan's";
  if (options.own_schedule)
    name = absl::StrCat("its own of ", schedule.ranks[0].size(), " actions");
  return absl::StrCat("a batch of ", c10::toString(calls.inputs.scalar_type()), " [",
                      absl::StrJoin(calls.inputs.sizes(), ", "), "] in ", *options.micro_batches,
                      " micro-batches, schedule ", name,
                      options.positions.defined() ? ", with positions" : "",
                      model.module()->is_training() ? "" : ", in evaluation",
                      purpose == Purpose::kTraining ? "" : ", without gradients",
                      synchronises ? "" : ", without synchronisation");
}

// Whether a window can run, which all ranks of a pipeline say together.
Schedule agreed_schedule(const PipelineTechnique& pipeline, const WindowCalls& calls,
                         const TrainBatchOptions& options, const ModelState& model, Purpose purpose,
                         bool synchronises) {
  Schedule schedule;
  const std::vector<RankOutcome> outcomes = agree(pipeline.group(), "train_batch", [&] {
    TORCH_CHECK_VALUE(calls.inputs.defined(), "train_batch: rank ", pipeline.rank(),
                      " along pp was given no inputs; all ranks of a pipeline get the same batch");
    schedule = schedule_for(pipeline, options, purpose);
    rows_of_batch(calls, options);
    return window_text(calls, options, schedule, model, purpose, synchronises);
  });
  for (size_t rank = 1; rank < outcomes.size(); ++rank) {
    TORCH_CHECK_VALUE(outcomes[rank].text == outcomes[0].text,
                      "train_batch: all ranks of a pipeline get the same batch, but rank 0 along "
                      "pp has ",
                      outcomes[0].text, ", and rank ", rank, " ", outcomes[rank].text);
  }
  return schedule;
}

// By micro-batch: what their messages' shapes follow from.
std::vector<BatchSignature> signatures_of(const at::Tensor& inputs, const std::vector<Rows>& rows,
                                          bool is_training) {
  const int64_t kind = (is_training ? 1 : 0) + (at::GradMode::is_enabled() ? 2 : 0);
  std::vector<BatchSignature> signatures;
  for (const Rows& each : rows) {
    BatchSignature& signature = signatures.emplace_back(inputs.sizes().vec());
    signature[0] = each.count;
    signature.push_back(static_cast<int64_t>(inputs.scalar_type()));
    signature.push_back(kind);
  }
  return signatures;
}

// One rank computes a micro-batch after the other.
Schedule one_after_the_other(int micro_batches) {
  return checked_value(
      make_schedule(pipeline::ScheduleKind::k1f1b, {.micro_batches = micro_batches}));
}

// The passes of a batch. `pipeline`: null for one rank.
void run_batch(PipelineTechnique* pipeline, const Schedule& schedule, const WindowCalls& calls,
               const std::vector<Rows>& rows, bool is_training, c10::Device device,
               const StageWork& work) {
  if (pipeline == nullptr) return run_window(schedule, /*rank=*/0, /*messages=*/nullptr, work);
  WindowMessages messages(pipeline->channels(), schedule,
                          signatures_of(calls.inputs, rows, is_training), device);
  run_window(schedule, pipeline->rank(), &messages, work);
}

// What the forward pass before computed besides its output; undefined: nothing that has a gradient.
at::Tensor router_loss_of(const ModelState& model, bool by_tokens) {
  auto* const parts = dynamic_cast<ModelParts*>(model.module().get());
  if (parts == nullptr) return {};
  at::Tensor loss = parts->take_router_loss();
  if (!loss.defined() || !loss.requires_grad()) return {};
  TORCH_CHECK_VALUE(!by_tokens,
                    "train_batch: routers of experts have losses, which are means over tokens; "
                    "give a loss function that returns a mean as well, and not a TokenLoss");
  return loss;
}

bool has_late_gradients(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const std::vector<pipeline::Action>& actions) {
    return std::ranges::count(actions, Pass::kWeightGradient, &pipeline::Action::pass) > 0;
  });
}

// Whether no backward pass of a window reaches all gradients of a rank at last, so that one behind
// the window has to synchronise them.
bool ends_with_reduction(const PipelineTechnique* pipeline, const Schedule& schedule,
                         const std::vector<Technique*>& synchronising) {
  if (pipeline == nullptr) return false;
  const bool has_several = pipeline->stages().count() > pipeline->group()->getSize();
  return (has_several || has_late_gradients(schedule)) &&
         std::ranges::any_of(synchronising, [](const Technique* technique) {
           return technique->no_sync_count() != nullptr;
         });
}

// A backward pass that adds zeros to all gradients there are, in which ranks reduce what the passes
// of the window, and of those before, have left on each of them.
void reduce_gradients(const ModelState& model, const std::vector<Technique*>& synchronising) {
  std::vector<at::Tensor> parameters, zeros;
  for (const at::Tensor& parameter : model.module()->parameters()) {
    const at::Tensor& gradient = parameter.grad();
    if (!parameter.requires_grad() || !gradient.defined()) continue;
    parameters.push_back(parameter);
    zeros.push_back(gradient.is_sparse()
                        ? at::zeros_like(gradient)
                        : at::zeros({}, parameter.options()).expand(parameter.sizes()));
  }
  if (parameters.empty()) return;
  for (const std::unique_ptr<Technique>& technique : model.techniques()) {
    const bool reduces = std::ranges::count(synchronising, technique.get()) > 0;
    technique->begin_adding(reduces ? at::TensorList(parameters) : at::TensorList());
  }
  torch::autograd::backward(parameters, zeros);
  for (const std::unique_ptr<Technique>& technique : model.techniques()) technique->end_adding();
}

}  // namespace

at::Tensor TrainingStep::train_batch(const ModelState& model, const WindowCalls& calls,
                                     const TrainBatchOptions& options) {
  AccumulationWindow& window = gradients_.window();
  TORCH_CHECK_VALUE(!(calls.by_tokens ? window.divides_by_steps : window.divides_by_tokens),
                    "train_batch: losses that are means and losses that are sums over tokens in "
                    "the same accumulation window");
  TORCH_CHECK_VALUE(window.token_unit == 0,
                    "train_batch() after backward_tokens() in the same accumulation window");
  TORCH_CHECK_VALUE(!calls.by_tokens || !gradients_.joining(),
                    "train_batch: inside join_uneven_inputs, ranks whose data has ended would not "
                    "count their tokens");
  auto* const pipeline = model.find_technique<PipelineTechnique>();
  const bool synchronises = gradients_.sync_gradients();
  const Schedule schedule = pipeline != nullptr ? agreed_schedule(*pipeline, calls, options, model,
                                                                  Purpose::kTraining, synchronises)
                                                : one_after_the_other(*options.micro_batches);
  const std::vector<Rows> rows = rows_of_batch(calls, options);
  const int64_t all_rows = calls.inputs.size(0);
  const auto rows_of = [&rows](int i) -> const Rows& { return rows[static_cast<size_t>(i)]; };
  const double steps = calls.by_tokens ? 1 : static_cast<double>(steps_of_window());
  if (calls.by_tokens) window.divides_by_tokens = window.steps > 0;

  StepEngine& engine = this->engine();
  at::Tensor total;  // of losses: their sum, or their mean over rows
  int64_t tokens = 0;
  StageWork work;
  work.input = [&](int i) { return calls.inputs.narrow(0, rows_of(i).first, rows_of(i).count); };
  const auto late = std::make_shared<LateGradients>();
  const bool has_halves = has_late_gradients(schedule);
  std::optional<StageDraws> draws;
  if (pipeline != nullptr) draws.emplace();
  const auto weight_of = [&](int i) {
    return calls.by_tokens ? 1
                           : static_cast<double>(rows_of(i).count) / static_cast<double>(all_rows);
  };
  const auto scaled = [&](const at::Tensor& loss, int i) {
    const double scale = weight_of(i) / steps;
    return scale == 1 ? loss : loss * scale;
  };
  // Those of routers in stages before the last one, by stage and micro-batch.
  std::map<std::pair<int, int>, at::Tensor> router_losses;
  work.forward = [&](int stage, int i, at::Tensor x) {
    if (pipeline == nullptr) return calls.forward(x, options.positions);
    at::Tensor output;
    draws->run(stage, i, [&] {
      output = pipeline->forward_stage(model, stage, std::move(x), options.positions,
                                       has_halves ? late : nullptr);
    });
    // The last stage's are taken behind the loss function, which may have taken them.
    if (stage + 1 < schedule.stages) {
      at::Tensor loss = router_loss_of(model, calls.by_tokens);
      if (loss.defined()) router_losses[{stage, i}] = scaled(loss, i);
    }
    return output;
  };
  work.loss = [&](const at::Tensor& output, int i) {
    const TokenLoss loss = calls.loss(output, rows_of(i).first, rows_of(i).count);
    tokens += loss.tokens;
    const at::Tensor share = loss.sum.detach() * weight_of(i);
    total = total.defined() ? total + share : share;
    const at::Tensor of_routers = router_loss_of(model, calls.by_tokens);
    return scaled(of_routers.defined() ? loss.sum + of_routers : loss.sum, i);
  };
  // LocalSGD and no_sync keep others from it, in whole windows as in single passes.
  std::vector<Technique*> synchronising;
  for (const std::unique_ptr<Technique>& technique : model.techniques()) {
    const NoSyncCount count = technique->no_sync_count();
    if (count == nullptr || *count == 0) synchronising.push_back(technique.get());
  }
  const bool reduces_at_end =
      synchronises && ends_with_reduction(pipeline, schedule, synchronising);
  work.backward = [&](const pipeline::Action& action, const at::Tensor& root,
                      const at::Tensor& gradient, bool is_last) {
    const absl::Cleanup end = [&] { late->end(); };
    if (action.pass == Pass::kInputGradient) late->begin({action.stage, action.micro_batch});
    if (is_last && synchronises && !reduces_at_end) {
      gradients_.set_sync_gradients(true);
      for (Technique* const technique : synchronising) technique->trigger_sync_in_backward();
    }
    if (!gradient.defined()) return engine.backward(root, {});
    // The last stage's loss was scaled.
    const auto& scaler = training_.precision.scaler();
    if (scaler) scaler->begin_backward();
    const auto of_routers = router_losses.find({action.stage, action.micro_batch});
    if (of_routers == router_losses.end()) return root.backward(gradient);
    const at::Tensor loss =
        scaler ? scaler->scaler().scale(of_routers->second) : of_routers->second;
    router_losses.erase(of_routers);
    torch::autograd::backward({root, loss}, {gradient, at::Tensor()});
  };
  work.late_gradients = [&](const pipeline::Action& action) {
    for (const auto& technique : model.techniques()) technique->begin_adding({});
    late->run({action.stage, action.micro_batch});
    for (const auto& technique : model.techniques()) technique->end_adding();
  };
  {
    const NoSyncScope no_sync = this->no_sync({&model});
    gradients_.set_sync_gradients(false);
    const absl::Cleanup restore = [&] { gradients_.set_sync_gradients(synchronises); };
    if (pipeline != nullptr) {
      pipeline->begin_window();
      // Ranks whose stages train nothing agree on steps as well, which takes a scale.
      if (GradScaler* const scaler = this->scaler()) {
        scaler->scale(at::zeros({}, at::TensorOptions(state_.device())));
      }
    }
    run_batch(pipeline, schedule, calls, rows, model.module()->is_training(), state_.device(),
              work);
    if (reduces_at_end) {
      gradients_.set_sync_gradients(true);
      reduce_gradients(model, synchronising);
    }
    if (pipeline != nullptr) pipeline->end_window(synchronises);
  }
  const at::Tensor loss = calls.by_tokens
                              ? divide_window_by_tokens(pipeline, total, tokens, synchronises)
                              : window_mean(pipeline, total);
  engine.end_backward();
  return loss;
}

at::Tensor TrainingStep::evaluate_batch(const ModelState& model, const WindowCalls& calls,
                                        const TrainBatchOptions& options) {
  const at::NoGradGuard no_grad;
  auto* const pipeline = model.find_technique<PipelineTechnique>();
  const Schedule schedule = pipeline != nullptr
                                ? agreed_schedule(*pipeline, calls, options, model,
                                                  Purpose::kEvaluation, /*synchronises=*/true)
                                : forward_passes(one_after_the_other(*options.micro_batches));
  const std::vector<Rows> rows = rows_of_batch(calls, options);
  const auto rows_of = [&rows](int i) -> const Rows& { return rows[static_cast<size_t>(i)]; };
  const bool is_training = model.module()->is_training();
  at::Tensor total;  // of losses: their sum, or their mean over rows
  int64_t tokens = 0;
  StageWork work;
  work.input = [&](int i) { return calls.inputs.narrow(0, rows_of(i).first, rows_of(i).count); };
  std::optional<StageDraws> draws;
  // A model in evaluation draws nothing, so that the numbers of its training remain the same.
  if (pipeline != nullptr && is_training) draws.emplace();
  work.forward = [&](int stage, int i, at::Tensor x) {
    if (pipeline == nullptr) return calls.forward(x, options.positions);
    at::Tensor output;
    const auto forward = [&] {
      output = pipeline->forward_stage(model, stage, std::move(x), options.positions,
                                       /*late=*/nullptr);
    };
    if (draws) {
      draws->run(stage, i, forward);
    } else {
      forward();
    }
    return output;
  };
  work.loss = [&](const at::Tensor& output, int i) {
    const TokenLoss loss = calls.loss(output, rows_of(i).first, rows_of(i).count);
    tokens += loss.tokens;
    const double weight = calls.by_tokens ? 1
                                          : static_cast<double>(rows_of(i).count) /
                                                static_cast<double>(calls.inputs.size(0));
    const at::Tensor share = loss.sum * weight;
    total = total.defined() ? total + share : share;
    return total;
  };
  run_batch(pipeline, schedule, calls, rows, is_training, state_.device(), work);
  if (!calls.by_tokens) return window_mean(pipeline, total);
  const at::Tensor numbers = sums_of_tokens(pipeline, total, tokens, /*window_tokens=*/0);
  return numbers[0].div(numbers[1].clamp_min(1)).to(at::kFloat);
}

at::Tensor TrainingStep::window_mean(const PipelineTechnique* pipeline,
                                     const at::Tensor& total) const {
  if (pipeline == nullptr) return total;
  const at::NoGradGuard no_grad;
  const int last = pipeline->stages().ranks.back();
  const auto options = at::TensorOptions(state_.device()).dtype(at::kFloat);
  at::Tensor loss =
      pipeline->rank() == last ? total.to(options).reshape({1}) : at::empty({1}, options);
  broadcast_tensor(pipeline->group(), loss, last);
  return loss.reshape({});
}

at::Tensor TrainingStep::sums_of_tokens(const PipelineTechnique* pipeline, const at::Tensor& total,
                                        int64_t tokens, int64_t window_tokens) const {
  const auto options = at::TensorOptions(state_.device()).dtype(at::kDouble);
  const DataShare share = state_.roles(divided_axes()).tokens;
  at::Tensor numbers = at::empty({3}, options);
  const int last = pipeline != nullptr ? pipeline->stages().ranks.back() : 0;
  if (pipeline == nullptr || pipeline->rank() == last) {
    numbers = at::stack({total.to(options).reshape({}), at::full({}, tokens, options),
                         at::full({}, window_tokens, options)});
    if (share.group != nullptr) numbers = reduce_tensor(share.group, numbers, Reduction::kSum);
  }
  if (pipeline != nullptr) broadcast_tensor(pipeline->group(), numbers, last);
  return numbers;
}

at::Tensor TrainingStep::divide_window_by_tokens(const PipelineTechnique* pipeline,
                                                 const at::Tensor& total, int64_t tokens,
                                                 bool synchronises) {
  const at::NoGradGuard no_grad;
  AccumulationWindow& window = gradients_.window();
  window.tokens += tokens;
  const at::Tensor numbers = sums_of_tokens(pipeline, total, tokens, window.tokens);
  if (synchronises) {
    window.tokens = 0;
    const int64_t shares = state_.roles(divided_axes()).tokens.count;
    multiply_gradients(at::reciprocal(numbers[2].clamp_min(1)).mul_(shares));
  }
  return numbers[0].div(numbers[1].clamp_min(1)).to(at::kFloat);
}

}  // namespace accelerate::internal
