#include "accelerate/parallel/tensor/tensor_handler.h"

#include <cstdint>
#include <exception>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using Kind = TensorMark::Kind;

// Calls visit(tensor) for the tensors in a value that are defined.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor() && each.toTensor().defined()) visit(each.toTensor());
    }
  }
}

c10::ArrayRef<c10::IValue> arguments_of(const OperatorCall& call) {
  return torch::jit::last(call.stack(), call.op().schema().arguments().size());
}

template <typename Visit>
void for_each_result(const OperatorCall& call, Visit&& visit) {
  for (const c10::IValue& value :
       torch::jit::last(call.stack(), call.op().schema().returns().size())) {
    for_each_tensor(value, visit);
  }
}

// Whether an operator gives the values of its argument, as a view or as a copy.
bool gives_same_values(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& returns = op.schema().returns();
  if (returns.empty()) return true;
  const c10::AliasInfo* const alias = returns.front().alias_info();
  if (alias != nullptr) return !alias->isWrite();
  const std::string& name = op.schema().name();
  return name == "aten::clone" || name == "aten::_to_copy";
}

// One inside of a forward pass, but for a recomputation, which records what it computes.
bool is_backward_pass() {
  return torch::autograd::get_current_graph_task_id() >= 0 && !at::GradMode::is_enabled();
}

// Part of a message: "192 of 384".
std::string part_text(int64_t part, int64_t whole) { return absl::StrCat(part, " of ", whole); }

}  // namespace

TensorHandler::TensorHandler(ProcessGroupPtr group, int rank, Parameters parameters)
    : OperatorHandler(OperatorOrder::kTensorParallel),
      group_(std::move(group)),
      rank_(rank),
      parameters_(std::move(parameters)) {
  for (const auto& [tensor, parameter] : parameters_) {
    marks_.push_back(c10::make_intrusive<TensorMark>(Kind::kParameter, parameter));
  }
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
      std::optional<Operand>& slot = mark->is_features()        ? operands.features
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
  if (operands.empty() || is_backward_pass()) return call.proceed();
  if (operands.cut) {
    if (std::optional<at::Tensor> result = layer(call)) {
      torch::jit::drop(call.stack(), call.op().schema().arguments().size());
      torch::jit::push(call.stack(), *std::move(result));
      return;
    }
  }
  if (operands.features) return pass_features(call, operands);
  if (operands.cut && adds_gathered_bias(call, *operands.cut)) return;
  pass_parameter(call, operands.cut ? *operands.cut : *operands.whole);
}

std::optional<at::Tensor> TensorHandler::layer(const OperatorCall& call) const {
  static const c10::OperatorHandle lookup =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::embedding", "");
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
  TORCH_CHECK_VALUE(!has_part_of_features(product.input) || find_mark(product.input)->from_end != 1,
                    on_this_rank(), "column layer \"", parameter.name, "\" gets ",
                    text_of({product.input, find_mark(product.input)}),
                    "; make it a row layer, or gather the output of the layer before");
  at::Tensor output =
      at::linear(entered(product.input), product.weight,
                 product.bias.defined() ? std::optional(product.bias) : std::nullopt);
  if (parameter.rule.gather_output) return gather_along_split_backward(output, -1, group_);
  set_mark(output, c10::make_intrusive<TensorMark>(
                       Kind::kFeatures, find_mark(product.weight)->parameter, /*from_end=*/1));
  return output;
}

at::Tensor TensorHandler::row(const LinearProduct& product, const LayerParameter& parameter) const {
  at::Tensor input = product.input;
  const int64_t own = product.weight.size(1), given = input.dim() > 0 ? input.size(-1) : 0;
  if (parameter.rule.split_input && given == parameter.whole[1]) {
    input = split_along_gather_backward(input, -1, group_);
  } else {
    TORCH_CHECK_VALUE(given == own, on_this_rank(), "row layer \"", parameter.name, "\" gets ",
                      given, " features, but this rank has its weight for ",
                      part_text(own, parameter.whole[1]),
                      "; put it behind a column layer, or let its rule split its input");
  }
  const at::Tensor output =
      all_reduce_forward_identity_backward(at::linear(input, product.weight), group_);
  if (!product.bias.defined()) return output;
  return output + product.bias.to(output.scalar_type());
}

at::Tensor TensorHandler::embedding(const OperatorCall& call,
                                    const LayerParameter& parameter) const {
  const c10::ArrayRef<c10::IValue> arguments = arguments_of(call);
  const at::Tensor weight = arguments[0].toTensor(), words = arguments[1].toTensor();
  const int64_t padding = arguments[2].toInt();
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
  return all_reduce_forward_identity_backward(std::move(found), group_);
}

// One node of the graph for all column layers of an input, so that its gradients are summed once.
// The mark has the node alone: a tensor of the graph would keep the input, which has the mark.
at::Tensor TensorHandler::entered(const at::Tensor& input) const {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) return input;
  const bool is_counted = !input.is_inference();
  const auto version = is_counted ? static_cast<uint32_t>(input._version()) : 0;
  TensorMark* const mark = find_mark(input);
  if (mark != nullptr && mark->kind == Kind::kEntered && mark->version == version) {
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
    set_mark(input, std::move(remembered));
  }
  return entered;
}

