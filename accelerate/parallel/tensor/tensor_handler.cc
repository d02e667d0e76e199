#include "accelerate/parallel/tensor/tensor_handler.h"

#include <algorithm>
#include <cstdint>
#include <exception>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/thread_scope.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/operators/call_arguments.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/parallel/tensor/managed_parts.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using Kind = TensorMark::Kind;

template <typename Visit>
void for_each_result(const OperatorCall& call, const OperatorFacts& facts, Visit&& visit) {
  for_each_tensor(torch::jit::last(call.stack(), facts.results), visit);
}

// Whether all ranks have a tensor alike, which is not a parameter.
bool is_alike(const at::Tensor& tensor) {
  const TensorMark* const mark = find_mark(tensor);
  return mark == nullptr || mark->kind == Kind::kEntered;
}

// Whether an operator computes with parameters alone, as 1 + weight.
bool uses_parameters_alone(const OperatorCall& call) {
  bool alone = true;
  for_each_tensor(arguments_of(call), [&alone](const at::Tensor& tensor) {
    alone &= !is_alike(tensor) || (tensor.dim() == 0 && !tensor.requires_grad());
  });
  return alone;
}

// Sequences are along the dim before the last.
constexpr int kSequenceFromEnd = 2;

// That of the output of a layer with this weight.
TensorMarkPtr sequence_mark(const at::Tensor& weight) {
  return c10::make_intrusive<TensorMark>(Kind::kSequence, find_mark(weight)->parameter,
                                         kSequenceFromEnd);
}

// 0 for a tensor whose changes are not counted.
uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

// The dtype in which a Linear layer computes with an input: automatic mixed precision casts, but
// another handler that computes products chooses by itself.
at::ScalarType product_dtype(const at::Tensor& input) {
  const at::ScalarType dtype = input.scalar_type();
  const c10::DeviceType device = input.device().type();
  if (!at::autocast::is_autocast_enabled(device) || !at::isFloatingType(dtype)) return dtype;
  const bool is_chosen = std::ranges::any_of(current_operator_handlers(), [](const auto& handler) {
    return handler->order() == OperatorOrder::kLinearProducts;
  });
  return dtype == at::kDouble || is_chosen ? dtype : at::autocast::get_autocast_dtype(device);
}

// While an operator runs of which is known what it makes of a part. How it is computed, as by views
// with other dims, says nothing more.
struct InsideKnownOperator : internal::ThreadScope<InsideKnownOperator, bool> {
  InsideKnownOperator() : ThreadScope(true) {}
};

// Whose part the result is: that of `part`, one of the arguments' marks, unless neighbours have it
// alike and not another argument. Keys that neighbours share make scores of their own with each of
// their queries.
std::shared_ptr<const LayerParameter> maker_of(const OperatorCall& call, const TensorMark& part) {
  std::shared_ptr<const LayerParameter> maker = part.parameter;
  if (maker == nullptr || maker->copies == 1) return maker;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& each) {
    const TensorMark* const mark = find_part(each);
    if (mark == nullptr || mark->parameter == nullptr) return;
    if (mark->parameter->copies < maker->copies) maker = mark->parameter;
  });
  return maker;
}

// The pieces (TensorMark::pieces) of parts that an operator puts together along their dim, one of
// which is `tensor` with the mark `part`.
int64_t joined_pieces(const OperatorCall& call, const at::Tensor& tensor, const TensorMark& part) {
  const int from_end = part.from_end;
  const auto length = [from_end](const at::Tensor& each, const TensorMark& mark) {
    return mark.pieces >= 1 ? each.size(-from_end) / mark.pieces : 0;
  };
  int64_t pieces = 0;
  bool are_even = true, are_known = true;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& each) {
    const TensorMark* const mark = find_part(each);
    if (mark == nullptr) return;
    are_known &= mark->pieces != TensorMark::kUnknownPieces && mark->from_end == from_end;
    are_even &= length(each, *mark) == length(tensor, part) && mark->pieces >= 1;
    pieces += mark->pieces;
  });
  if (!are_known) return TensorMark::kUnknownPieces;
  return are_even ? pieces : TensorMark::kUnevenPieces;
}

