#include "accelerate/parallel/tensor/loss.h"

#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "accelerate/base/shard_rows.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void all_reduce(const ProcessGroupPtr& group, const at::Tensor& numbers,
                c10d::ReduceOp::RedOpType op) {
  if (!group) return;
  const std::string text = "parallel_cross_entropy";
  const CollectivePurpose purpose(text);
  std::vector<at::Tensor> tensors{numbers};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  group->allreduce(tensors, options)->wait();
}

// What a call knows of its tokens. The tensors have the sizes of the logits with one class.
struct Tokens : torch::CustomClassHolder {
  ProcessGroupPtr group;
  int64_t dim = 0;        // of the logits: the classes
  at::Tensor index;       // the target's place among this rank's classes
  at::Tensor is_foreign;  // the target is another rank's, and the index any
  at::Tensor is_ignored;
  at::Tensor weight;  // of the target's logarithm
  // Label smoothing adds the logarithms of all classes.
  double smoothing = 0;     // what each counts; 0: without it
  at::Tensor class_weight;  // of this rank's classes, in the dims of the logits; undefined: 1
  at::Tensor total_weight;  // of the vocabulary, one number

  at::Tensor weighted(const at::Tensor& numbers) const {
    return class_weight.defined() ? numbers.mul(class_weight) : numbers;
  }
};

// The loss of each token. With z the logits less the largest of them, and log the logarithm of the
// sum of their exponentials:
//   weight[t] (log - z[t]) + smoothing sum_c weight[c] (log - z[c])
struct Losses : torch::autograd::Function<Losses> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const c10::intrusive_ptr<Tokens>& tokens) {
    const Tokens& of = *tokens;
    const at::Tensor largest =
        logits.amax(of.dim, /*keepdim=*/true).to(of.weight.scalar_type()).contiguous();
    all_reduce(of.group, largest, c10d::ReduceOp::MAX);
    at::Tensor z = logits.sub(largest);
    std::vector<at::Tensor> own{z.gather(of.dim, of.index).masked_fill_(of.is_foreign, 0)};
    if (of.smoothing != 0) own.push_back(of.weighted(z).sum(of.dim, /*keepdim=*/true));
    own.push_back(z.exp_().sum(of.dim, /*keepdim=*/true));
    const at::Tensor sums = at::stack(own).contiguous();
    all_reduce(of.group, sums, c10d::ReduceOp::SUM);

    const at::Tensor exponentials = sums.select(0, -1);
    const at::Tensor log = exponentials.log();
    at::Tensor losses = log.sub(sums.select(0, 0)).mul_(of.weight);
    if (of.smoothing != 0) {
      losses.add_(log.mul(of.total_weight).sub_(sums.select(0, 1)), of.smoothing);
    }
    context->save_for_backward({logits, largest, exponentials});
    context->saved_data["tokens"] = c10::IValue::make_capsule(tokens);
    return losses.masked_fill_(of.is_ignored, 0);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "parallel_cross_entropy has no second derivative (backward with create_graph)");
    const auto tokens =
        c10::static_intrusive_pointer_cast<Tokens>(context->saved_data.at("tokens").toCapsule());
    const Tokens& of = *tokens;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &largest = saved[1], &exponentials = saved[2];

    const at::Tensor gradient = gradients[0].masked_fill(of.is_ignored, 0);
    const at::Tensor of_target = gradient.mul(of.weight);
    const at::Tensor of_log = of.smoothing == 0
                                  ? of_target
                                  : at::addcmul(of_target, gradient, of.total_weight, of.smoothing);
    at::Tensor of_logits = logits.sub(largest).exp_().mul_(of_log.div(exponentials));
    if (of.smoothing != 0) of_logits.sub_(of.weighted(gradient), of.smoothing);
    of_logits.scatter_add_(of.dim, of.index, of_target.neg().masked_fill_(of.is_foreign, 0));
    return {of_logits.to(logits.scalar_type()), at::Tensor()};
  }
};