// torch::nn::Linear adds the bias apart, here to an output that was gathered before.
bool TensorHandler::adds_gathered_bias(const OperatorCall& call, const Operand& bias) const {
  const std::string& name = call.op().schema().name();
  const bool adds = name == "aten::add" || name == "aten::add_";
  if (!adds || !bias.mark->parameter->rule.gather_output || bias.tensor.dim() != 1) return false;
  const size_t first = call.stack().size() - call.op().schema().arguments().size();
  {
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kTensorParallel);
    call.stack()[first + bias.argument] = gather_along_split_backward(bias.tensor, 0, group_);
  }
  call.proceed();
  return true;
}

// ---- Other operators.

void TensorHandler::pass_parameter(const OperatorCall& call, const Operand& parameter) const {
  const LayerParameter& of = *parameter.mark->parameter;
  const bool same = gives_same_values(call.op());
  const auto mark = TensorMarkPtr::reclaim_copy(parameter.mark);
  const auto check_cut = [&](bool is_fine) {
    if (!of.cut_dim) return;
    const auto dim = static_cast<size_t>(*of.cut_dim);
    TORCH_CHECK_VALUE(
        is_fine, on_this_rank(), call.op().schema().name(), " uses \"", of.name,
        "\", of which each rank along tp has ",
        part_text(of.whole[dim] / size_of(group_), of.whole[dim]), dim == 0 ? " rows" : " columns",
        "; a plan divides products as torch::linear computes them, and torch::embedding: leave the "
        "parameter whole, or use one of these");
  };
  check_cut(same);
  call.proceed();
  if (!same) return;
  for_each_result(call, [&](const at::Tensor& result) {
    check_cut(result.numel() == parameter.tensor.numel());
    if (find_mark(result) == nullptr) set_mark(result, mark);
  });
}

void TensorHandler::pass_features(const OperatorCall& call, const Operands& operands) const {
  const Operand& features = *operands.features;
  FeatureFlow flow(call, features.argument, features.tensor, features.mark->from_end);
  check_uses_features(call, flow, operands);
  const TensorMark& mark = *features.mark;
  const auto same_mark = TensorMarkPtr::reclaim_copy(features.mark);
  const auto explain = [&](const std::string& what) {
    return absl::StrCat(on_this_rank(), call.op().schema().name(), " ", what, " ",
                        text_of(features),
                        "; a count of heads or features in a divided layer must not be fixed: "
                        "write -1 for it");
  };
  try {
    call.proceed();
  } catch (const std::exception& error) {
    if (!flow.is_view()) throw;
    TORCH_CHECK_VALUE(false, explain("does not fit"), " (", exception_text(error), ")");
  }
  for_each_result(call, [&](const at::Tensor& result) {
    // By an operator inside of this one, which is not known itself.
    if (flow.is_pointwise() && has_part_of_features(result)) return;
    const int from_end = flow.in(result);
    TORCH_CHECK_VALUE(flow.fault().empty(), explain(flow.fault()));
    if (from_end == 0) return;
    set_mark(result, from_end == mark.from_end ? same_mark
                                               : c10::make_intrusive<TensorMark>(
                                                     Kind::kFeatures, mark.parameter, from_end));
  });
}

void TensorHandler::check_uses_features(const OperatorCall& call, const FeatureFlow& flow,
                                        const Operands& operands) const {
  const Operand& features = *operands.features;
  const std::string& name = call.op().schema().name();
  TORCH_CHECK_VALUE(flow.fault().empty(), on_this_rank(), name, " ", flow.fault(), " ",
                    text_of(features),
                    "; compute it before the layers that are divided, or gather their output; a "
                    "Linear layer can be a row layer, and a loss parallel_cross_entropy");
  if (operands.cut) {
    const LayerParameter& cut = *operands.cut->mark->parameter;
    const bool is_of_each_feature = flow.is_pointwise() && features.mark->from_end == 1 &&
                                    operands.cut->tensor.dim() == 1 && *cut.cut_dim == 0 &&
                                    operands.cut->tensor.size(0) == features.tensor.size(-1);
    TORCH_CHECK_VALUE(is_of_each_feature, on_this_rank(), name, " uses \"", cut.name,
                      "\", of which each rank along tp has a part, with ", text_of(features),
                      "; leave the parameter whole, or use torch::linear or torch::embedding");
  }
  if (!operands.whole) return;
  const LayerParameter& whole = *operands.whole->mark->parameter;
  const bool has_partial_gradient = at::GradMode::is_enabled() &&
                                    operands.whole->tensor.requires_grad() &&
                                    !whole.rule.partial_gradient;
  TORCH_CHECK_VALUE(!has_partial_gradient, on_this_rank(), name, " uses \"", whole.name,
                    "\", which all ranks have, with ", text_of(features),
                    ", so that its gradient is a part on each rank; a rule with partial_gradient "
                    "lets ranks sum the parts");
}

std::string TensorHandler::on_this_rank() const { return absl::StrCat("rank ", rank_, ": "); }

std::string TensorHandler::text_of(const Operand& features) const {
  if (features.mark == nullptr || !features.mark->is_features()) return "features";
  const int from_end = features.mark->from_end;
  const int64_t own = features.tensor.size(-from_end);
  return absl::StrCat("dim ", -from_end, " of features, of which each rank along tp has ",
                      part_text(own, own * size_of(group_)), ", made with \"",
                      features.mark->parameter->name, "\"");
}

}  // namespace accelerate