// Part of a message: "192 of 384".
std::string part_text(int64_t part, int64_t whole) { return absl::StrCat(part, " of ", whole); }

}  // namespace

TensorHandler::TensorHandler(ProcessGroupPtr group, int rank, Parameters parameters,
                             bool keeps_gathered_inputs)
    : OperatorHandler(OperatorOrder::kTensorParallel),
      group_(std::move(group)),
      rank_(rank),
      parameters_(std::move(parameters)),
      keeps_gathered_inputs_(keeps_gathered_inputs) {
  for (const auto& [tensor, parameter] : parameters_) {
    marks_.push_back(c10::make_intrusive<TensorMark>(Kind::kParameter, parameter));
    has_sequence_shards_ |= parameter->rule.sequence;
  }
  mark_parameters();  // before the first pass, for other models that have the same ones
}

void TensorHandler::mark_parameters() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].first;
    if (find_mark(tensor) != marks_[i].get()) set_mark(tensor, marks_[i]);
  }
}

TensorHandler::Operands TensorHandler::operands_of(const OperatorCall& call) {
  Operands operands;
  size_t argument = 0;
  for (const c10::IValue& value : arguments_of(call)) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      TensorMark* const mark = find_mark(tensor);
      if (mark == nullptr || mark->kind == Kind::kEntered) return;
      std::optional<Operand>& slot = mark->is_part()            ? operands.part
                                     : mark->is_cut_parameter() ? operands.cut
                                                                : operands.whole;
      if (!slot) slot = Operand{tensor, mark, argument};
    });
    ++argument;
  }
  return operands;
}

void TensorHandler::call(const OperatorCall& call) {
  const Operands operands = operands_of(call);
  if (operands.empty() || InsideKnownOperator::current() || is_backward_of_operator_scope()) {
    return call.proceed();
  }
  const OperatorFacts& facts = facts_of(call.op());
  if (operands.cut) {
    if (std::optional<at::Tensor> result = layer(call)) {
      torch::jit::drop(call.stack(), facts.arguments);
      torch::jit::push(call.stack(), *std::move(result));
      return;
    }
  }
  if (operands.part) return pass_part(call, facts, operands);
  if (operands.cut && facts.adds && adds_gathered_bias(call, *operands.cut)) return;
  pass_parameter(call, facts, operands.cut ? *operands.cut : *operands.whole);
}

std::optional<at::Tensor> TensorHandler::layer(const OperatorCall& call) const {
  static const c10::OperatorHandle lookup = find_operator("aten::embedding");
  const auto cut_parameter = [](const at::Tensor& tensor) -> const LayerParameter* {
    const TensorMark* const mark = find_mark(tensor);
    return mark != nullptr && mark->is_cut_parameter() ? mark->parameter.get() : nullptr;
  };
  if (const std::optional<LinearProduct> product = linear_product(call)) {
    const LayerParameter* const parameter = cut_parameter(product->weight);
    if (parameter == nullptr) return std::nullopt;
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kTensorParallel);
    return *parameter->cut_dim == 0 ? column(*product, *parameter) : row(*product, *parameter);
  }
  if (call.op() != lookup) return std::nullopt;
  const LayerParameter* const parameter = cut_parameter(arguments_of(call)[0].toTensor());
  if (parameter == nullptr || *parameter->cut_dim != 0) return std::nullopt;
  const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kTensorParallel);
  return embedding(call, *parameter);
}