void check(const at::Tensor& logits, const at::Tensor& target, const CrossEntropyOptions& options,
           const ProcessGroupPtr& group, int64_t vocabulary) {
  TORCH_CHECK_VALUE(logits.dim() > 0 && logits.is_floating_point(),
                    "parallel_cross_entropy: logits are floating-point numbers with a dim for "
                    "classes, not ",
                    logits.scalar_type(), " of sizes ", logits.sizes());
  const int64_t dim = logits.dim() > 1 ? 1 : 0;
  const int64_t classes = logits.size(dim);
  const int ranks = size_of(group), rank = rank_of(group);
  const int64_t own = shard_rows(vocabulary, ranks, rank).count;
  TORCH_CHECK_VALUE(ranks == 1 || classes != vocabulary,
                    "parallel_cross_entropy: the logits are whole, with all ", vocabulary,
                    " classes, of which rank ", rank, " of ", ranks, " has ", own,
                    "; pass the rank's part, or whole logits to cross_entropy");
  const int last = ranks - 1;
  TORCH_CHECK_VALUE(shard_rows(vocabulary, ranks, last).count > 0, "parallel_cross_entropy: of ",
                    vocabulary, " classes rank ", last, " of ", ranks,
                    " has none; cut them among fewer ranks");
  TORCH_CHECK_VALUE(classes == own, "parallel_cross_entropy: the logits have ", classes,
                    " classes, but rank ", rank, " of ", ranks, " has ", own, " of the ",
                    vocabulary);
  TORCH_CHECK_VALUE(at::isIntegralType(target.scalar_type(), /*includeBool=*/false),
                    "parallel_cross_entropy: targets are numbers of classes, not probabilities (",
                    target.scalar_type(),
                    "), for which cross_entropy of whole logits can be taken, as of those that "
                    "gather_along_split_backward puts together");
  std::vector<int64_t> sizes = logits.sizes().vec();
  sizes.erase(sizes.begin() + dim);
  TORCH_CHECK_VALUE(target.sizes() == at::IntArrayRef(sizes),
                    "parallel_cross_entropy: logits of sizes ", logits.sizes(),
                    " have targets of sizes ", at::IntArrayRef(sizes), ", not ", target.sizes());
  const at::Tensor& weight = options.weight;
  TORCH_CHECK_VALUE(!weight.defined() || (weight.dim() == 1 && weight.numel() == vocabulary),
                    "parallel_cross_entropy: weight has one number for each of the ", vocabulary,
                    " classes of the whole vocabulary, not sizes ", weight.sizes());
  TORCH_CHECK_VALUE(options.label_smoothing >= 0 && options.label_smoothing <= 1,
                    "parallel_cross_entropy: label_smoothing is from 0 to 1, not ",
                    options.label_smoothing);
}

}  // namespace

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const CrossEntropyOptions& options, const ProcessGroupPtr& group,
                                  int64_t vocabulary) {
  check(logits, target, options, group, vocabulary);
  const ShardRows own = shard_rows(vocabulary, size_of(group), rank_of(group));
  const at::ScalarType dtype = c10::promoteTypes(logits.scalar_type(), at::kFloat);
  const auto tokens = c10::make_intrusive<Tokens>();
  tokens->group = group;
  tokens->dim = logits.dim() > 1 ? 1 : 0;

  // Without weights each class has 1: the weights of targets are looked up in any case, because
  // this finds targets that are out of range.
  const at::Tensor class_weight =
      options.weight.defined() ? options.weight.detach().to(dtype)
                               : at::ones({1}, logits.options().dtype(dtype)).expand({vocabulary});
  const at::Tensor one_class = target.to(at::kLong).unsqueeze(tokens->dim);
  tokens->is_ignored = one_class.eq(options.ignore_index);
  const at::Tensor classes = one_class.masked_fill(tokens->is_ignored, 0);
  at::Tensor weight;
  try {
    weight = class_weight.index_select(0, classes.reshape({-1})).view(classes.sizes());
  } catch (const c10::IndexError&) {
    TORCH_CHECK_VALUE(false, "parallel_cross_entropy: a target is neither one of the ", vocabulary,
                      " classes nor ignore_index (", options.ignore_index, ")");
  }
  const at::Tensor place = classes.sub(own.first);
  tokens->index = place.clamp(0, own.count - 1);
  tokens->is_foreign = place.ne(tokens->index);
  tokens->weight = weight.mul(1 - options.label_smoothing);
  if (options.label_smoothing != 0) {
    tokens->smoothing = options.label_smoothing / static_cast<double>(vocabulary);
    tokens->total_weight = class_weight.sum();
    if (options.weight.defined()) {
      std::vector<int64_t> sizes(static_cast<size_t>(logits.dim()), 1);
      sizes[static_cast<size_t>(tokens->dim)] = own.count;
      tokens->class_weight = class_weight.narrow(0, own.first, own.count).reshape(sizes);
    }
  }

  at::Tensor loss = Losses::apply(logits, tokens).squeeze(tokens->dim);
  if (options.reduction != at::Reduction::None) loss = loss.sum();
  if (options.reduction == at::Reduction::Mean) {
    loss = loss.div(weight.masked_fill(tokens->is_ignored, 0).sum());
  }
  const bool widens = at::autocast::is_autocast_enabled(logits.device().type());
  return loss.to(widens ? dtype : logits.scalar_type());
}

}  // namespace accelerate