at::Tensor TensorHandler::column(const LinearProduct& product,
                                 const LayerParameter& parameter) const {
  TensorMark* const part = find_part(product.input);
  TORCH_CHECK_VALUE(part == nullptr || part->kind != Kind::kFeatures, on_this_rank(),
                    "column layer \"", parameter.name, "\" gets ", text_of({product.input, part}),
                    "; make it a row layer, or gather the output of the layer before");
  TORCH_CHECK_VALUE(part == nullptr || part->pieces <= 1, on_this_rank(), "column layer \"",
                    parameter.name, "\" gets ", text_of({product.input, part}),
                    ", in one dim with others; leave them apart, as [batch, length, features]");
  // A bias that all ranks have is that of the whole output, as of a head that is a table of words.
  const at::Tensor& bias = product.bias;
  const bool adds_later =
      bias.defined() && parameter.rule.gather_output && bias.size(-1) == parameter.whole[0];
  const bool adds_now = bias.defined() && !adds_later;
  at::Tensor output = at::linear(entered(product.input), product.weight,
                                 adds_now ? std::optional(bias) : std::nullopt);
  if (parameter.rule.gather_output) {
    output = gather_along_split_backward(output, -1, group_);
    return adds_later ? output + bias.to(output.scalar_type()) : output;
  }
  set_mark(output,
           c10::make_intrusive<TensorMark>(Kind::kFeatures, find_mark(product.weight)->parameter,
                                           /*from_end=*/1, parameter.pieces()));
  return output;
}

// What stands in the last dim, and in which order, if ranks have parts.
void TensorHandler::check_row_input(const at::Tensor& input,
                                    const LayerParameter& parameter) const {
  TensorMark* const part = find_part(input);
  if (part == nullptr || part->pieces == TensorMark::kUnknownPieces) return;
  TORCH_CHECK_VALUE(part->kind == Kind::kFeatures && part->from_end == 1, on_this_rank(),
                    "row layer \"", parameter.name, "\" gets ", text_of({input, part}),
                    ", but adds up along dim -1; make it a column layer, or leave it whole");
  const auto text = [](int64_t pieces) {
    return pieces == TensorMark::kUnevenPieces ? std::string("several pieces")
           : pieces == 1                       ? std::string("one piece")
                                               : absl::StrCat(pieces, " pieces");
  };
  TORCH_CHECK_VALUE(part->pieces == parameter.pieces(), on_this_rank(), "row layer \"",
                    parameter.name, "\" gets ", text_of({input, part}), ", which are ",
                    text(part->pieces), ", but its weight is cut in ", text(parameter.pieces()),
                    "; give its rule blocks as long as these are in the whole model, as {1, 1} for "
                    "two of one size");
}

at::Tensor TensorHandler::row(const LinearProduct& product, const LayerParameter& parameter) const {
  at::Tensor input = product.input;
  const int64_t own = product.weight.size(1), given = input.dim() > 0 ? input.size(-1) : 0;
  if (given == own || given == parameter.whole[1]) check_row_input(input, parameter);
  if (parameter.rule.split_input && given == parameter.whole[1]) {
    input = split_along_gather_backward(input, -1, group_);
  } else {
    TORCH_CHECK_VALUE(given == own, on_this_rank(), "row layer \"", parameter.name, "\" gets ",
                      given, " features, but this rank has its weight for ",
                      part_text(own, parameter.whole[1]),
                      "; put it behind a column layer, or let its rule split its input");
  }
  at::Tensor output = summed(at::linear(input, product.weight), parameter);
  if (product.bias.defined()) output = output + product.bias.to(output.scalar_type());
  if (parameter.rule.sequence) set_mark(output, sequence_mark(product.weight));
  return output;
}

// Whole, or this rank's part of the sequences.
at::Tensor TensorHandler::summed(at::Tensor output, const LayerParameter& parameter) const {
  if (!parameter.rule.sequence) {
    return all_reduce_forward_identity_backward(std::move(output), group_);
  }
  check_sequences(output);
  return reduce_scatter_along(output, -kSequenceFromEnd, group_);
}

at::Tensor TensorHandler::embedding(const OperatorCall& call,
                                    const LayerParameter& parameter) const {
  const c10::ArrayRef<c10::IValue> arguments = arguments_of(call);
  const at::Tensor weight = arguments[0].toTensor(), words = arguments[1].toTensor();
  const int64_t padding = arguments[2].toInt();
  TensorMark* const part = find_part(words);
  TORCH_CHECK_VALUE(part == nullptr, on_this_rank(), "embedding \"", parameter.name, "\" gets ",
                    text_of({words, part}),
                    ", but ranks sum what they find of the same words; look whole sequences up, "
                    "and let the rule's sequence, or shard_sequence, divide them");
  TORCH_CHECK_VALUE(!arguments[3].toBool() && !arguments[4].toBool(), on_this_rank(),
                    "embedding \"", parameter.name,
                    "\" scales its gradients by frequency, or has sparse ones, which this version "
                    "does not do where ranks have parts of it");
  const int64_t rows = weight.size(0), first = rows * rank_of(group_);
  const at::Tensor elsewhere = words.lt(first).logical_or_(words.ge(first + rows));
  // The first row stands for words of other ranks. One that no rank has is still beyond the table.
  const at::Tensor in_place = words.div(parameter.whole[0], "floor").mul_(rows);
  const at::Tensor own = at::where(elsewhere, in_place, words - first);
  const bool has_padding = padding >= first && padding < first + rows;
  at::Tensor found = at::embedding(weight, own, has_padding ? padding - first : -1);
  found.masked_fill_(elsewhere.unsqueeze(-1), 0);
  at::Tensor output = summed(std::move(found), parameter);
  if (parameter.rule.sequence) set_mark(output, sequence_mark(weight));
  return output;
}

// One node of the graph for all column layers of an input, so that its gradients are summed once.
// The mark has the node alone: a tensor of the graph would keep the input, which has the mark.
at::Tensor TensorHandler::entered(const at::Tensor& input) const {
  TensorMark* const mark = find_mark(input);
  if (mark != nullptr && mark->kind == Kind::kSequence) return gathered(input, *mark);
  if (!at::GradMode::is_enabled() || !input.requires_grad()) return input;
  const uint32_t version = version_of(input);
  if (mark != nullptr && mark->kind == Kind::kEntered && mark->version == version &&
      mark->run == checkpointed_run()) {
    if (internal::NodePointer node = mark->entered.lock()) {
      at::Tensor again = input.detach();
      torch::autograd::impl::set_gradient_edge(again, {std::move(node), 0});
      return again;
    }
  }
  at::Tensor entered = identity_forward_all_reduce_backward(input, group_);
  if (mark == nullptr || mark->kind == Kind::kEntered) {
    auto remembered = c10::make_intrusive<TensorMark>(Kind::kEntered, nullptr);
    remembered->entered = internal::WeakNodePointer(entered.grad_fn());
    remembered->version = version;
    remembered->run = checkpointed_run();
    set_mark(input, std::move(remembered));
  }
  return entered;
}

// The ranks' parts put together, once for all column layers of one input. The mark has the whole as
// long as the part lives, which the forward pass needs no longer than the whole; but a leaf, which
// its gradient's graph keeps, would live as long as that. What a recomputation puts together stays,
// because the backward pass uses it next.
at::Tensor TensorHandler::gathered(const at::Tensor& part, TensorMark& mark) const {
  const bool records = at::GradMode::is_enabled() && part.requires_grad();
  const bool drops = records && !part.is_leaf() && !keeps_gathered_inputs_ &&
                     torch::autograd::get_current_graph_task_id() < 0;
  const at::ScalarType dtype = drops ? product_dtype(part) : part.scalar_type();
  const uint32_t version = version_of(part);
  if (mark.gathered.defined() && mark.version == version && mark.run == checkpointed_run() &&
      mark.gathered.requires_grad() == records && mark.gathered.scalar_type() == dtype) {
    return mark.gathered;
  }
  at::Tensor whole = all_gather_along(part, -mark.from_end, group_);
  // Nothing counts the changes of an inference tensor.
  if ((records && part.is_leaf()) || part.is_inference()) return whole;
  if (drops) whole = gathered_at_use(whole, dtype, part, -mark.from_end, group_);
  drop_gathered(mark.gathered);
  mark.gathered = whole;
  mark.version = version;
  mark.run = checkpointed_run();
  return whole;
}

// A whole that a function's graph alone has would stay as long as the function's input.
void TensorHandler::forget(const at::Tensor& input) {
  TensorMark* const mark = find_mark(input);
  if (mark == nullptr || mark->run != checkpointed_run()) return;
  drop_gathered(mark->gathered);
  mark->gathered.reset();
}

void TensorHandler::check_sequences(const at::Tensor& whole) const {
  const int64_t ranks = size_of(group_);
  const int64_t length = whole.dim() >= kSequenceFromEnd ? whole.size(-kSequenceFromEnd) : 0;
  TORCH_CHECK_VALUE(length > 0 && length % ranks == 0, on_this_rank(), "sequences of ", length,
                    " tokens, which the ", ranks,
                    " ranks along tp do not divide evenly; pad them to ",
                    (length / ranks + 1) * ranks, ", or turn the plan's sequence_parallel off");
}

at::Tensor TensorHandler::shard_sequence(const at::Tensor& whole) const {
  if (!has_sequence_shards_ || find_part(whole) != nullptr) return whole;
  check_sequences(whole);
  const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kTensorParallel);
  at::Tensor part = split_along_gather_backward(whole, -kSequenceFromEnd, group_);
  set_mark(part, c10::make_intrusive<TensorMark>(Kind::kSequence, nullptr, kSequenceFromEnd));
  return part;
}

at::Tensor TensorHandler::whole_sequence(const at::Tensor& part) const {
  const TensorMark* const mark = find_part(part);
  if (mark == nullptr || mark->kind != Kind::kSequence) return part;
  const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kTensorParallel);
  return whole_sequences_of(part);
}

at::Tensor TensorHandler::cut_output_of(const at::Tensor& part) const {
  at::Tensor given = part;
  const at::ScalarType dtype = part.scalar_type();
  // In automatic mixed precision callers get float32, which would be another tensor later.
  if (at::autocast::is_autocast_enabled(part.device().type()) &&
      (dtype == at::kHalf || dtype == at::kBFloat16)) {
    given = part.to(at::kFloat);
    set_mark(given, TensorMarkPtr::reclaim_copy(find_part(part)));
  }
  return cut_output(
      given, absl::StrCat(" on rank ", rank_, " needs all of ", text_of({given, find_part(given)}),
                          "; compute a loss of logits with parallel_cross_entropy(model, ...), or "
                          "let the layer's rule gather its output"));
}

at::Tensor TensorHandler::whole_sequences_of(const at::Tensor& part) const {
  const TensorMark& mark = *find_part(part);
  const int64_t dim = part.dim() - mark.from_end;
  if (mark.pieces <= 1) return gather_along_split_backward(part, dim, group_);
  const at::Tensor apart = part.unflatten(dim, {mark.pieces, part.size(dim) / mark.pieces});
  return gather_along_split_backward(apart, dim + 1, group_).flatten(dim, dim + 1);
}

at::Tensor TensorHandler::block_input(const torch::nn::Module& module, at::Tensor input) {
  const bool can_begin = has_sequence_shards_ && input.defined() && input.is_floating_point() &&
                         find_part(input) == nullptr;
  if (!can_begin) return input;
  const bool has_rows = std::ranges::any_of(module.parameters(), [](const at::Tensor& parameter) {
    const TensorMark* const mark = find_mark(parameter);
    return mark != nullptr && mark->is_cut_parameter() && *mark->parameter->cut_dim == 1 &&
           mark->parameter->rule.sequence;
  });
  return has_rows ? shard_sequence(input) : input;
}

// torch::nn::Linear adds the bias apart, here to an output that was gathered before.
bool TensorHandler::adds_gathered_bias(const OperatorCall& call, const Operand& bias) const {
  if (!bias.mark->parameter->rule.gather_output || bias.tensor.dim() != 1) return false;
  const size_t first = call.stack().size() - call.op().schema().arguments().size();
  {
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kTensorParallel);
    call.stack()[first + bias.argument] = gather_along_split_backward(bias.tensor, 0, group_);
  }
  call.proceed();
  return true;
}

// ---- Other operators.

void TensorHandler::pass_parameter(const OperatorCall& call, const OperatorFacts& facts,
                                   const Operand& parameter) const {
  const LayerParameter& of = *parameter.mark->parameter;
  const bool same = facts.gives_same_values;
  const auto mark = TensorMarkPtr::reclaim_copy(parameter.mark);
  const auto check_cut = [&](bool is_fine) {
    if (!of.cut_dim) return;
    const auto dim = static_cast<size_t>(*of.cut_dim);
    TORCH_CHECK_VALUE(
        is_fine, on_this_rank(), call.op().schema().name(), " uses \"", of.name,
        "\", of which each rank along tp has ", part_text(of.whole[dim] / of.parts, of.whole[dim]),
        dim == 0 ? " rows" : " columns",
        "; a plan divides products as torch::linear computes them, and torch::embedding: leave the "
        "parameter whole, or use one of these");
  };
  check_cut(same);
  if (!same) check_is_whole(call, parameter);
  const bool is_of_parameters = same || uses_parameters_alone(call);
  call.proceed();
  if (!is_of_parameters) return;
  for_each_result(call, facts, [&](const at::Tensor& result) {
    check_cut(result.numel() == parameter.tensor.numel());
    if (find_mark(result) == nullptr) set_mark(result, mark);
  });
}

// A parameter whose gradients ranks sum is not used with what all ranks have.
void TensorHandler::check_is_whole(const OperatorCall& call, const Operand& parameter) const {
  const LayerParameter& of = *parameter.mark->parameter;
  if (!of.rule.partial_gradient || !at::GradMode::is_enabled()) return;
  if (!parameter.tensor.requires_grad()) return;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& other) {
    TORCH_CHECK_VALUE(!is_alike(other) || other.dim() == 0, on_this_rank(),
                      call.op().schema().name(), " uses \"", of.name,
                      "\" with a tensor that all ranks along tp have alike, but its rule says "
                      "that they use it with parts, so that its gradients would count several "
                      "times; change the rule, or call shard_sequence before");
  });
}

void TensorHandler::pass_part(const OperatorCall& call, const OperatorFacts& facts,
                              const Operands& operands) const {
  const Operand& part = *operands.part;
  FeatureFlow flow(call, facts, part.argument, part.tensor, *part.mark);
  check_uses_part(call, flow, operands);
  Flows others = other_flows(call, facts, flow, part);
  const std::shared_ptr<const LayerParameter> maker = maker_of(call, *part.mark);
  const int64_t joined = flow.joins() ? joined_pieces(call, part.tensor, *part.mark) : 0;
  const bool meets_whole = flow.is_pointwise() && meets_whole_sequences(call, part);
  if (!meets_whole) check_gradients(call, part);  // else LibTorch refuses the lengths
  const auto mark = TensorMarkPtr::reclaim_copy(part.mark);
  const auto explain = [&](const std::string& what) {
    return absl::StrCat(on_this_rank(), call.op().schema().name(), " ", what, " ", text_of(part),
                        "; a count of heads or features in a divided layer must not be fixed: "
                        "write -1 for it");
  };
  try {
    if (flow.is_pointwise()) {
      call.proceed();
    } else {
      const InsideKnownOperator inside;
      call.proceed();
    }
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(!meets_whole, on_this_rank(), call.op().schema().name(), " computes with ",
                      text_of(part),
                      ", and with a tensor of whole sequences, as of positions; compute it before "
                      "shard_sequence, or pass the tensor through shard_sequence (",
                      exception_text(error), ")");
    if (!flow.is_view()) throw;
    TORCH_CHECK_VALUE(false, explain("does not fit"), " (", exception_text(error), ")");
  }
  bool is_first = true;  // others may be statistics
  for_each_result(call, facts, [&](const at::Tensor& result) {
    const bool is_statistic = !std::exchange(is_first, false);
    const bool must_have_it = !is_statistic && flow.loses();
    // By an operator inside of this one, which is not known itself.
    if (flow.is_pointwise() && find_part(result) != nullptr) return;
    const int from_end = flow.in(result);
    TORCH_CHECK_VALUE(flow.fault().empty(), explain(flow.fault()));
    TORCH_CHECK_VALUE(from_end != 0 || !must_have_it, on_this_rank(), call.op().schema().name(),
                      " gives sizes ", result.sizes(), ", where this version does not find ",
                      text_of(part),
                      "; compute it before the layers that are divided, or of other operators");
    if (from_end == 0) return;
    for (FeatureFlow& other : others) {
      const int at = is_statistic ? 0 : other.in(result);
      // A dim of one element may be any.
      const bool is_same_dim =
          at == 0 || at == from_end || result.size(-at) == 1 || result.size(-from_end) == 1;
      TORCH_CHECK_VALUE(is_same_dim, on_this_rank(), call.op().schema().name(), " computes with ",
                        text_of(part), ", and with another tensor whose part is dim ", -at,
                        " of the result, so that no rank would have the rest; compute one of them "
                        "whole");
    }
    // What was made of sequences is remembered by tensor.
    const int64_t pieces = flow.joins() ? joined : flow.pieces();
    const bool is_same = mark->kind == Kind::kFeatures && from_end == mark->from_end &&
                         pieces == mark->pieces && maker == mark->parameter;
    set_mark(result,
             is_same ? mark : c10::make_intrusive<TensorMark>(mark->kind, maker, from_end, pieces));
    if (facts.writes) mark_base(call, result, *find_part(result));
  });
}

// The parts among the arguments, besides the first one, that may come to stand in another dim.
TensorHandler::Flows TensorHandler::other_flows(const OperatorCall& call,
                                                const OperatorFacts& facts, const FeatureFlow& flow,
                                                const Operand& part) const {
  Flows others;
  bool is_first = true;
  size_t argument = 0;
  for (const c10::IValue& value : arguments_of(call)) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      TensorMark* const mark = find_part(tensor);
      if (mark == nullptr || std::exchange(is_first, false)) return;
      const bool is_there_too = !flow.combines() && mark->from_end == part.mark->from_end;
      const bool is_known = mark->pieces != TensorMark::kUnknownPieces &&
                            part.mark->pieces != TensorMark::kUnknownPieces;
      if (is_there_too || !is_known) return;
      const FeatureFlow& other = others.emplace_back(call, facts, argument, tensor, *mark);
      TORCH_CHECK_VALUE(other.fault().empty(), on_this_rank(), call.op().schema().name(), " ",
                        other.fault(), " ", text_of({tensor, mark}),
                        "; compute it of whole tensors");
    });
    ++argument;
  }
  return others;
}

// What is written into a view of a tensor is in the tensor.
void TensorHandler::mark_base(const OperatorCall& call, const at::Tensor& view,
                              const TensorMark& mark) const {
  if (view.is_inference() || !view.is_view()) return;
  const at::Tensor base(view._base());
  if (!is_alike(base)) return;
  const int64_t own = view.size(-mark.from_end), stride = view.stride(-mark.from_end);
  for (int64_t dim = base.dim() - 1; dim >= 0; --dim) {
    if (base.size(dim) != own || (own != 1 && base.stride(dim) != stride)) continue;
    set_mark(base, c10::make_intrusive<TensorMark>(
                       mark.kind, mark.parameter, static_cast<int>(base.dim() - dim), mark.pieces));
    return;
  }
  TORCH_CHECK_VALUE(false, on_this_rank(), call.op().schema().name(), " writes ",
                    text_of({view, find_mark(view)}), " into a tensor of sizes ", base.sizes(),
                    ", which has not this dim as a whole; put parts together with torch::cat");
}

// What takes some of the dim, or puts something beside it, counts on what other ranks have.
void TensorHandler::check_keeps_order(const OperatorCall& call, const FeatureFlow& flow,
                                      const Operand& part) const {
  const bool is_sequence = part.mark->kind == Kind::kSequence;
  const std::string& name = call.op().schema().name();
  TORCH_CHECK_VALUE(!is_sequence || !(flow.takes_range() || flow.takes_one()), on_this_rank(), name,
                    " takes some of ", text_of(part),
                    "; take them before shard_sequence, or of what a column layer gives");
  const bool is_one_piece = !is_sequence && part.mark->from_end == 1 && part.mark->pieces == 1;
  TORCH_CHECK_VALUE(!flow.takes_range() || !is_one_piece, on_this_rank(), name, " takes some of ",
                    text_of(part),
                    "; if it is several weights in one, give its rule blocks, as {1, 1} for two of "
                    "one size");
  if (!flow.joins()) return;
  int others = is_sequence ? -1 : 0;  // of sequences the part itself is among them
  for_each_tensor(arguments_of(call), [&](const at::Tensor& each) {
    if (each.numel() > 0 && (is_sequence || find_part(each) == nullptr)) ++others;
  });
  TORCH_CHECK_VALUE(others <= 0, on_this_rank(), name, " puts other values beside ", text_of(part),
                    "; put whole tensors together before the layers that are divided");
}

// What all ranks have alike would get a part of its gradient on each.
void TensorHandler::check_gradients(const OperatorCall& call, const Operand& part) const {
  if (!at::GradMode::is_enabled()) return;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& other) {
    TORCH_CHECK_VALUE(!other.requires_grad() || !is_alike(other), on_this_rank(),
                      call.op().schema().name(), " uses a tensor of sizes ", other.sizes(),
                      ", which all ranks have and whose gradient is wanted, with ", text_of(part),
                      ", so that its gradient would be a part on each rank; compute it with a "
                      "column layer, or detach it");
  });
}

// Whether an argument has all of the sequences of which another one has a part.
bool TensorHandler::meets_whole_sequences(const OperatorCall& call, const Operand& part) const {
  if (part.mark->kind != Kind::kSequence) return false;
  const int from_end = part.mark->from_end;
  const int64_t whole = part.tensor.size(-from_end) * size_of(group_);
  bool meets = false;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& other) {
    meets |=
        other.dim() >= from_end && other.size(-from_end) == whole && find_part(other) == nullptr;
  });
  return meets;
}

void TensorHandler::check_uses_part(const OperatorCall& call, const FeatureFlow& flow,
                                    const Operands& operands) const {
  const Operand& part = *operands.part;
  const std::string& name = call.op().schema().name();
  TORCH_CHECK_VALUE(flow.fault().empty(), on_this_rank(), name, " ", flow.fault(), " ",
                    text_of(part),
                    "; compute it before the layers that are divided, or gather their output; a "
                    "Linear layer can be a row layer, and a loss parallel_cross_entropy");
  check_keeps_order(call, flow, part);
  if (operands.cut) {
    const LayerParameter& cut = *operands.cut->mark->parameter;
    const bool is_of_each_feature = flow.is_pointwise() && part.mark->kind == Kind::kFeatures &&
                                    part.mark->from_end == 1 && operands.cut->tensor.dim() == 1 &&
                                    *cut.cut_dim == 0 &&
                                    operands.cut->tensor.size(0) == part.tensor.size(-1);
    TORCH_CHECK_VALUE(is_of_each_feature, on_this_rank(), name, " uses \"", cut.name,
                      "\", of which each rank along tp has a part, with ", text_of(part),
                      "; leave the parameter whole, or use torch::linear or torch::embedding");
  }
  if (!operands.whole) return;
  const LayerParameter& whole = *operands.whole->mark->parameter;
  const bool has_partial_gradient = at::GradMode::is_enabled() &&
                                    operands.whole->tensor.requires_grad() &&
                                    !whole.rule.partial_gradient;
  TORCH_CHECK_VALUE(
      !has_partial_gradient, on_this_rank(), name, " uses \"", whole.name,
      "\", which all ranks have, with ", text_of(part),
      ", so that its gradient is a part on each rank; a rule with partial_gradient, "
      "or sequence, lets ranks sum the parts",
      part.mark->kind == Kind::kSequence ? ", or use it before shard_sequence, as positions" : "");
}

std::string TensorHandler::on_this_rank() const { return absl::StrCat("rank ", rank_, ": "); }

std::string TensorHandler::text_of(const Operand& part) const {
  if (part.mark == nullptr || !part.mark->is_part()) return "a whole tensor";
  const int from_end = part.mark->from_end;
  const int64_t own = part.tensor.size(-from_end);
  const std::shared_ptr<const LayerParameter>& maker = part.mark->parameter;
  const bool is_of_features = part.mark->kind == Kind::kFeatures;
  const int64_t parts = is_of_features && maker != nullptr ? maker->parts : size_of(group_);
  return absl::StrCat("dim ", -from_end, " of ", is_of_features ? "features" : "sequences",
                      ", of which each rank along tp has ", part_text(own, own * parts),
                      maker != nullptr ? absl::StrCat(", made with \"", maker->name, "\"") : "");
}

}  // namespace accelerate
